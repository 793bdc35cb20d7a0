# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench weights``: its options, and what it hands over."""

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
    choices,
    sizes_of,
)

app = single()


@command(
    app,
    "weights",
    "--cases adopted --sizes 64M,1G --rounds 9",
    "--cases copied,resharded --peers none",
    "--cases copied,first --peers none",
    "--peers grpcio --json --output figures.json",
)
def weights(
    cases: Annotated[
        str,
        typer.Option(
            help="copied; adopted; published: copied, and what publish() does counts, too; "
            "resharded: copied, from four trainers with rows of each tensor to receivers with "
            "other parts of it; first: copied, by processes that have moved nothing before."
        ),
    ] = "copied,adopted",
    sizes: Annotated[
        str,
        typer.Option(help=f"Bytes of all weights together, {SIZES}"),
    ] = "1G",
    receivers: Annotated[int, typer.Option(min=1, help="Processes that receive.")] = 2,
    transports: Annotated[
        str, typer.Option(help="Tensorwire's, by their names, or all that its contenders have.")
    ] = "all",
    rounds: Rounds = 5,
    seconds: Seconds = 0.1,
    peers: Annotated[
        list[str],
        typer.Option(
            help="Others to measure: gloo, grpcio, mpich, nixl, what else is installed, all, "
            "or none."
        ),
    ] = ["all"],  # noqa: B006
    limits: Annotated[bool, typer.Option(help="What memory allows, as a limit line.")] = True,
    output: Output = None,
    csv: Csv = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure weight syncs: Tensorwire against gloo, grpcio, MPI and NIXL, in interleaved rounds.

    Every contender is a trainer and its receivers, each in a process of its own on this host. A row
    is printed only when the receivers held what the trainer had, and no more bytes had moved than
    both ends have in common.
    """
    from tensorwire.bench.suites.weights.contender import CASES, find, names
    from tensorwire.bench.suites.weights.suite import LIMIT, OWN, Options, Weights

    own = list(dict.fromkeys(way for name in OWN for way in find(name).transports))
    named = choices("--transports", transports, ("all", *own))
    others = [name for name in names() if name not in (*OWN, LIMIT)]
    compared = Peers.of(peers, others, find)
    wanted = Options(
        cases=choices("--cases", cases, CASES),
        sizes=sizes_of("--sizes", sizes, 1),
        receivers=receivers,
        transports=own if "all" in named else named,
        peers=compared.chosen,
        limits=limits,
        rounds=rounds,
        seconds=seconds,
        may_lack=compared.may_lack,
    )
    measure("--peers", Weights.of, wanted, output, json_, plot, csv=csv)
