# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench channels``: its options, and what it hands over."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorwire.cli.bench.figures import Peers, command, measure
from tensorwire.cli.group import single
from tensorwire.cli.options import DAY, Csv, Json, Output, Plot, Rounds, Seconds, usage, words

app = single()


@command(
    app,
    "channels",
    "--model googlenet --ranks 2,4 --compute 0.2",
    "--peers hybrid,gloo --compute 0 --plot channels.png",
)
def channels(
    model: Annotated[
        str, typer.Option(help="Whose gradients: resnet50, googlenet, alexnet, lstm, ...")
    ] = "resnet50",
    ranks: Annotated[str, typer.Option(help="Processes that train.")] = "1,2,4",
    batch: Annotated[int, typer.Option(min=1, help="Images of a step on each rank.")] = 32,
    compute: Annotated[
        float,
        typer.Option(
            min=0, max=DAY, help="Seconds that a step computes on one idle core, before it sends."
        ),
    ] = 0.1,
    rounds: Rounds = 5,
    seconds: Seconds = 1.0,
    peers: Annotated[
        list[str],
        typer.Option(
            help="grpcio, tensorwire (parameter servers), horovod, ring, hybrid, gloo, mpich, "
            "openmpi, what else is installed, or all."
        ),
    ] = ["all"],  # noqa: B006
    output: Output = None,
    csv: Csv = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure training steps over each channel for gradients, in interleaved rounds.

    A step computes, and averages gradients of a well-known model's sizes over all ranks: by a
    parameter server over stock gRPC and over tensorwire, by Horovod's API, by the hybrid
    all-reduce, by Baidu's ring, by gloo and by MPI. The averages are checked.
    """
    from tensorwire.bench.suites.channels.contender import find, names
    from tensorwire.bench.suites.channels.suite import LIMIT, Channels, Options
    from tensorwire.bench.suites.channels.suite import plot as draw

    def many(word: str) -> int:
        if not word.isdigit() or not 1 <= int(word) <= 1024:
            raise ValueError(f"{word!r} is no number of ranks: write 1, 2 or 4")
        return int(word)

    everyone = [Channels.baseline.contender, *(n for n in names() if n not in ("grpcio", LIMIT))]
    compared = Peers.of(peers, everyone, find)
    wanted = Options(
        model=model,
        ranks=[usage("--ranks", many, word) for word in words("--ranks", ranks)],
        batch=batch,
        compute=compute,
        peers=list(dict.fromkeys((LIMIT, *compared.chosen))),
        rounds=rounds,
        seconds=seconds,
        may_lack=compared.may_lack,
    )
    measure("--model", Channels.of, wanted, output, json_, plot, draw, csv=csv)
