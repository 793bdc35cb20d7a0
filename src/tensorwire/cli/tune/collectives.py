# SPDX-License-Identifier: Apache-2.0
"""``tensorwire tune collectives``: its options, and what it hands over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tensorwire.cli.group import TRANSPORTS, Command, single
from tensorwire.cli.options import (
    SIZES,
    Json,
    Rounds,
    Seconds,
    choices,
    sizes_of,
    usage,
    words,
    writable,
)

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire tune collectives[/]\n\n"
    "[bold]tensorwire tune collectives --ranks 4 --transports tcp --sizes 8,4K,64K,1M,16M[/]\n\n"
    "[bold]tensorwire tune collectives --cases all_reduce --output ./job.table[/]\n\n"
    "[bold]TENSORWIRE_TUNING=./job.table python train.py 0 2[/]\n\n"
    "Exit codes: 0 the table is kept, 1 something could not be measured (the notes say why) or the "
    "table could not be written, 2 wrong usage, 130 after Ctrl-C, which keeps no table.",
)
def collectives(
    ranks: Annotated[str, typer.Option(help="How many processes groups have.")] = "2,4",
    transports: Annotated[
        str,
        typer.Option(
            help=f"Any of {TRANSPORTS}, as they carry messages between ranks; or all that this "
            "host has."
        ),
    ] = "all",
    cases: Annotated[
        str,
        typer.Option(
            help="all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, "
            "all_to_all: those that can go several ways."
        ),
    ] = "all_reduce, broadcast, all_gather, reduce_scatter, all_to_all",
    sizes: Annotated[
        str,
        typer.Option(help=f"Bytes of the larger of a rank's two arrays, {SIZES}"),
    ] = "8, 1K, 8K, 32K, 64K, 256K, 1M, 4M, 16M",
    rounds: Rounds = 5,
    seconds: Seconds = 0.03,
    output: Annotated[
        Path | None,
        typer.Option(help="Keep the table in this file, not in this user's cache."),
    ] = None,
    json_: Json = False,
) -> None:
    """Measure which ways collectives are fastest on this host, and keep that for groups to use.

    Every way of the operations in --cases is measured between processes of this host, in
    interleaved rounds. Groups that are joined later take the table, where all of their ranks have
    the same one.
    """
    from tensorwire import progress
    from tensorwire import transports as known
    from tensorwire.bench.harness.files import check_kept, keep, save
    from tensorwire.bench.harness.schedule import Forecast
    from tensorwire.bench.harness.terminal import announce, progress_bar
    from tensorwire.bench.suites.collectives import tuning
    from tensorwire.bench.suites.collectives.ways import CASES, FABRICS

    def many(word: str) -> int:
        if not word.isdigit() or not 2 <= int(word) <= 1024:
            raise ValueError(f"{word!r} is no number of ranks: write 2, 4 or 8")
        return int(word)

    def possible(transport: str) -> str:
        if why := known.why_not(transport):
            raise ValueError(f"{transport}: {why}")
        return transport

    named = choices("--transports", transports, ("all", *FABRICS))
    here = [name for name in FABRICS if known.why_not(name) is None]
    ways = here if "all" in named else [usage("--transports", possible, each) for each in named]
    wanted = choices("--cases", cases, CASES)
    nbytes = sorted(sizes_of("--sizes", sizes, 1, 1))
    suites = [
        tuning.Tune.between(number, ways, wanted, nbytes, rounds, seconds)
        for number in sorted(usage("--ranks", many, word) for word in words("--ranks", ranks))
    ]
    path = (output or tuning.default_path()).absolute()
    writable("--output", path, None if output is not None else check_kept)
    announce("tensorwire tune collectives", sum((suite.forecast() for suite in suites), Forecast()))
    chosen, notes, complete = [], [], True
    with progress_bar() as bar:
        for suite in suites:
            report, whole = suite.run(bar)
            if report.interrupted:
                raise KeyboardInterrupt
            complete &= whole
            notes += report.environment["notes"]
            chosen += tuning.choices(report, suite.ranks)
    text = tuning.table(path, chosen)
    saved = save(path, lambda path: keep(path, text))
    if json_:
        print(json.dumps(tuning.as_json(path, chosen, notes), indent=2))
    else:
        tuning.print_choices(chosen, notes)
    if saved:
        progress.say(f"tensorwire tune collectives: the table is {path}")
    print(end="", flush=True)  # to nowhere, where standard output is closed
    raise typer.Exit(0 if saved and complete else 1)
