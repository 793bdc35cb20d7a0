# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench queue``: its options, and what it hands over."""

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
    sizes_of,
    transports,
)

app = single()


@command(
    app,
    "queue",
    "--sizes 1K,16M --producers 4 --rounds 9",
    "--transport tcp --peers multiprocessing --json",
)
def queue(
    transport: Transport = [],  # noqa: B006
    sizes: Annotated[str, typer.Option(help=f"Bytes of an item, {SIZES}")] = "1K,1M,16M",
    producers: Annotated[int, typer.Option(min=1, max=64, help="Processes that put.")] = 2,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    peers: Annotated[
        list[str],
        typer.Option(
            help="Beside grpcio: multiprocessing, torch, what else is installed, all, or none."
        ),
    ] = ["all"],  # noqa: B006
    output: Output = None,
    csv: Csv = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure queues: Tensorwire against grpcio, multiprocessing and torch, in interleaved rounds.

    Several processes put arrays, one gets them. It reads all of each item and checks it.
    """
    from tensorwire.bench.suites.queue.contender import find, names
    from tensorwire.bench.suites.queue.suite import OWN, Options, Queues

    others = [name for name in names() if name not in (OWN, Queues.baseline.contender)]
    compared = Peers.of(peers, others, find)
    wanted = Options(
        transports=transports(transport),
        sizes=sizes_of("--sizes", sizes, 8),
        producers=producers,
        peers=compared.chosen,
        rounds=rounds,
        seconds=seconds,
        may_lack=compared.may_lack,
    )
    measure("--peers", Queues.of, wanted, output, json_, plot, csv=csv)
