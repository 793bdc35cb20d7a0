# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench remote``: its options, and what it hands over."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorwire.cli.bench.figures import Peers, command, measure
from tensorwire.cli.group import single
from tensorwire.cli.options import (
    SIZES,
    Csv,
    Json,
    Output,
    Plot,
    Rounds,
    Seconds,
    Transport,
    choices,
    sizes_of,
    transports,
)

app = single()


@command(
    app,
    "remote",
    "--transport shm --cases read --sizes 8,1M",
    "--peers nixl,mpi --json --output figures.json",
    "--cases read,read_staged --sizes 1M,16M,64M --peers none",
    "--cases jax,jax_published --peers jax",
)
def remote(
    transport: Transport = [],  # noqa: B006
    sizes: Annotated[str, typer.Option(help=f"Bytes of reads, {SIZES}")] = "8,64K,1M,64M",
    cases: Annotated[
        str,
        typer.Option(
            help="read, read_published (of an array in the arena), read_staged (into other memory, "
            "and a copy from there), batch (512 prepared reads of 4 KiB), fetch_add, signal (a "
            "write with a flag, there and back), prepare (describing 100,000 reads of 64 bytes), "
            "jax (an array of JAX, 64 MiB, which is added up; needs JAX), jax_published (one in "
            "the arena)."
        ),
    ] = "read, read_published, batch, fetch_add, signal",
    rounds: Rounds = 5,
    seconds: Seconds = 0.2,
    peers: Annotated[
        list[str],
        typer.Option(
            help="Others to measure: nixl, mpi, jax, what else is installed, all, or none."
        ),
    ] = ["all"],  # noqa: B006
    output: Output = None,
    csv: Csv = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure access to memory of another process: Tensorwire against NIXL, MPI, JAX and memcpy.

    Every contender runs in two processes of its own, an owner of memory and a client on 127.0.0.1.
    A row is printed only when the transport was taken that was asked for.
    """
    from tensorwire.bench.suites.remote.contender import CASES, find, names
    from tensorwire.bench.suites.remote.suite import LIMIT, OWN, Accesses, Options

    others = [name for name in names() if name not in (OWN, LIMIT.contender)]
    compared = Peers.of(peers, others, find)
    wanted = Options(
        transports=transports(transport),
        cases=choices("--cases", cases, CASES),
        sizes=sizes_of("--sizes", sizes),
        peers=compared.chosen,
        rounds=rounds,
        seconds=seconds,
        may_lack=compared.may_lack,
    )
    measure("--peers", Accesses.of, wanted, output, json_, plot, csv=csv)
