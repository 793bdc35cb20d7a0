# SPDX-License-Identifier: Apache-2.0
"""The function table of the C ABI holds every function that its headers declare, once."""

from __future__ import annotations

import re
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "core"
HEADERS = sorted((CORE / "tensorwire").glob("*.h"))
TEXT = "".join(header.read_text() for header in HEADERS)
DECLARATION = re.compile(r"^[a-z][\w *]*?\b(tw_\w+)\(", re.MULTILINE)
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


def test_the_door_leads_to_every_header() -> None:
    door = (CORE / "tensorwire.h").read_text()
    assert re.findall(r'#include "tensorwire/(\w+)\.h"', door) == [each.stem for each in HEADERS]
