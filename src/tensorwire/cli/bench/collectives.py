# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench collectives``: its options, and what it hands over."""

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
    "collectives",
    "--cases all_reduce --sizes 8,64M --rounds 9",
    "--ranks 4 --dtype float16 --peers gloo",
    "--cases all_gather_v,all_reduce_many --sizes 64K,16M",
    "--cases all_reduce --sizes 64M --dtype float32,bfloat16 --peers none",
    "--peers mpich,openmpi --json --output figures.json",
    "--device cuda --cases all_reduce --peers gloo",
)
def collectives(
    cases: Annotated[
        str,
        typer.Option(
            help="all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, barrier, reduce, "
            "gather, scatter; of uneven shares all_gather_v, reduce_scatter_v, all_to_all_v; of 16 "
            "arrays in one call all_reduce_many, broadcast_many, all_gather_many, "
            "reduce_scatter_many; between two ranks ping_pong and stream."
        ),
    ] = "all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, barrier",
    sizes: Annotated[
        str,
        typer.Option(help=f"Bytes of the larger of a rank's two arrays, {SIZES}"),
    ] = "8,64K,1M,8M,64M,256M",
    ranks: Annotated[int, typer.Option(min=2, help="Processes of a group.")] = 2,
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, float64, float16, bfloat16, int8, int32, int64 or uint8; several by "
            "commas, of which the others are compared with the first."
        ),
    ] = "float32",
    device: Annotated[
        str,
        typer.Option(help="Where the data lies: cpu, or cuda, by PyTorch; ranks share devices."),
    ] = "cpu",
    rounds: Rounds = 5,
    seconds: Seconds = 0.1,
    peers: Annotated[
        list[str],
        typer.Option(
            help="Others to measure: gloo, mpich, openmpi, nccl, what else is installed, all, or "
            "none."
        ),
    ] = ["all"],  # noqa: B006
    limits: Annotated[bool, typer.Option(help="What memory allows, as a limit line.")] = True,
    output: Output = None,
    csv: Csv = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure collectives: Tensorwire against gloo and MPI, in interleaved rounds.

    Every contender is a group of ranks of this host, each in a process of its own. A row is printed
    only when the results were right.
    """
    from tensorwire.bench.suites.collectives.contender import find, names
    from tensorwire.bench.suites.collectives.operations import (
        DEVICES,
        DTYPES,
        OPERATIONS,
        type_of,
    )
    from tensorwire.bench.suites.collectives.suite import LIMIT, OWN, Collectives, Options
    from tensorwire.bench.suites.collectives.torch_ranks import why_no_device

    (place,) = choices("--device", device, DEVICES)[:1]
    if place == "cuda" and (reason := why_no_device()) is not None:
        raise typer.BadParameter(f"cuda: {reason}", param_hint="--device")
    found = {name: find(name) for name in names() if name not in (*OWN, LIMIT)}
    others = [name for name, contender in found.items() if place in contender.devices]
    compared = Peers.of(peers, others, find, OWN[1])
    kinds = choices("--dtype", dtype, DTYPES)
    try:
        for kind in kinds:
            type_of(kind)
    except ImportError:
        raise typer.BadParameter(
            f"{kind} needs ml_dtypes: pip install ml_dtypes", param_hint="--dtype"
        ) from None
    wanted = Options(
        cases=choices("--cases", cases, OPERATIONS),
        sizes=sizes_of("--sizes", sizes, 1, 1),
        ranks=ranks,
        dtypes=kinds,
        peers=compared.chosen,
        limits=limits,
        rounds=rounds,
        seconds=seconds,
        may_lack=compared.may_lack,
        device=place,
    )
    measure("--peers", Collectives.of, wanted, output, json_, plot, csv=csv)
