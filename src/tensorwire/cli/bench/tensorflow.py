# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench tensorflow``: its options, and what it hands over."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorwire.cli.bench.figures import command, measure
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
    size_of,
    sizes_of,
    transports,
    words,
)

app = single()


@command(
    app,
    "tensorflow",
    "--cases tensor --sizes 4,1M,64M --rounds 9",
    "--cases many --many-sizes 4K",
    "--cases mirrored --transport shm",
    "--transport tcp --json --output figures.json",
)
def tensorflow(
    transport: Transport = [],  # noqa: B006
    cases: Annotated[
        str, typer.Option(help="tensor, many, ps-step, allreduce, mirrored.")
    ] = "tensor,ps-step,allreduce",
    sizes: Annotated[
        str, typer.Option(help=f"Bytes of the tensor, {SIZES}")
    ] = "4,1K,64K,1M,16M,64M,256M",
    many_sizes: Annotated[
        str, typer.Option(help=f"Of each of the 400 variables of the case many, {SIZES}")
    ] = "4K,64K",
    step_size: Annotated[
        str, typer.Option(help="Bytes of the variables in a parameter-server step.")
    ] = "100M",
    reduce_size: Annotated[str, typer.Option(help="Bytes that are reduced.")] = "64M",
    model_size: Annotated[
        str, typer.Option(help="Bytes of the variables in the case mirrored.")
    ] = "96M",
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    peers: Annotated[
        list[str], typer.Option(help="Others to measure: contenders that are installed.")
    ] = [],  # noqa: B006
    output: Output = None,
    csv: Csv = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure steps of TensorFlow sessions: tensorwire against stock gRPC, in interleaved rounds.

    Every contender is a cluster of two processes on 127.0.0.1. A row is printed only when its
    tensors took the transport that was asked for, and when the results were right.
    """
    from tensorwire.bench.suites.tensorflow.cases import CASES, MIRRORED, WORD
    from tensorwire.bench.suites.tensorflow.suite import Options, Steps

    wanted = Options(
        transports=transports(transport),
        cases=choices("--cases", cases, (*CASES, MIRRORED)),
        sizes=sizes_of("--sizes", sizes, WORD, WORD),
        many_sizes=sizes_of("--many-sizes", many_sizes, WORD, WORD),
        step_size=size_of("--step-size", step_size, WORD, WORD),
        reduce_size=size_of("--reduce-size", reduce_size, WORD, WORD),
        model_size=size_of("--model-size", model_size, WORD, WORD),
        rounds=rounds,
        seconds=seconds,
        peers=words("--peers", ",".join(peers)) if peers else [],
    )
    measure("--peers", Steps.of, wanted, output, json_, plot, csv=csv)
