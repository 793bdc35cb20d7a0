# SPDX-License-Identifier: Apache-2.0
"""Markdown that people write is wrapped at 100 columns, but for tables, code and where links go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100
WHERE = re.compile(r"(?<=\])\([^)]*\)|^\[[^]]+\]: \S+|<https?:[^>]*>")


def pages() -> Iterator[Path]:
    """Those of docs/benchmarks are made."""
    yield from ROOT.glob("*.md")
    for folder in ("docs", "examples", ".github"):
        for page in (ROOT / folder).rglob("*.md"):
            if ROOT / "docs" / "benchmarks" not in page.parents:
                yield page


def too_long(text: str) -> Iterator[int]:
    """The numbers of lines; those between the marks of figures are made."""
    code = made = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif line.startswith(("<!-- figures: ", "<!-- end of figures")):
            made = line.startswith("<!-- figures: ")
        elif not (code or made) and not line.startswith("|") and len(WHERE.sub("", line)) > COLUMNS:
            yield number


def test_markdown_is_wrapped() -> None:
    found = {page.relative_to(ROOT).as_posix(): [*too_long(page.read_text())] for page in pages()}
    assert {"README.md", "docs/guide.md"} <= found.keys()
    assert {page: lines for page, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("word " * 20 + "\n" + "word " * 21, [2]),
        ("- [here](" + "x" * 100 + ")", []),
        ("- [here](there)" + "x" * 100, [1]),
        ("| " + "word " * 21 + "|", []),
        ("<!-- figures: a -->\n" + "word " * 21 + "\n<!-- end of figures -->", []),
        ("```text\n" + "word " * 21 + "\n```\n" + "word " * 21, [4]),
    ],
)
def test_lines_that_are_too_long_are_found(text: str, lines: list[int]) -> None:
    assert [*too_long(text)] == lines
