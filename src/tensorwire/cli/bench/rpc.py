# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench rpc``: its options, and what it hands over."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorwire.cli.bench.figures import Peers, command, measure
from tensorwire.cli.group import TRANSPORTS, single
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
    transports,
    usage,
)

app = single()


@command(
    app,
    "rpc",
    "--transport shm --sizes 8 --rounds 9",
    "--payload bytes,protobuf --sizes 1M,64M",
    "--cases request,first --sizes 64M,1G --reads yes",
    "--peers zmq,flight,nixl,mpi --json --output figures.json",
)
def rpc(
    transport: Annotated[
        list[str],
        typer.Option(
            help=f"auto, {TRANSPORTS}, grpc; repeat or separate by commas.",
            show_default="all transports of this host",
        ),
    ] = [],  # noqa: B006
    sizes: Annotated[str, typer.Option(help=f"Bytes of payload, {SIZES}")] = "8,512K,64M",
    cases: Annotated[
        str,
        typer.Option(
            help="request, pull, stream, first (a request of processes that have made no call)."
        ),
    ] = "request,pull,stream",
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
    rounds: Rounds = 5,
    seconds: Seconds = 0.2,
    callers: Annotated[int, typer.Option(min=1, help="Threads that call at the same time.")] = 1,
    peers: Annotated[
        list[str],
        typer.Option(
            help="Others to measure: zmq, flight, nixl, mpi, grpcio-unix, sockets, memcpy, what "
            "else is installed, or all."
        ),
    ] = [],  # noqa: B006
    limits: Annotated[bool, typer.Option(help="Plain sockets and memcpy as limit lines.")] = True,
    output: Output = None,
    csv: Csv = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure calls and streams: Tensorwire against stock grpcio, in interleaved rounds.

    Every contender runs in two processes of its own, a client and a server on 127.0.0.1. A row is
    printed only when the calls took the transport that was asked for.
    """
    from tensorwire.bench.suites.rpc.contender import find, names
    from tensorwire.bench.suites.rpc.messages import PAYLOADS, check_payload
    from tensorwire.bench.suites.rpc.suite import CASES, LIMITS, ORIGINS, OWN, Calls, Options

    others = [name for name in names() if name != OWN]
    compared = Peers.of(peers, others, find)
    wanted = Options(
        transports=transports(transport, "auto", "grpc"),
        sizes=sizes_of("--sizes", sizes),
        cases=choices("--cases", cases, CASES),
        origins=choices("--origin", origin, ORIGINS),
        reads=[word == "yes" for word in choices("--reads", reads, ("no", "yes"))],
        peers=[*(LIMITS if limits else ()), *compared.chosen],
        rounds=rounds,
        seconds=seconds,
        callers=callers,
        payloads=choices("--payload", payload, PAYLOADS),
        may_lack=compared.may_lack,
    )
    for each in wanted.payloads:
        usage("--payload", check_payload, each)
    measure("--peers", Calls.of, wanted, output, json_, plot, csv=csv)
