# SPDX-License-Identifier: Apache-2.0
"""The version has one place, the changelog knows it, and the source distribution builds a wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from email import message_from_bytes
from email.message import Message
from importlib.metadata import version
from pathlib import Path

import pytest

import tensorwire

ROOT = Path(__file__).resolve().parents[1]
BUILD_SDIST = (
    "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
)
MEGABYTE = 1_000_000


def declared() -> str:
    found = re.search(r'^version = "(.*?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_version_is_that_of_pyproject() -> None:
    assert tensorwire.__version__ == version("tensorwire") == declared()


def test_the_version_is_written_once() -> None:
    files = [
        *(ROOT / name for name in ("CMakeLists.txt", "CITATION.cff", "Makefile", "docs/conf.py")),
        *(file for folder in ("core", "src") for file in (ROOT / folder).rglob("*")),
    ]
    written = re.compile(rf"(?<![\d.]){re.escape(declared())}(?![\d.])")
    texts = {".cc", ".cff", ".cpp", ".h", ".py", ".pyi", ".txt", ""}
    found = [
        str(file.relative_to(ROOT))
        for file in files
        if file.is_file() and file.suffix in texts and written.search(file.read_text())
    ]
    assert found == []


def test_the_changelog_has_the_version() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
    released = [re.fullmatch(r"(\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d", title) for title in sections[1:]]
    versions = [title[1] for title in released if title]
    assert len(versions) == len(released), "a heading is 'X.Y.Z - YYYY-MM-DD'"
    numbers = [tuple(map(int, name.split("."))) for name in versions]
    assert numbers == sorted(numbers, reverse=True)
    if declared().endswith(".dev0"):
        assert declared().removesuffix(".dev0") not in versions
    else:
        assert declared() == versions[0]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-c", BUILD_SDIST, str(folder)], check=True, cwd=ROOT)
    (made,) = folder.iterdir()
    assert made.name == f"tensorwire-{declared()}.tar.gz"
    return made


def test_the_sdist_has_what_a_wheel_is_built_from_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"CMakeLists.txt", "CHANGELOG.md", "LICENSE", "NOTICE", "README.md", "pyproject.toml"}
    for folder in ("core", "src"):
        for file in (ROOT / folder).rglob("*"):
            path = file.relative_to(ROOT)
            kinds = {".cc", ".cpp", ".h", ".py", ".map", ".pyi", ".tsv", ".typed", ".txt"}
            if path.suffix in kinds and path.parts[:2] not in {("core", "test"), ("core", "fuzz")}:
                needed.add(str(path))
    assert needed <= names
    others = ("tests/", "core/test/", "core/fuzz/", "scripts/", "requirements/", ".", "build/")
    assert [name for name in names if name.startswith(others)] == ["scripts/long_description.py"]
    assert sdist.stat().st_size < MEGABYTE


@pytest.fixture(scope="module")
def metadata(sdist: Path) -> Message:
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"tensorwire-{declared()}/PKG-INFO")
        assert file is not None
        return message_from_bytes(file.read())


def test_the_metadata_names_what_is_supported(metadata: Message) -> None:
    assert metadata["Requires-Python"] == ">=3.10"
    named = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier", [])]
    assert [name for name in named if name.startswith("3.")] == [f"3.{n}" for n in range(10, 15)]
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_description_leads_nowhere_that_is_not_there(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert "## Quick start" in text
    assert "pip install tensorwire" in text
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert [target for target in targets if not target.startswith("https://")] == []


def test_each_source_names_its_licence() -> None:
    """In its first line, or in the second where the first says what runs it."""
    sources = [ROOT / "CMakeLists.txt", ROOT / "Makefile", ROOT / ".ci" / "run"]
    for folder in ("core", "src", "tests", "examples", "scripts"):
        sources += [file for file in (ROOT / folder).rglob("*") if file.is_file()]
    kinds = {".cc", ".cpp", ".h", ".proto", ".py", ".pyi", ".sh", ".txt", ""}
    without = []
    for source in sources:
        if source.suffix not in kinds or "__pycache__" in source.parts:
            continue
        lines = source.read_text().splitlines() or [""]
        line = lines[1] if lines[0].startswith("#!") else lines[0]
        if line.lstrip("/# ") != "SPDX-License-Identifier: Apache-2.0":
            without.append(str(source.relative_to(ROOT)))
    assert without == []
