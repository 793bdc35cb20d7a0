# SPDX-License-Identifier: Apache-2.0
"""``tensorwire report``: its options, and what it hands over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import usage, writable

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire bench rpc --output rpc.json[/]\n\n"
    "[bold]tensorwire report rpc.json -o report.html[/]\n\n"
    "[bold]tensorwire report before.json after.json -o comparison.html[/]\n\n"
    "Exit codes: 0 the page is written, 1 it could not be, 2 wrong usage, also for a file that is "
    "no run.",
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN.json...",
            help="What --output of benches and of train --compare wrote.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the page to this file.")
    ] = Path("report.html"),
    limit: Annotated[
        str, typer.Option(help="Between runs, a change by less than this part is none.")
    ] = "5%",
) -> None:
    """Make a page of figures: one HTML file, which needs no network.

    It has pictures of every figure over size or by scheme, where others are ahead, all rows, and
    where they were measured. Of several runs of one suite it compares each with the first.
    """
    import sys

    from tensorwire import progress
    from tensorwire.bench.harness.files import save
    from tensorwire.bench.report import page
    from tensorwire.bench.report.comparison import parse_limit
    from tensorwire.bench.report.runs import read

    least = usage("--limit", parse_limit, limit)
    found = [run for path in runs for run in usage("RUN.json", read, path)]
    writable("--output", output)
    try:
        text = page.page(found, least)
    except ValueError as error:
        print(f"tensorwire report: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    saved = save(output, lambda path: path.write_text(text, encoding="utf-8"))
    if saved:
        progress.say(f"tensorwire report: the page is {output}")
    raise typer.Exit(0 if saved else 1)
