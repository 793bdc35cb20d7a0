# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench torch``: its options, and what it hands over."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import (
    Json,
    Output,
    Plot,
    Rounds,
    Seconds,
    choices,
    usage,
    words,
    writable,
)

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire bench torch[/]\n\n"
    "[bold]tensorwire bench torch --cases ddp --sizes 96M --compute 0 --rounds 9[/]\n\n"
    "[bold]tensorwire bench torch --cases fsdp,zero --ranks 4 --json --output figures.json[/]\n\n"
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why; --peers all misses"
    " no peer that is not installed) or a file could not be written, 2 wrong usage, 130 after "
    "Ctrl-C, which ends with the figures that there are.",
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
        str, typer.Option(help="Bytes of gradients, about; K, M and G are powers of 1024.")
    ] = "6M,16M,64M",
    ranks: Annotated[int, typer.Option(min=2, help="Processes that train.")] = 2,
    compute: Annotated[
        float,
        typer.Option(min=0, help="Seconds of a core that a step of one process takes."),
    ] = 0.1,
    rounds: Rounds = 5,
    seconds: Seconds = 1.0,
    peers: Annotated[
        list[str],
        typer.Option(help="Others to measure: gloo, what else is installed, all, or none."),
    ] = ["all"],  # noqa: B006
    output: Output = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure training steps of PyTorch: Tensorwire's back end against gloo, in interleaved rounds.

    A model of linear layers is trained by several ranks, one core for each. A step is forward,
    backward and optimizer. The first one is compared with that of one process which trains on all
    batches.
    """
    from tensorwire.bench.harness.files import check_plot
    from tensorwire.bench.harness.handover import measured
    from tensorwire.bench.harness.work import parse_size
    from tensorwire.bench.suites.torch.contender import find, names
    from tensorwire.bench.suites.torch.suite import LIMIT, OWN, Options, Trainings
    from tensorwire.bench.suites.torch.training import WAYS

    others = [name for name in names() if name not in (OWN, LIMIT)]
    named = words("--peers", ",".join(peers))
    if "none" in named and len(named) > 1:
        raise typer.BadParameter("'none' and others at the same time", param_hint="--peers")
    named = [name for name in named if name != "none"]
    for name in named:
        usage("--peers", lambda name: name == "all" or find(name), name)
    chosen = [*(name for name in named if name != "all"), *(others if "all" in named else ())]
    wanted = Options(
        cases=choices("--cases", cases, WAYS),
        sizes=[usage("--sizes", parse_size, word) for word in words("--sizes", sizes)],
        ranks=ranks,
        compute=compute,
        peers=list(dict.fromkeys(chosen)),
        rounds=rounds,
        seconds=seconds,
        may_lack=[name for name in others if name not in named],
    )
    writable("--output", output)
    writable("--plot", plot, check_plot)
    suite = usage("--peers", Trainings.of, wanted)
    raise typer.Exit(measured(suite, output, json_, plot))
