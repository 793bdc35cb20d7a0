# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench``: a file for each command."""

from __future__ import annotations

from typing import ClassVar

import typer

from tensorwire.cli.group import Group


class Commands(Group):
    home = __name__
    summaries: ClassVar = {
        "rpc": "Measure calls and streams: Tensorwire against stock grpcio, in interleaved rounds.",
        "remote": "Measure access to memory of another process: Tensorwire against NIXL, MPI and "
        "memcpy.",
        "collectives": "Measure collectives: Tensorwire against gloo and MPI, in interleaved "
        "rounds.",
        "channels": "Measure training steps over each channel for gradients, in interleaved "
        "rounds.",
        "tensorflow": "Measure steps of TensorFlow sessions: tensorwire against stock gRPC, in "
        "interleaved rounds.",
    }


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


@app.callback()
def bench() -> None:
    """Measure Tensorwire against others."""
