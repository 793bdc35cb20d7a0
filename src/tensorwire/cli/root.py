# SPDX-License-Identifier: Apache-2.0
"""What the command says of itself, and its version, both before Typer is imported: that takes
longer than all else in them. The look is Typer's."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

HELP: Final = "Tensor communication for gRPC services and distributed training."
OPTIONS: Final = {
    "--version": ("-V", "Print the version."),
    "--install-completion": ("", "Install completion for the current shell."),
    "--show-completion": (
        "",
        "Show completion for the current shell, to copy it or customize the installation.",
    ),
    "--help": ("-h", "Show this message and exit."),
}
"""Of each option, its short form and its help."""
COMMANDS: Final = {
    "train": "Train a network on a TensorFlow cluster and print its speed, as "
    "tf_cnn_benchmarks does.",
    "run": "Run a TensorFlow or JAX program as it is, with tensorwire between its processes.",
    "trace": "Run a program, and show the protocol steps of every link in all of its processes.",
    "profile": "Run a program, and show how large its messages are, and by which protocol they "
    "went.",
    "doctor": "Show what this host has, what calls to TARGET would get, and what mends the rest.",
    "bench": "Measure Tensorwire against others.",
    "graph": "Show which tensors cross machines in a step of a program, and what memory that "
    "takes.",
    "report": "Make a page of figures: one HTML file, which needs no network.",
    "tune": "Measure what is fastest on this host, and keep that for programs to use.",
}
"""Of each command, the first paragraph of its help."""

LOOKS: Final = {
    *("FORCE_COLOR", "GITHUB_ACTIONS", "JUPYTER_COLUMNS", "NO_COLOR", "PY_COLORS"),
    *("TERMINAL_WIDTH", "TTY_COMPATIBLE", "TYPER_USE_RICH", "_TYPER_FORCE_DISABLE_TERMINAL"),
}
"""Variables that change how Typer's help looks."""
NARROWEST: Final = len(HELP) + 2
"""Columns from which on nothing is wrapped but the last column of a table."""

BOLD, DIM, NAME, SHORT, USAGE, TYPE, BRACKET = "1", "2", "1;36", "1;32", "1;33", "1;33", "1;2;33"

Line = list[tuple[str, str]]
"""Pieces of text, each after its style: the parameters of a terminal's escape sequence, or none."""


def answered(command: str, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this was all that these arguments ask for. Where the help would look otherwise than
    here, it is left to Typer."""
    if arguments in (["--version"], ["-V"]):
        print_version()
        return True
    if arguments not in (["--help"], ["-h"]) or os.path.basename(command) != "tensorwire":
        return False
    if sys.stdout is None:  # closed before this process started
        return True
    columns = width(environment)
    plain = LOOKS.isdisjoint(environment) and environment.get("TERM") not in ("dumb", "unknown")
    if not plain or columns < NARROWEST or sys.stdout.encoding.lower() != "utf-8":
        return False
    print(text(columns, coloured=sys.stdout.isatty()), flush=True)
    return True


def print_version() -> None:
    from importlib.metadata import version

    print(version("tensorwire"), flush=True)


def width(environment: Mapping[str, str]) -> int:
    """Columns of the terminal, or 80."""
    given = environment.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return int(given)
    for descriptor in range(3):
        with suppress(OSError):
            return os.get_terminal_size(descriptor).columns or 80
    return 80


def text(columns: int, coloured: bool) -> str:
    """The help, in so many columns."""
    blank: Line = [("", " " * columns)]
    usage = "tensorwire [OPTIONS] COMMAND [ARGS]..."
    lines = [
        *(blank, [("", " "), (USAGE, "Usage: "), (BOLD, f"{usage:{columns - 8}}")], blank),
        *([("", f" {HELP:{columns - 1}}")], blank),
        *panel("Options", columns, options(columns - 4)),
        *panel("Commands", columns, commands(columns - 4)),
    ]
    return "".join("".join(painted(*piece, coloured) for piece in line) + "\n" for line in lines)


def painted(style: str, words: str, coloured: bool) -> str:
    return f"\033[{style}m{words}\033[0m" if coloured and style else words


def panel(title: str, columns: int, rows: list[Line]) -> list[Line]:
    """A frame with the rows in it."""
    side = (DIM, "│")
    return [
        [(DIM, f"╭─ {title} {'─' * (columns - len(title) - 5)}╮")],
        *([side, ("", " "), *content, ("", " "), side] for content in rows),
        [(DIM, f"╰{'─' * (columns - 2)}╯")],
    ]


def options(columns: int) -> list[Line]:
    names = max(len(name) for name in OPTIONS)
    rows: list[Line] = []
    for name, (letter, words) in OPTIONS.items():
        # Between the short form and the type, there is room for options that can be negated.
        head: Line = [
            *((NAME, name), ("", " " * (names - len(name) + 2))),
            *((SHORT, letter), ("", " " * (8 - len(letter)))),
            *((BRACKET, "<"), (TYPE, "bool"), (BRACKET, ">"), ("", "  ")),
        ]
        rows += row(head, words, columns)
    return rows


def commands(columns: int) -> list[Line]:
    names = max(len(name) for name in COMMANDS)
    rows: list[Line] = []
    for name, words in COMMANDS.items():
        rows += row([(NAME, f"{name:{names + 1}}"), ("", " ")], words, columns)
    return rows


def row(head: Line, words: str, columns: int) -> list[Line]:
    """A row of a table, as wide as this: what it begins with, and beside that the words."""
    left = sum(len(piece) for _, piece in head)
    room = columns - left
    lines = wrapped(words, room)
    return [
        [*([("", " " * left)] if i else head), ("", f"{line:{room}}")]
        for i, line in enumerate(lines)
    ]


def wrapped(words: str, room: int) -> list[str]:
    lines: list[str] = []
    for word in words.split():
        if lines and len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
