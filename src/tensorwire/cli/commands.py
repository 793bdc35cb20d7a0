# SPDX-License-Identifier: Apache-2.0
"""All commands, as Typer sees them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tensorwire.cli import root
from tensorwire.cli.group import Group


class Commands(Group):
    """What ends them from outside ends them in order."""

    home = "tensorwire.cli"
    summaries = root.COMMANDS

    def get_params(self, ctx: Any) -> Any:
        found: Any = super().get_params(ctx)
        for option in found:
            _, option.help = root.OPTIONS[next(word for word in option.opts if word[:2] == "--")]
        return found

    def invoke(self, ctx: Any) -> Any:
        from tensorwire import signals

        with signals.ending():
            return super().invoke(ctx)


app = typer.Typer(
    name="tensorwire",
    cls=Commands,
    help=root.HELP,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def common(version: Annotated[bool, typer.Option("--version", "-V")] = False) -> None:
    if version:
        root.print_version()
        raise typer.Exit
