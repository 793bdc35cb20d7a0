# SPDX-License-Identifier: Apache-2.0
"""Tables: as wide as there is room for, no number cut, no padding in a pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.table import Table

from tensorwire import terminal
from tensorwire.terminal import Column

COLUMNS = (
    Column("name", lambda row: f"row {row}", text=True),
    Column("number", lambda row: f"{row:,}"),
    Column("half", lambda row: f"{row / 2:,}", leaves=1),
    Column("double", lambda row: f"{row * 2:,}", leaves=2),
)
ROWS = (1, 1_234_567)


def table(shown: Sequence[Column]) -> Table:
    made = Table(box=None)
    for column in shown:
        column.head(made)
    for row in ROWS:
        made.add_row(*(column.cell(row) for column in shown))
    return made


def printed(width: int, *, as_terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=as_terminal)
    fitting, left_out = terminal.fitted(console, COLUMNS, table)
    terminal.show(console, fitting)
    terminal.tell_left_out(console, left_out)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_all_columns_where_there_is_room() -> None:
    text = printed(80)
    assert "2,469,134" in text
    assert "Without" not in text


@pytest.mark.parametrize(
    ("width", "without"), [(45, ["double"]), (35, ["double"]), (34, ["half", "double"])]
)
def test_columns_leave_and_no_number_is_cut(width: int, without: list[str]) -> None:
    lines = printed(width).splitlines()
    assert lines[2].split()[:3] == ["row", "1234567", "1,234,567"]
    assert not set(without) & set(lines[0].split())
    assert f"Without {', '.join(without)}:" in " ".join(lines[3:])


def test_padding_is_for_terminals_only() -> None:
    assert all(line == line.rstrip() for line in printed(80).splitlines())
    assert any(line != line.rstrip() for line in printed(80, as_terminal=True).splitlines())


def test_the_width_is_what_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal.console().width == terminal.PLAIN_WIDTH
    monkeypatch.setenv("COLUMNS", "93")
    assert terminal.console().width == 93
