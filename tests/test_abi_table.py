# SPDX-License-Identifier: Apache-2.0
"""The function table of the C ABI holds every function that its header declares, once."""

from __future__ import annotations

import re
from pathlib import Path

HEADER = (Path(__file__).resolve().parents[1] / "core" / "tensorwire.h").read_text()
DECLARATION = re.compile(r"^[a-z][\w *]*?\b(tw_\w+)\(", re.MULTILINE)
ENTRY = re.compile(r"^  ENTRY\((\w+), (tw_\w+)\)", re.MULTILINE)


def test_every_function_is_in_the_table() -> None:
    declared = [
        match[1]
        for match in DECLARATION.finditer(HEADER)
        if not match[0].startswith(("typedef", "static"))
    ]
    entries = ENTRY.findall(HEADER)
    assert len(declared) > 100
    assert sorted(function for _, function in entries) == sorted(set(declared) - {"tw_get_table"})
    # `version` is the table's own.
    assert [(name, f) for name, f in entries if f != f"tw_{name}"] == [
        ("runtime_version", "tw_version")
    ]
