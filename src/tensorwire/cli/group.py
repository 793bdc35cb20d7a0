# SPDX-License-Identifier: Apache-2.0
"""Groups of commands whose files are imported when they are called, and help that comes fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import typer
import typer.core
import typer.main

TRANSPORTS = "{transports}"
"""In the help of an option: the names of the transports. The table of them is in the core, which is
loaded for the help of that command alone."""


class Command(typer.core.TyperCommand):
    """One command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        option: Any
        for option in self.params:
            if TRANSPORTS in (getattr(option, "help", None) or ""):
                from tensorwire.transports import names

                option.help = option.help.replace(TRANSPORTS, ", ".join(names()))
        with without_unused():
            super().format_help(ctx, formatter)


class Group(typer.core.TyperGroup):
    """Commands, each the ``app`` of the module ``home.name``, with ``_`` for ``-``. That module is
    imported when the command is called or asked for its help; for the help of the group,
    ``summaries`` will do."""

    home: ClassVar[str]
    summaries: ClassVar[Mapping[str, str]]
    """Of each command, the first paragraph of its help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, summary in self.summaries.items():
            self.add_command(typer.core.TyperCommand(name, help=summary))

    def parse_args(self, ctx: Any, args: Any) -> Any:
        # Typer's own flags have no default, and to convert that it would import pydantic, which
        # takes longer than all that help needs.
        for flag in self.get_params(ctx):
            if flag.default is None:
                flag.default = False
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, stand_in and self.load(str(name)), rest

    def load(self, name: str) -> Any:
        command = typer.main.get_command(import_module(f"{self.home}.{name.replace('-', '_')}").app)
        command.name = name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with without_unused():
            super().format_help(ctx, formatter)


def single() -> typer.Typer:
    """The ``app`` of a module that holds one command."""
    return typer.Typer(add_completion=False, rich_markup_mode="rich")


UNUSED = ("rich.markdown", "rich.traceback")


@contextmanager
def without_unused() -> Iterator[None]:
    """Typer's help imports modules for features that are not used here, and these cost more time
    than all the rest of it. Within this, they have names but nothing behind them."""
    absent = {name: _Absent(name) for name in UNUSED if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


class _Absent(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object
