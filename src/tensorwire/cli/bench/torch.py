# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench torch``: its options, and what it hands over."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorwire.cli.bench.figures import Peers, command, measure
from tensorwire.cli.group import single
from tensorwire.cli.options import (
    DAY,
    SIZES,
    Csv,
    Json,
    Output,
    Plot,
    Rounds,
    Seconds,
    choices,
    sizes_of,
)

app = single()


@command(
    app,
    "torch",
    "--cases ddp --sizes 96M --compute 0 --rounds 9",
    "--cases fsdp,zero --ranks 4 --json --output figures.json",
)
def torch(
    cases: Annotated[
        str,
        typer.Option(
            help="ddp (DistributedDataParallel), fsdp (fully_shard), zero (ZeroRedundancyOptimizer "
            "with ddp)."
        ),
    ] = "ddp,fsdp,zero",
    sizes: Annotated[
        str, typer.Option(help=f"About the bytes of gradients, {SIZES}")
    ] = "6M,16M,64M",
    ranks: Annotated[int, typer.Option(min=2, help="Processes that train.")] = 2,
    compute: Annotated[
        float,
        typer.Option(min=0, max=DAY, help="Seconds of a core that a step of one process takes."),
    ] = 0.1,
    rounds: Rounds = 5,
    seconds: Seconds = 1.0,
    peers: Annotated[
        list[str],
        typer.Option(help="Others to measure: gloo, what else is installed, all, or none."),
    ] = ["all"],  # noqa: B006
    output: Output = None,
    csv: Csv = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure training steps of PyTorch: Tensorwire's back end against gloo, in interleaved rounds.

    A model of linear layers is trained by several ranks, one core for each. A step is forward,
    backward and optimizer. The first one is compared with that of one process which trains on all
    batches.
    """
    from tensorwire.bench.suites.torch.contender import find, names
    from tensorwire.bench.suites.torch.suite import LIMIT, OWN, Options, Trainings
    from tensorwire.bench.suites.torch.training import WAYS

    others = [name for name in names() if name not in (OWN, LIMIT)]
    compared = Peers.of(peers, others, find)
    wanted = Options(
        cases=choices("--cases", cases, WAYS),
        sizes=sizes_of("--sizes", sizes),
        ranks=ranks,
        compute=compute,
        peers=compared.chosen,
        rounds=rounds,
        seconds=seconds,
        may_lack=compared.may_lack,
    )
    measure("--peers", Trainings.of, wanted, output, json_, plot, csv=csv)
