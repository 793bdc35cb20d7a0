# SPDX-License-Identifier: Apache-2.0
"""``tensorwire tune``: a file for each command."""

from __future__ import annotations

from typing import ClassVar

import typer

from tensorwire.cli.group import Group


class Commands(Group):
    home = __name__
    summaries: ClassVar = {
        "links": "Measure at which sizes messages should change their protocol, and keep that for "
        "links to use.",
        "collectives": "Measure which ways collectives are fastest on this host, and keep that for "
        "groups to use.",
    }


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


@app.callback()
def tune() -> None:
    """Measure what is fastest on this host, and keep that for programs to use."""
