# SPDX-License-Identifier: Apache-2.0
"""What the commands that measure a suite have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar

import typer

from tensorwire.cli.group import Command
from tensorwire.cli.options import usage, words, writable

if TYPE_CHECKING:
    from tensorwire.bench.harness.rows import Report
    from tensorwire.bench.harness.suite import Suite

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

CODES: Final = (
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why; --peers all misses"
    " no peer that is not installed) or a file could not be written, 2 wrong usage, 130 after "
    "Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, which end with the figures that there are."
)


def epilog(name: str, *examples: str, launcher: str = "") -> str:
    """The end of a command's help. examples: arguments. launcher: what starts it on several
    ranks."""
    command = f"tensorwire bench {name}"
    lines = [command, *(f"{command} {each}" for each in examples)]
    if launcher:
        lines.append(f"{launcher} {command}")
    return "\n\n".join(("Examples:", *(f"[bold]{line}[/]" for line in lines), CODES))


def command(app: typer.Typer, name: str, *examples: str) -> Callable[[F], F]:
    """Makes a function the one command of ``app``. examples: as of ``epilog``."""
    return app.command(cls=Command, epilog=epilog(name, *examples))


class Peers(NamedTuple):
    """Other contenders: those to measure, and those of them that may be missing."""

    chosen: list[str]
    may_lack: list[str]

    @classmethod
    def of(
        cls, given: list[str], others: Sequence[str], find: Callable[[str], object], *own: str
    ) -> Peers:
        """What --peers says: names that ``find`` knows, ``all`` of the others, or ``none``; else
        the command ends with code 2. own: may be missing, too, where nobody names it."""
        named = words("--peers", ",".join(given)) if given else []
        if "none" in named and len(named) > 1:
            raise typer.BadParameter("'none' and others at the same time", param_hint="--peers")
        named = [name for name in named if name != "none"]
        for name in named:
            usage("--peers", lambda name: name == "all" or find(name), name)
        chosen = [*(name for name in named if name != "all"), *(others if "all" in named else ())]
        return cls(
            list(dict.fromkeys(chosen)), [name for name in (*others, *own) if name not in named]
        )


def measure(
    option: str,
    make: Callable[[T], Suite],
    wanted: T,
    output: Path | None,
    json_: bool,
    plot: Path | None,
    draw: Callable[[Report, Path], None] | None = None,
    csv: Path | None = None,
) -> NoReturn:
    """Ends the command with the figures of the suite that ``make`` makes, or with code 2 where that
    raises ValueError, because of ``option``. draw: the picture, where the suite has one of its
    own."""
    from tensorwire.bench.harness.files import check_plot
    from tensorwire.bench.harness.handover import measured
    from tensorwire.bench.harness.report import plot as over_sizes

    writable("--output", output)
    writable("--plot", plot, check_plot)
    writable("--csv", csv)
    suite = usage(option, make, wanted)
    raise typer.Exit(measured(suite, output, json_, plot, draw or over_sizes, csv))
