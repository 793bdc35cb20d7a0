# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench weights``: its options, and what it hands over."""

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
    "[bold]tensorwire bench weights[/]\n\n"
    "[bold]tensorwire bench weights --cases adopted --sizes 64M,1G --rounds 9[/]\n\n"
    "[bold]tensorwire bench weights --cases copied,resharded --peers none[/]\n\n"
    "[bold]tensorwire bench weights --peers grpcio --json --output figures.json[/]\n\n"
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why; --peers all misses"
    " no peer that is not installed) or a file could not be written, 2 wrong usage, 130 after "
    "Ctrl-C, which ends with the figures that there are.",
)
def weights(
    cases: Annotated[
        str,
        typer.Option(
            help="copied; adopted; published: copied, and what publish() does counts, too; "
            "resharded: copied, from four trainers with rows of each tensor to receivers with "
            "other parts of it."
        ),
    ] = "copied,adopted",
    sizes: Annotated[
        str,
        typer.Option(help="Bytes of all weights together; K, M and G are powers of 1024."),
    ] = "1G",
    receivers: Annotated[int, typer.Option(min=1, help="Processes that receive.")] = 2,
    transports: Annotated[str, typer.Option(help="Tensorwire's: shm, tcp.")] = "shm,tcp",
    rounds: Rounds = 5,
    seconds: Seconds = 0.1,
    peers: Annotated[
        list[str],
        typer.Option(
            help="Others to measure: gloo, grpcio, mpich, what else is installed, all, or none."
        ),
    ] = ["all"],  # noqa: B006
    limits: Annotated[bool, typer.Option(help="What memory allows, as a limit line.")] = True,
    output: Output = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure weight syncs: Tensorwire against gloo, grpcio and MPI, in interleaved rounds.

    Every contender is a trainer and its receivers, each in a process of its own on this host. A row
    is printed only when the receivers held what the trainer had, and no more bytes had moved than
    both ends have in common.
    """
    from tensorwire.bench.harness.files import check_plot
    from tensorwire.bench.harness.handover import measured
    from tensorwire.bench.harness.work import parse_size
    from tensorwire.bench.suites.weights.contender import CASES, find, names
    from tensorwire.bench.suites.weights.suite import LIMIT, OWN, Options, Weights

    def size(text: str) -> int:
        found = usage("--sizes", parse_size, text)
        if found == 0:
            raise typer.BadParameter("must be more than 0", param_hint="--sizes")
        return found

    others = [name for name in names() if name not in (*OWN, LIMIT)]
    named = words("--peers", ",".join(peers))
    if "none" in named and len(named) > 1:
        raise typer.BadParameter("'none' and others at the same time", param_hint="--peers")
    named = [name for name in named if name != "none"]
    for name in named:
        usage("--peers", lambda name: name == "all" or find(name), name)
    chosen = [*(name for name in named if name != "all"), *(others if "all" in named else ())]
    wanted = Options(
        cases=choices("--cases", cases, CASES),
        sizes=[size(word) for word in words("--sizes", sizes)],
        receivers=receivers,
        transports=choices("--transports", transports, ("shm", "tcp")),
        peers=list(dict.fromkeys(chosen)),
        limits=limits,
        rounds=rounds,
        seconds=seconds,
        may_lack=[name for name in others if name not in named],
    )
    writable("--output", output)
    writable("--plot", plot, check_plot)
    suite = usage("--peers", Weights.of, wanted)
    raise typer.Exit(measured(suite, output, json_, plot))
