# SPDX-License-Identifier: Apache-2.0
"""The function table of the C ABI holds every function that its headers declare, once."""

from __future__ import annotations

import re
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "core"
HEADERS = sorted((CORE / "tensorwire").glob("*.h"))
TEXT = "".join(header.read_text() for header in HEADERS)
DECLARATION = re.compile(r"^[a-z][\w *]*?\b(tw_\w+)\(", re.MULTILINE)
# A function that has a status, to the line before the next one.
DEFINITION = re.compile(
    r"^[a-z][\w *]*?\b(tw_\w+)\([^;{]*\btw_status\* status\)(?: try)? \{\n(.*?)^\}$",
    re.MULTILINE | re.DOTALL,
)
HANDED_ON = re.compile(r"  return tw_\w+\([^;]*;\n")
ENTRY = re.compile(r"^  ENTRY\((\w+), (tw_\w+)\)", re.MULTILINE)


def test_every_function_is_in_the_table() -> None:
    declared = [
        match[1]
        for match in DECLARATION.finditer(TEXT)
        if not match[0].startswith(("typedef", "static"))
    ]
    entries = ENTRY.findall(TEXT)
    assert len(declared) > 100
    assert sorted(function for _, function in entries) == sorted(set(declared) - {"tw_get_table"})
    # `version` is the table's own.
    assert [(name, f) for name, f in entries if f != f"tw_{name}"] == [
        ("runtime_version", "tw_version")
    ]


def test_want_of_memory_is_a_status() -> None:
    """What can tell one has a handler of std::bad_alloc, or hands on to a function that has one:
    nothing is thrown across the ABI."""
    bodies = {
        match[1]: match[2]
        for file in sorted((CORE / "abi").glob("*.cc"))
        for match in DEFINITION.finditer(file.read_text())
    }
    assert len(bodies) > 50
    bare = {
        name
        for name, body in bodies.items()
        if "catch (const std::bad_alloc&)" not in body and HANDED_ON.fullmatch(body) is None
    }
    assert bare == set()


def test_the_header_includes_every_part() -> None:
    header = (CORE / "tensorwire.h").read_text()
    assert re.findall(r'#include "tensorwire/(\w+)\.h"', header) == [each.stem for each in HEADERS]
