# SPDX-License-Identifier: Apache-2.0
"""Files of one folder are compiled as one (``compile_by_folders`` in CMakeLists.txt), so each sees
what is in the unnamed namespaces of those before it. What has the same name twice is an error of
the compiler's, but for functions, which overload each other. Then a template of another file, which
takes anything, can be the better match: it must have a name of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [
    *(
        folder
        for folder in sorted((ROOT / "core").rglob("*"))
        if folder.is_dir() and ROOT / "core" / "fuzz" not in (folder, *folder.parents)
    ),
    ROOT / "binding",
]


def functions(text: str) -> Iterator[tuple[str, bool]]:
    """Those in unnamed namespaces: the name, and whether it is a template."""
    unnamed = template = False
    for line in text.splitlines():
        if line in ("namespace {", "}  // namespace"):
            unnamed = line == "namespace {"
        elif line.startswith("template <"):
            template = True
        elif line[:1].isalpha() or line.startswith("[["):
            found = re.match(r"(?:\[\[.*?\]\] )?[^=(]*?(\w+)\(", line)
            if unnamed and found:
                yield found[1], template or re.search(r"\(.*\bauto\b", line) is not None
            template = False


def shared_templates(files: dict[str, str]) -> set[str]:
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    for name, text in files.items():
        for function, template in functions(text):
            found[function][name] = found[function].get(name, False) or template
    return {
        function
        for function, places in found.items()
        if len(places) > 1 and any(places.values()) and not function.startswith("TEST_CASE")
    }


def test_a_template_that_could_serve_another_file_is_found() -> None:
    opened = "namespace {\n\n"
    closed = "\n}  // namespace\n"
    template = f"{opened}template <class... F>\nStatus bad(F&&... sentence) {{{closed}"
    plain = f"{opened}Status bad(std::string_view field, int value) {{{closed}"
    generic = f"{opened}Status bad(const auto& value) {{{closed}"
    assert shared_templates({"a.cc": template, "b.cc": plain}) == {"bad"}
    assert shared_templates({"a.cc": generic, "b.cc": plain}) == {"bad"}
    assert not shared_templates({"a.cc": plain, "b.cc": plain.replace("int", "long")})
    assert not shared_templates({"a.cc": template, "b.cc": plain.replace("bad", "worse")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_no_template_serves_two_files(folder: Path) -> None:
    files = {file.name: file.read_text() for file in folder.glob("*.c*") if file.suffix != ".cu"}
    assert not shared_templates(files)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")
def test_a_host_without_the_header_of_rdma_can_build_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *("cmake", "-S", str(ROOT), "-B", str(tmp_path)),
            *("-DTENSORWIRE_PYTHON=OFF", "-DVERBS_INCLUDE=0"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "RDMA is left out" in done.stdout
