# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench tensorflow``: its options, and what it hands over."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import Json, choices, usage, words, writable

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire bench tensorflow[/]\n\n"
    "[bold]tensorwire bench tensorflow --cases tensor --sizes 4,1M,64M --rounds 9[/]\n\n"
    "[bold]tensorwire bench tensorflow --transport tcp --json --output figures.json[/]\n\n"
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why) or a file could "
    "not be written, 2 wrong usage, 130 after Ctrl-C, which ends with the figures that there are.",
)
def tensorflow(
    transport: Annotated[
        list[str], typer.Option(help="shm, verbs, tcp; repeat or separate by commas.")
    ] = ["shm", "tcp"],  # noqa: B006
    cases: Annotated[
        str, typer.Option(help="tensor, ps-step, allreduce.")
    ] = "tensor,ps-step,allreduce",
    sizes: Annotated[
        str, typer.Option(help="Bytes of the tensor; K, M and G are powers of 1024.")
    ] = "4,1K,64K,1M,16M,64M,256M",
    step_size: Annotated[
        str, typer.Option(help="Bytes of the variables in a parameter-server step.")
    ] = "100M",
    reduce_size: Annotated[str, typer.Option(help="Bytes that are reduced.")] = "64M",
    rounds: Annotated[int, typer.Option(min=1, help="Each visits every contender once.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.001, help="Time of one visit.")] = 0.5,
    output: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
    json_: Json = False,
) -> None:
    """Measure steps of TensorFlow sessions: tensorwire against stock gRPC, in interleaved rounds.

    Every contender is a cluster of two processes on 127.0.0.1. A row is printed only when its
    tensors took the transport that was asked for, and when the results were right.
    """
    from tensorwire.bench.tensorflow import runner, table
    from tensorwire.bench.tensorflow.cases import CASES, WORD
    from tensorwire.bench.terminal import announce, progress_bar
    from tensorwire.bench.work import parse_size
    from tensorwire.cli.bench.handover import hand_over
    from tensorwire.tensorflow import PluginError

    def size(option: str, text: str) -> int:
        found = usage(option, lambda word: parse_size(word, WORD), text)
        if found == 0:
            raise typer.BadParameter("must be more than 0", param_hint=option)
        return found

    wanted = runner.Options(
        transports=choices("--transport", ",".join(transport), ("shm", "verbs", "tcp")),
        cases=choices("--cases", cases, CASES),
        sizes=[size("--sizes", word) for word in words("--sizes", sizes)],
        step_size=size("--step-size", step_size),
        reduce_size=size("--reduce-size", reduce_size),
        rounds=rounds,
        seconds=seconds,
    )
    writable("--output", output)
    announce("tensorwire bench tensorflow", runner.forecast(wanted))
    try:
        with progress_bar() as progress:
            report, complete = runner.run(wanted, progress)
    except PluginError as error:
        print(f"tensorwire bench tensorflow: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    saved = hand_over(report, output, json_, table.print_table)
    raise typer.Exit(0 if complete and saved else 1)
