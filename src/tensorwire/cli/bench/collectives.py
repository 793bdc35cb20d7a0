# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench collectives``: its options, and what it hands over."""

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
    "[bold]tensorwire bench collectives[/]\n\n"
    "[bold]tensorwire bench collectives --cases all_reduce --sizes 8,64M --rounds 9[/]\n\n"
    "[bold]tensorwire bench collectives --ranks 4 --dtype float16 --peers gloo[/]\n\n"
    "[bold]tensorwire bench collectives --peers mpich,openmpi --json --output figures.json[/]\n\n"
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why; --peers all misses"
    " no peer that is not installed) or a file could not be written, 2 wrong usage, 130 after "
    "Ctrl-C, which ends with the figures that there are.",
)
def collectives(
    cases: Annotated[
        str,
        typer.Option(
            help="all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, barrier, reduce, "
            "gather, scatter."
        ),
    ] = "all_reduce,broadcast,all_gather,reduce_scatter,all_to_all,barrier",
    sizes: Annotated[
        str,
        typer.Option(
            help="Bytes of the larger of a rank's two arrays; K, M and G are powers of 1024."
        ),
    ] = "8,64K,1M,8M,64M,256M",
    ranks: Annotated[int, typer.Option(min=2, help="Processes of a group.")] = 2,
    dtype: Annotated[
        str, typer.Option(help="float32, float64, float16, int8, int32, int64 or uint8.")
    ] = "float32",
    rounds: Rounds = 5,
    seconds: Seconds = 0.1,
    peers: Annotated[
        list[str],
        typer.Option(
            help="Others to measure: gloo, mpich, openmpi, what else is installed, all, or none."
        ),
    ] = ["all"],  # noqa: B006
    limits: Annotated[bool, typer.Option(help="What memory allows, as a limit line.")] = True,
    output: Output = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure collectives: Tensorwire against gloo and MPI, in interleaved rounds.

    Every contender is a group of ranks of this host, each in a process of its own. A row is printed
    only when the results were right.
    """
    from tensorwire.bench.harness.files import check_plot
    from tensorwire.bench.harness.handover import measured
    from tensorwire.bench.harness.work import parse_size
    from tensorwire.bench.suites.collectives.contender import find, names
    from tensorwire.bench.suites.collectives.operations import DTYPES, OPERATIONS
    from tensorwire.bench.suites.collectives.suite import LIMIT, OWN, Collectives, Options

    def size(text: str) -> int:
        found = usage("--sizes", lambda word: parse_size(word, 1), text)
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
    (kind,) = choices("--dtype", dtype, DTYPES)[:1]
    wanted = Options(
        cases=choices("--cases", cases, OPERATIONS),
        sizes=[size(word) for word in words("--sizes", sizes)],
        ranks=ranks,
        dtype=kind,
        peers=list(dict.fromkeys(chosen)),
        limits=limits,
        rounds=rounds,
        seconds=seconds,
        may_lack=[name for name in (*others, OWN[1]) if name not in named],
    )
    writable("--output", output)
    writable("--plot", plot, check_plot)
    suite = usage("--peers", Collectives.of, wanted)
    raise typer.Exit(measured(suite, output, json_, plot))
