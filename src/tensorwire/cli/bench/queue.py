# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench queue``: its options, and what it hands over."""

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
    usage,
    ways,
    words,
    writable,
)

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire bench queue[/]\n\n"
    "[bold]tensorwire bench queue --sizes 1K,16M --producers 4 --rounds 9[/]\n\n"
    "[bold]tensorwire bench queue --transport tcp --peers multiprocessing --json[/]\n\n"
    "Exit codes: 0 all figures are there, 1 some are missing (the notes say why; --peers all misses"
    " no peer that is not installed) or a file could not be written, 2 wrong usage, 130 after "
    "Ctrl-C, which ends with the figures that there are.",
)
def queue(
    transport: Annotated[
        str, typer.Option(help="Tensorwire's: shm, verbs, tcp, or several of them.")
    ] = "shm,tcp",
    sizes: Annotated[
        str, typer.Option(help="Bytes of an item; K, M and G are powers of 1024.")
    ] = "1K,1M,16M",
    producers: Annotated[int, typer.Option(min=1, max=64, help="Processes that put.")] = 2,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    peers: Annotated[
        list[str],
        typer.Option(
            help="Beside grpcio: multiprocessing, torch, what else is installed, all, or none."
        ),
    ] = ["all"],  # noqa: B006
    output: Output = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure queues: Tensorwire against grpcio, multiprocessing and torch, in interleaved rounds.

    Several processes put arrays, one gets them. It reads all of each item and checks it.
    """
    from tensorwire.bench.harness.files import check_plot
    from tensorwire.bench.harness.handover import measured
    from tensorwire.bench.harness.work import parse_size
    from tensorwire.bench.suites.queue.contender import find, names
    from tensorwire.bench.suites.queue.suite import OWN, Options, Queues

    def size(text: str) -> int:
        found = usage("--sizes", parse_size, text)
        if found < 8:
            raise typer.BadParameter("must be at least 8", param_hint="--sizes")
        return found

    others = [name for name in names() if name not in (OWN, Queues.baseline.contender)]
    named = words("--peers", ",".join(peers))
    if "none" in named and len(named) > 1:
        raise typer.BadParameter("'none' and others at the same time", param_hint="--peers")
    named = [name for name in named if name != "none"]
    for name in named:
        usage("--peers", lambda name: name == "all" or find(name), name)
    chosen = [*(name for name in named if name != "all"), *(others if "all" in named else ())]
    wanted = Options(
        transports=ways("--transport", transport),
        sizes=[size(word) for word in words("--sizes", sizes)],
        producers=producers,
        peers=list(dict.fromkeys(chosen)),
        rounds=rounds,
        seconds=seconds,
        may_lack=[name for name in others if name not in named],
    )
    writable("--output", output)
    writable("--plot", plot, check_plot)
    suite = usage("--peers", Queues.of, wanted)
    raise typer.Exit(measured(suite, output, json_, plot))
