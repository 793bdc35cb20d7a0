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
        "remote": "Measure access to memory of another process: Tensorwire against NIXL, MPI, "
        "JAX and memcpy.",
        "p2p-latency": "TF-gRPC-Bench: how long a call takes whose payload a server echoes.",
        "p2p-bandwidth": "TF-gRPC-Bench: what a worker pushes to a server in a second.",
        "ps-throughput": "TF-gRPC-Bench: calls of workers to parameter servers in a second.",
        "mimic": "Calls between nodes that all call each other, as in distributed TensorFlow.",
        "collectives": "Measure collectives: Tensorwire against gloo and MPI, in interleaved "
        "rounds.",
        "channels": "Measure training steps over each channel for gradients, in interleaved "
        "rounds.",
        "queue": "Measure queues: Tensorwire against grpcio, multiprocessing and torch, in "
        "interleaved rounds.",
        "weights": "Measure weight syncs: Tensorwire against gloo, grpcio, MPI and NIXL, in "
        "interleaved rounds.",
        "tensorflow": "Measure steps of TensorFlow sessions: tensorwire against stock gRPC, in "
        "interleaved rounds.",
        "torch": "Measure training steps of PyTorch: Tensorwire's back end against gloo, in "
        "interleaved rounds.",
        "compare": "Compare two runs of a bench, and fail where rows of Tensorwire became slower "
        "beyond noise.",
    }


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


@app.callback()
def bench() -> None:
    """Measure Tensorwire against others."""
