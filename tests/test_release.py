# SPDX-License-Identifier: Apache-2.0
"""The version has one place, the changelog knows it, and the source distribution builds a wheel."""

from __future__ import annotations

import os
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
WHEELS_METADATA = (
    "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as prepare; "
    "prepare(sys.argv[1])"
)
REPOSITORY = "https://forge.example/somebody/tensorwire"
MEGABYTE = 1_000_000


def declared() -> str:
    found = re.search(r'^version = "(.*?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def is_text(file: Path) -> bool:
    """Not a folder, nor what a fuzzer begins with."""
    return file.is_file() and "seeds" not in file.parts


def test_the_version_is_that_of_pyproject() -> None:
    assert tensorwire.__version__ == version("tensorwire") == declared()


def test_the_version_is_written_once() -> None:
    files = [
        *(ROOT / name for name in ("CMakeLists.txt", "CITATION.cff", "Makefile", "docs/conf.py")),
        *(file for folder in ("binding", "core", "src") for file in (ROOT / folder).rglob("*")),
    ]
    written = re.compile(rf"(?<![\d.]){re.escape(declared())}(?![\d.])")
    texts = {".cc", ".cff", ".cpp", ".h", ".py", ".pyi", ".txt", ""}
    found = [
        str(file.relative_to(ROOT))
        for file in files
        if file.suffix in texts and is_text(file) and written.search(file.read_text())
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
    """As the workflow of releases makes it."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-c", BUILD_SDIST, str(folder)]
    environment = {**os.environ, "REPOSITORY_URL": REPOSITORY}
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    (made,) = folder.iterdir()
    assert made.name == f"tensorwire-{declared()}.tar.gz"
    return made


def test_the_sdist_has_what_a_wheel_is_built_from_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"CMakeLists.txt", "CHANGELOG.md", "LICENSE", "NOTICE", "README.md", "pyproject.toml"}
    for folder in ("binding", "core", "src"):
        for file in (ROOT / folder).rglob("*"):
            path = file.relative_to(ROOT)
            kinds = {".cc", ".cpp", ".h", ".py", ".map", ".pyi", ".tsv", ".typed", ".txt"}
            if path.suffix in kinds and path.parts[:2] not in {("core", "test"), ("core", "fuzz")}:
                needed.add(str(path))
    assert needed <= names
    others = ("tests/", "core/test/", "core/fuzz/", "scripts/", "requirements/", ".", "build/")
    assert sorted(name for name in names if name.startswith(others)) == [
        "scripts/long_description.py",
        "scripts/project_urls.py",
    ]
    assert sdist.stat().st_size < 2 * MEGABYTE


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
    assert "<!--" not in text
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert [target for target in targets if not target.startswith("https://")] == []


def metadata_of_a_wheel(root: Path, folder: Path, repository: str = "") -> Message:
    """Of one that is built in ``root``; ``folder`` is made."""
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-c", WHEELS_METADATA, str(folder)],
        check=True,
        cwd=root,
        env={**os.environ, "REPOSITORY_URL": repository},
    )
    (found,) = folder.glob("*/METADATA")
    return message_from_bytes(found.read_bytes())


def test_the_links_are_those_of_the_repository_that_makes_the_release(
    sdist: Path, metadata: Message, tmp_path: Path
) -> None:
    links = metadata.get_all("Project-URL", [])
    assert links[0] == f"Source, {REPOSITORY}"
    assert f"Changelog, {REPOSITORY}/blob/v{declared()}/CHANGELOG.md" in links
    paths = re.findall(rf"/blob/v{re.escape(declared())}/(\S+)", " ".join(links))
    assert paths
    assert all((ROOT / path).is_file() for path in paths)
    wheel = metadata_of_a_wheel(ROOT, tmp_path / "release", f"{REPOSITORY}/")
    assert wheel.get_all("Project-URL") == links
    # Whoever builds a wheel of the source distribution, in whatever workflow, gets the same.
    with tarfile.open(sdist) as archive:
        # Python 3.11.4 and newer know filters, and 3.12 warns where none is given.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    unpacked = tmp_path / f"tensorwire-{declared()}"
    again = metadata_of_a_wheel(unpacked, tmp_path / "again", "https://forge.example/other/thing")
    assert again.get_all("Project-URL") == links


def test_a_build_that_is_no_release_has_no_links(tmp_path: Path) -> None:
    assert metadata_of_a_wheel(ROOT, tmp_path / "wheel").get_all("Project-URL") is None


def test_the_workflow_of_releases_names_the_repository() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "REPOSITORY_URL: ${{ github.server_url }}/${{ github.repository }}" in workflow


def test_the_forge_does_what_must_hold_before_a_change_goes_in() -> None:
    """But for what needs a Debian, with a virtual machine of its own. The oldest TensorFlow, which
    takes long, is tried there only. Frameworks and a browser are for the tests, which skip what
    these are missing for: they have to be on the machine that runs the tests."""
    script = (ROOT / ".ci" / "run").read_text()
    lines = r"^(?:stage|both|for target in) ([a-z -]+)(?:$|; do stage \"\$target\"; done$)"
    stages = " ".join(re.findall(lines, script, re.MULTILINE)).split()
    assert stages[-1] == "test"
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (steps,) = re.findall(r"step: \[(.*)\]", workflow)
    here = [stage for stage in stages if stage not in ("browser", "frameworks", "test-verbs")]
    assert steps.split(", ") == [*here[:-1], "test-oldest-tensorflow", here[-1]]
    needed = "      - if: matrix.step == 'test'\n        run: make browser frameworks\n"
    assert workflow.index(needed) < workflow.index("run: make ${{ matrix.step }}")


def test_what_takes_too_long_for_each_change_runs_each_night() -> None:
    workflow = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    (steps,) = re.findall(r"step: \[(.*)\]", workflow)
    script = (ROOT / ".ci" / "run").read_text()
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    for step in steps.split(", "):
        assert step in targets
        assert step not in script
        assert re.search(rf"^\| each night, .*`{step}`", guide, re.MULTILINE), step


def test_no_file_can_stand_for_a_target_and_clean_removes_what_git_ignores() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z0-9-]+):(?!=).*## ", makefile, re.MULTILINE)
    phony = " ".join(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)).split()
    assert set(targets) <= set(phony)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    folders = {line.strip("/") for line in ignored if line.endswith("/")} - {"__pycache__"}
    (removed,) = re.findall(r"^clean:.*\n\trm -rf (.*)$", makefile, re.MULTILINE)
    assert set(removed.split()) == folders


def test_each_source_names_its_licence() -> None:
    """In its first line, or in the second where the first says what runs it."""
    sources = [ROOT / "CMakeLists.txt", ROOT / "Makefile", ROOT / ".ci" / "run"]
    for folder in ("binding", "core", "src", "tests", "examples", "scripts"):
        sources += [file for file in (ROOT / folder).rglob("*") if is_text(file)]
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
