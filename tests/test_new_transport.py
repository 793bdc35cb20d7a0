# SPDX-License-Identifier: Apache-2.0
"""What docs/new-transport.md says of where another transport hooks in is enough, done literally: to
a copy of the core, one that is ``loop`` under another name is added by these steps."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STEPS = {
    "its folder": "**Its folder**, `core/transport/<name>/`",
    "what it defines": "defines `tw::<name>::make_kind(environment)`",
    "the table": "**One line of the table** in `core/transport/kinds.cc`",
    "the build": "The build finds the folder by itself.",
}
OPTIONS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
LINE = "  KIND(mirror) \\\n"


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A copy, with the folder of another transport."""
    copy = tmp_path / "core"
    shutil.copytree(ROOT / "core", copy, ignore=shutil.ignore_patterns("test", "fuzz"))
    folder = copy / "transport" / "mirror"
    folder.mkdir()
    for file in (copy / "transport" / "loop").iterdir():
        text = file.read_text().replace("loop", "mirror").replace("Loop", "Mirror")
        text, _ = re.subn(r"(uint16_t code\(\) const override \{ return )\w+", r"\g<1>999", text)
        (folder / file.name.replace("loop", "mirror")).write_text(text)
    return copy


def add_the_line(core: Path) -> None:
    table = core / "transport" / "kinds.cc"
    text = table.read_text()
    assert text.count("  KIND(tcp) ") == 1
    table.write_text(text.replace("  KIND(tcp) ", f"{LINE}  KIND(tcp) "))


def compiled(core: Path, source: str, *how: str) -> None:
    """A file of the core, as the build does."""
    done = subprocess.run(
        ["c++", *OPTIONS, "-I", core, *how, core / source], stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr


def symbols(core: Path, source: str, which: str) -> set[str]:
    """Of a file of the core: the makers of kinds that it lacks (``U``) or has (``T``)."""
    made = core / Path(source).with_suffix(".o").name
    compiled(core, source, "-c", "-o", str(made))
    shown = subprocess.run(
        ["nm", "--demangle", made], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return set(re.findall(rf"\b{which} (tw::\w+::make_kind)\(", shown))


def test_the_page_still_says_so() -> None:
    page = " ".join((ROOT / "docs" / "new-transport.md").read_text().split())
    assert [step for step, text in STEPS.items() if text not in page] == []


def test_one_line_puts_it_into_the_table(core: Path) -> None:
    add_the_line(core)
    assert "tw::mirror::make_kind" in symbols(core, "transport/kinds.cc", "U")


def test_its_folder_has_what_the_table_needs(core: Path) -> None:
    assert symbols(core, "transport/mirror/kind.cc", "T") == {"tw::mirror::make_kind"}


def test_nothing_else_of_the_core_has_to_change(core: Path) -> None:
    compiled(core, "transport/mirror/mirror.cc", "-fsyntax-only")


def test_the_build_finds_the_folder(core: Path) -> None:
    build = (core / "CMakeLists.txt").read_text()
    listed = re.search(r"file\(GLOB core_sources CONFIGURE_DEPENDS([^)]*)\)", build)
    assert listed is not None
    found = {file for pattern in listed[1].split() for file in core.glob(pattern)}
    assert {*(core / "transport" / "mirror").glob("*.cc")} <= found
