# SPDX-License-Identifier: Apache-2.0
"""One word, one thing: types of the core have names of their own, and the glossary's words are used
as it says."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core"
GLOSSARY = ROOT / "docs" / "glossary.md"

# At the beginning of a line: not within another type.
TYPE = re.compile(
    r"^(?:class|struct|enum class|enum)\s+(?:TW_\w+(?:\([^)]*\))?\s+)?"
    r"(\w+)(?:\s+final)?\s*(?::[^{;]*)?\{",
    re.MULTILINE,
)
# Each transport has these under names that are the same in all of them.
OF_EACH_TRANSPORT = {"Settings", "Connector", "Acceptor"}


def types(core: Path) -> dict[str, set[str]]:
    """The types at the top of each file, with the files that define them. A file and its header
    are one unit."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted([*core.rglob("*.h"), *core.rglob("*.cc")]):
        here = file.relative_to(core)
        if here.parts[0] in {"test", "fuzz"}:
            continue
        for match in TYPE.finditer(file.read_text()):
            found[match[1]].add(str(here.with_suffix("")))
    return found


def shared(core: Path) -> dict[str, list[str]]:
    return {
        name: sorted(units)
        for name, units in types(core).items()
        if len(units) > 1 and name not in OF_EACH_TRANSPORT
    }


def test_no_two_types_of_the_core_share_a_name() -> None:
    assert len(types(CORE)) > 200
    assert shared(CORE) == {}


def test_types_that_share_a_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("struct Event {\n};\nclass Link;\nstruct A::Inner {\n};\n")
    (tmp_path / "a.cc").write_text("struct Event {\n};\n")
    (tmp_path / "b.h").write_text("enum class Event : uint8_t { kOne };\nclass Link final {\n};\n")
    assert shared(tmp_path) == {"Event": ["a", "b"]}


def test_the_glossary_names_what_there_is() -> None:
    text = GLOSSARY.read_text()
    words = re.findall(r"^\| \*\*([^*]+)\*\* \|", text, re.MULTILINE)
    assert len(words) > 25
    assert words == sorted(words, key=str.lower), "in the order of the alphabet"
    paths = re.findall(r"`((?:core|src)/[\w./]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
