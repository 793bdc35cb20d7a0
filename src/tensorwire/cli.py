# SPDX-License-Identifier: Apache-2.0
"""The ``tensorwire`` command. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
import typer.core

from tensorwire import signals
from tensorwire.bench.files import check_file, check_plot, save
from tensorwire.bench.terminal import announce, progress_bar
from tensorwire.bench.train import command as train_command
from tensorwire.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

    from tensorwire.rpc.choice import Transport

S = TypeVar("S")
T = TypeVar("T")

TRANSPORTS = ("auto", "shm", "verbs", "tcp", "grpc")
PROGRAM = "What to run, with its arguments, as without tensorwire."
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Commands(typer.core.TyperGroup):
    """All commands: what ends them from outside ends them in order."""

    def invoke(self, ctx: Any) -> Any:
        with signals.ending():
            return super().invoke(ctx)


app = typer.Typer(
    name="tensorwire",
    cls=Commands,
    help="Tensor communication for gRPC services and distributed training.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure Tensorwire against others.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.command("train", **train_command.SETTINGS)(train_command.train)


def main() -> None:
    app()


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("tensorwire"))
        raise typer.Exit


@bench.command(
    epilog="Examples:\n\n"
    "[bold]tensorwire bench rpc[/]\n\n"
    "[bold]tensorwire bench rpc --transport shm --sizes 8 --rounds 9[/]\n\n"
    "[bold]tensorwire bench rpc --payload bytes,protobuf --sizes 1M,64M[/]\n\n"
    "[bold]tensorwire bench rpc --peers zmq,flight,nixl,mpi --json --output figures.json[/]\n\n"
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why; --peers all misses"
    " no peer that is not installed) or a file could not be written, 2 wrong usage, 130 after "
    "Ctrl-C, which ends with the figures that there are."
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
    from tensorwire.bench.files import check_payload
    from tensorwire.bench.peers import NAMES
    from tensorwire.bench.report import plot as draw
    from tensorwire.bench.report import print_table
    from tensorwire.bench.work import CASES, ORIGINS, PAYLOADS, parse_size

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


@bench.command(
    epilog="Examples:\n\n"
    "[bold]tensorwire bench tensorflow[/]\n\n"
    "[bold]tensorwire bench tensorflow --cases tensor --sizes 4,1M,64M --rounds 9[/]\n\n"
    "[bold]tensorwire bench tensorflow --transport tcp --json --output figures.json[/]\n\n"
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why) or a file could "
    "not be written, 2 wrong usage, 130 after Ctrl-C, which ends with the figures that there are."
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
    from tensorwire.bench.work import parse_size
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


@app.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    epilog="Examples:\n\n"
    "[bold]tensorwire run --stats -- python train.py[/]\n\n"
    "[bold]tensorwire run --launch ps=1,worker=2 -- python train.py[/]  (TF_CONFIG)\n\n"
    "[bold]tensorwire run --launch ps=1,worker=2 -- python train.py --job_name={job} "
    "--task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts}[/]\n\n"
    "Exit codes: the program's; with --launch 0, or that of the first process that failed; "
    "2 wrong usage, 127 no such program.",
)
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", show_default=False, help=PROGRAM)
    ],
    stats: Annotated[
        bool, typer.Option("--stats", help="Each process prints at its end what went which way.")
    ] = False,
    launch: Annotated[
        str | None,
        typer.Option(
            metavar="JOB=COUNT,...",
            help="Run a cluster on this machine: the program once for each task of these jobs.",
        ),
    ] = None,
    fallback: Annotated[
        bool,
        typer.Option("--fallback", help="Use stock gRPC where the plugin cannot be had."),
    ] = False,
) -> None:
    """Run a TensorFlow program as it is; servers in it that ask for grpc get tensorwire.

    With --launch each process finds the cluster in TF_CONFIG and in {job}, {index}, {ps_hosts},
    {worker_hosts} (and so on for each job) in its arguments. Output is prefixed; signals are passed
    on; all processes end when one fails, and ps once the others have ended.
    """
    import os

    from tensorwire import launch as launcher
    from tensorwire.tensorflow.run import environment

    added = environment(stats=stats, fallback=fallback)
    if launch is not None:
        cluster = usage("--launch", launcher.cluster, launch)
        ended = usage(
            "--launch", lambda words: launcher.run(cluster, words, environment=added), command
        )
        if ended.why:
            print(f"tensorwire: {ended.why}", file=sys.stderr)
        raise typer.Exit(ended.code)
    try:
        os.execvpe(command[0], command, {**os.environ, **added})
    except OSError as error:
        print(f"tensorwire: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(127) from None


@app.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    epilog="Examples:\n\n"
    "[bold]tensorwire trace -- python train.py[/]\n\n"
    "[bold]tensorwire trace --events --keep 200 -- python client.py[/]\n\n"
    "[bold]tensorwire trace --json --output steps.json -- python train.py[/]\n\n"
    "[bold]tensorwire trace --chrome steps.json -- python train.py[/]  (for ui.perfetto.dev)\n\n"
    "Exit codes: the program's; 1 a file could not be written, 2 wrong usage, 127 no such program.",
)
def trace(
    command: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", show_default=False, help=PROGRAM)
    ],
    events: Annotated[
        bool, typer.Option("--events", help="List each step that was kept, too.")
    ] = False,
    keep: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Steps that each link keeps; counts are all.")
    ] = 100_000,
    output: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
    chrome: Annotated[
        Path | None,
        typer.Option(help="Write the kept steps for ui.perfetto.dev or chrome://tracing."),
    ] = None,
    json_: Json = False,
) -> None:
    """Run a program, and show the protocol steps of every link in all of its processes.

    MESSAGE, EAGER, DATA; MAP of what is lent in shared memory; RTS, READ and FIN of what is read
    from the sender's memory; CREDIT, ABORT, GOAWAY; SEND: what the transport took at once. The
    payload is the bytes of tensors and other segments. A process that is killed leaves nothing of
    the links that it had then.
    """
    from tensorwire import trace as tracing

    writable("--output", output)
    writable("--chrome", chrome)
    try:
        code, links = tracing.run(command, keep)
    except OSError as error:
        print(f"tensorwire: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(127) from None
    report = {"links": [tracing.as_dict(link, events=events) for link in links]}
    saved = save(output, lambda path: path.write_text(json.dumps(report, indent=2) + "\n"))
    saved &= save(chrome, lambda path: path.write_text(json.dumps(tracing.as_chrome(links)) + "\n"))
    if json_:
        print(json.dumps(report, indent=2))
    else:
        tracing.print_links(links, console(), events=events)
    raise typer.Exit(code or int(not saved))


@app.command(
    epilog="Examples:\n\n"
    "[bold]tensorwire doctor[/]\n\n"
    "[bold]tensorwire doctor localhost:50051[/]\n\n"
    "[bold]tensorwire doctor ps0:50051 --transport tcp --json[/]\n\n"
    "[bold]tensorwire doctor --report[/]  (for a bug report)\n\n"
    "Exit codes: 0 nothing is broken (there may be warnings), 1 a transport cannot work here, a "
    "setting is wrong or the peer did not answer, 2 wrong usage."
)
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="A gRPC service (host:port); not a TensorFlow server."
        ),
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help="Require auto, shm, verbs, tcp or grpc for calls to TARGET.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one call.")] = 5.0,
    report: Annotated[
        bool, typer.Option("--report", help="Print all of it as Markdown, for a bug report.")
    ] = False,
    json_: Json = False,
) -> None:
    """Show what this host has, what calls to TARGET would get, and what mends the rest.

    Of TensorFlow it tells whether it can be accelerated here; tensorwire run --stats tells what
    went which way. Where the host has an RDMA device, some megabytes are sent through it and back,
    and compared.
    """
    from dataclasses import asdict

    from tensorwire import doctor as command
    from tensorwire import rdma
    from tensorwire.environment import given
    from tensorwire.tensorflow import checkup

    if transport is not None:
        choices("--transport", transport, TRANSPORTS)
    required = cast("Transport | None", transport)
    findings, settings = command.examine_host()
    by_rdma, adapters = rdma.examine_host()
    findings += [*by_rdma, *checkup.examine()]
    peer = None if target is None else command.examine_peer(target, required, timeout)
    if json_:
        found = {
            "versions": command.versions(),
            "host": [asdict(finding) for finding in findings],
            "settings": settings,
            "rdma": asdict(adapters),
            "peer": None if peer is None else asdict(peer),
        }
        print(json.dumps(found, indent=2))
    elif report:
        command.print_report(findings, peer, given())
    else:
        command.print_findings(findings, console())
        if peer is not None:
            command.print_peer(peer, console())
    broken = any(finding.verdict == "fail" for finding in findings)
    raise typer.Exit(1 if broken or (peer is not None and peer.error) else 0)


def hand_over(
    report: dict[str, Any],
    output: Path | None,
    json_: bool,
    print_table: Callable[[dict[str, Any], Console], None],
    draw: Callable[[], bool] = lambda: True,
) -> bool:
    """Writes, prints and draws the figures of a run, also of one that Ctrl-C has ended; after those
    the command ends as Ctrl-C ends it. Whether all files could be written; one that could not keeps
    nothing else from being done."""
    saved = save(output, lambda path: path.write_text(json.dumps(report, indent=2) + "\n"))
    if json_:
        print(json.dumps(report, indent=2))
    else:
        print_table(report, console())
    saved &= draw()
    if report["environment"]["interrupted"]:
        raise KeyboardInterrupt
    return saved


def words(option: str, text: str) -> list[str]:
    """The words of a comma list, each once; an empty list ends the command with code 2."""
    found = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise typer.BadParameter("the list is empty", param_hint=option)
    return found


def choices(option: str, text: str, allowed: Iterable[str]) -> list[str]:
    """``words``, each one of ``allowed``; else the command ends with code 2."""
    permitted = list(allowed)
    chosen = words(option, text)
    for word in chosen:
        if word not in permitted:
            names = ", ".join(permitted)
            raise typer.BadParameter(f"{word!r} is none of {names}", param_hint=option)
    return chosen


def writable(option: str, path: Path | None, check: Callable[[Path], None] = check_file) -> None:
    """The command ends with code 2 when it could not write this file at its end."""
    if path is not None:
        usage(option, check, path)


def usage(option: str, parse: Callable[[S], T], given: S) -> T:
    """``parse(given)``; a ValueError ends the command with code 2."""
    try:
        return parse(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
