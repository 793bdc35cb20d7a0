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

TYPE = re.compile(
    r"^ *(?:class|struct|enum class|enum)\s+(?:TW_\w+(?:\([^)]*\))?\s+)?"
    r"(\w+)(?:\s+final)?\s*(?::[^{;]*)?\{",
    re.MULTILINE,
)
# Each transport has these under names that are the same in all of them.
OF_EACH_TRANSPORT = {"Settings", "Connector", "Acceptor"}
# Within another type these say what they are of it, and are read with its name.
PARTS_OF_TYPES = {
    "Asked",
    "Cursor",
    "Entry",
    "Given",
    "Kind",
    "Lent",
    "Mapped",
    "Opened",
    "Posted",
    "Rule",
    "State",
    "Step",
    "Sum",
    "Waiter",
    "Window",
    "Word",
}


def types(core: Path) -> dict[str, set[str]]:
    """The types of each file, also those within others, with the files that define them. A file
    and its header are one unit."""
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
        if len(units) > 1 and name not in OF_EACH_TRANSPORT | PARTS_OF_TYPES
    }


def test_no_two_types_of_the_core_share_a_name() -> None:
    found = types(CORE)
    assert len(found) > 300
    assert shared(CORE) == {}
    assert {name for name in PARTS_OF_TYPES if len(found[name]) < 2} == set(), "no exceptions now"


def test_types_that_share_a_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("struct Event {\n};\nclass Link;\nstruct A::Inner {\n};\n")
    (tmp_path / "a.cc").write_text("struct Event {\n};\n")
    (tmp_path / "b.h").write_text(
        "enum class Event : uint8_t { kOne };\nclass Link final {\n  struct Kind {\n  };\n"
        "  class Sink {\n  };\n};\n"
    )
    (tmp_path / "c.h").write_text("class Sink {\n  enum class Kind : uint8_t { kOne };\n};\n")
    assert shared(tmp_path) == {"Event": ["a", "b"], "Sink": ["b", "c"]}


def test_the_glossary_names_what_there_is() -> None:
    text = GLOSSARY.read_text()
    words = re.findall(r"^\| \*\*([^*]+)\*\* \|", text, re.MULTILINE)
    assert len(words) > 25
    assert words == sorted(words, key=str.lower), "in the order of the alphabet"
    paths = re.findall(r"`((?:core|src)/[\w./]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
