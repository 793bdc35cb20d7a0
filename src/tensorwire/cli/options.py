# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have, and how wrong ones end a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from tensorwire.cli.group import TRANSPORTS

S = TypeVar("S")
T = TypeVar("T")

DAY: Final = 86400.0
"""The most seconds that an option takes: what the system waits for is not without end."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Rounds = Annotated[int, typer.Option(min=1, help="Each visits every contender once.")]
Seconds = Annotated[float, typer.Option(min=0.001, max=DAY, help="Time of one visit.")]
Transport = Annotated[
    list[str],
    typer.Option(
        help=f"Any of {TRANSPORTS}; repeat or separate by commas.",
        show_default="all of this host",
    ),
]
Output = Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")]
Csv = Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")]
Plot = Annotated[
    Path | None, typer.Option(help="Draw time over size into this file (needs matplotlib).")
]
Program = Annotated[
    list[str],
    typer.Argument(
        metavar="PROGRAM",
        show_default=False,
        help="What to run, with its arguments, as without tensorwire.",
    ),
]


def words(option: str, text: str) -> list[str]:
    """The words of a comma list, each once; an empty list ends the command with code 2."""
    found = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise typer.BadParameter("the list is empty", param_hint=option)
    return found


def choices(option: str, text: str, allowed: Iterable[str]) -> list[str]:
    """``words``, each one of ``allowed``; else the command ends with code 2."""
    permitted = list(allowed)
    chosen = words(option, text)
    for word in chosen:
        if word not in permitted:
            names = ", ".join(permitted)
            raise typer.BadParameter(f"{word!r} is none of {names}", param_hint=option)
    return chosen


def transports(given: list[str], *others: str) -> list[str]:
    """``choices`` of ``--transport`` among the transports and ``others``. Where none is given, the
    transports that this process can have links by, best first."""
    from tensorwire.transports import names, why_not

    if not given:
        return [name for name in names() if why_not(name) is None]
    return choices("--transport", ",".join(given), (*names(), *others))


SIZES = "by commas or as FROM:TO:FACTOR (8:64M:4); K, M and G are powers of 1024."
"""Of ``sizes_of``: the end of its option's help."""


def size_of(option: str, text: str, least: int = 0, multiple: int = 8) -> int:
    """Bytes, as ``8``, ``512K`` or ``64M``: at least so many, and a multiple of so many; else the
    command ends with code 2."""
    from tensorwire.bench.harness.work import parse_size

    return _enough(option, usage(option, lambda word: parse_size(word, multiple), text), least)


def sizes_of(option: str, text: str, least: int = 0, multiple: int = 8) -> list[int]:
    """``size_of`` each word of a comma list, and of ranges in it, as ``8:64M:4``; each once."""
    from tensorwire.bench.harness.work import parse_sizes

    found = [
        _enough(option, size, least)
        for word in words(option, text)
        for size in usage(option, lambda word: parse_sizes(word, multiple), word)
    ]
    return list(dict.fromkeys(found))


def _enough(option: str, size: int, least: int) -> int:
    if size < least:
        raise typer.BadParameter(f"must be at least {least}", param_hint=option)
    return size


def writable(option: str, path: Path | None, check: Callable[[Path], None] | None = None) -> None:
    """The command ends with code 2 when it could not write this file at its end. check: raises
    ValueError for a file that will not do; by default, for one that cannot be written."""
    if path is not None:
        from tensorwire.bench.harness.files import check_file

        usage(option, check or check_file, path)


def usage(option: str, parse: Callable[[S], T], given: S) -> T:
    """``parse(given)``; a ValueError ends the command with code 2."""
    try:
        return parse(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@contextmanager
def starting() -> Iterator[None]:
    """A program that cannot be started within it ends the command with code 127."""
    from tensorwire.launch import NotStartedError

    try:
        yield
    except NotStartedError as error:
        print(f"tensorwire: {error}", file=sys.stderr)
        raise typer.Exit(127) from None
