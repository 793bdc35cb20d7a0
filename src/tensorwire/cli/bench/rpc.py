# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench rpc``: its options, and what it hands over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import TRANSPORTS, Json, choices, usage, words, writable

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire bench rpc[/]\n\n"
    "[bold]tensorwire bench rpc --transport shm --sizes 8 --rounds 9[/]\n\n"
    "[bold]tensorwire bench rpc --payload bytes,protobuf --sizes 1M,64M[/]\n\n"
    "[bold]tensorwire bench rpc --peers zmq,flight,nixl,mpi --json --output figures.json[/]\n\n"
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why; --peers all misses"
    " no peer that is not installed) or a file could not be written, 2 wrong usage, 130 after "
    "Ctrl-C, which ends with the figures that there are.",
)
def rpc(
    transport: Annotated[
        list[str],
        typer.Option(help="auto, shm, verbs, tcp or grpc; repeat or separate by commas."),
    ] = ["shm", "tcp"],  # noqa: B006
    sizes: Annotated[
        str, typer.Option(help="Bytes of payload; K, M and G are powers of 1024.")
    ] = "8,512K,64M",
    cases: Annotated[str, typer.Option(help="request, pull, stream.")] = "request,pull,stream",
    payload: Annotated[
        str,
        typer.Option(
            help="array, bytes (identity serializers), protobuf (a message with a bytes field), "
            "protobuf-codec (the same with tensorwire.protobuf)."
        ),
    ] = "array",
    origin: Annotated[
        str, typer.Option(help="Of arrays: ordinary (any memory), published (in the arena).")
    ] = "ordinary,published",
    reads: Annotated[
        str, typer.Option(help="Whether the receiver adds up all it received: no, yes.")
    ] = "no,yes",
    rounds: Annotated[int, typer.Option(min=1, help="Each visits every contender once.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.001, help="Time of one visit.")] = 0.2,
    callers: Annotated[int, typer.Option(min=1, help="Threads that call at the same time.")] = 1,
    peers: Annotated[
        list[str],
        typer.Option(help="Others to measure: zmq, flight, nixl, mpi, sockets, memcpy, or all."),
    ] = [],  # noqa: B006
    limits: Annotated[bool, typer.Option(help="Plain sockets and memcpy as limit lines.")] = True,
    output: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw time over size into this file (needs matplotlib).")
    ] = None,
    json_: Json = False,
) -> None:
    """Measure calls and streams: Tensorwire against stock grpcio, in interleaved rounds.

    Every contender runs in two processes of its own, a client and a server on 127.0.0.1. A row is
    printed only when the calls took the transport that was asked for.
    """
    from tensorwire.bench import rpc as command
    from tensorwire.bench.files import check_payload, check_plot, save
    from tensorwire.bench.peers import NAMES
    from tensorwire.bench.report import plot as draw
    from tensorwire.bench.report import print_table
    from tensorwire.bench.terminal import announce, progress_bar
    from tensorwire.bench.work import CASES, ORIGINS, PAYLOADS, parse_size
    from tensorwire.cli.bench.handover import hand_over

    others = [name for name in NAMES if name not in ("tensorwire", "grpcio")]
    named = choices("--peers", ",".join(peers), [*others, "all"]) if peers else []
    wanted = command.Options(
        transports=choices("--transport", ",".join(transport), TRANSPORTS),
        sizes=[usage("--sizes", parse_size, size) for size in words("--sizes", sizes)],
        cases=choices("--cases", cases, CASES),
        origins=choices("--origin", origin, ORIGINS),
        reads=[word == "yes" for word in choices("--reads", reads, ("no", "yes"))],
        peers=[*(command.LIMITS if limits else ()), *(others if "all" in named else named)],
        rounds=rounds,
        seconds=seconds,
        callers=callers,
        payloads=choices("--payload", payload, PAYLOADS),
        may_lack=[name for name in others if name not in named],
    )
    for each in wanted.payloads:
        usage("--payload", check_payload, each)
    writable("--output", output)
    writable("--plot", plot, check_plot)
    announce("tensorwire bench rpc", command.forecast(wanted))
    with progress_bar() as progress:
        report, complete = command.run(wanted, progress)
    saved = hand_over(
        report, output, json_, print_table, lambda: save(plot, lambda path: draw(report, str(path)))
    )
    raise typer.Exit(0 if complete and saved else 1)
