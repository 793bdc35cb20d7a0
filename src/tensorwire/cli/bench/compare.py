# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench compare``: its options, and what it hands over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import Json, usage

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire bench rpc --rounds 9 --output before.json[/]\n\n"
    "[bold]tensorwire bench compare before.json after.json[/]\n\n"
    "[bold]tensorwire bench compare before.json after.json --limit 10% --json[/]\n\n"
    "Exit codes: 0 no row of ours is slower beyond noise, 1 some are, or are missing though others "
    "were measured at the same case and size, 2 wrong usage, also for files that are no runs of one"
    " suite or have no row in common.",
)
def compare(
    before: Annotated[
        Path, typer.Argument(metavar="BEFORE.json", help="What --output wrote.", show_default=False)
    ],
    after: Annotated[
        Path, typer.Argument(metavar="AFTER.json", help="Another run of it.", show_default=False)
    ],
    limit: Annotated[
        str, typer.Option(help="A change by less than this part is none: 5% or 0.05.")
    ] = "5%",
    json_: Json = False,
) -> None:
    """Compare two runs of a bench, and fail where rows of Tensorwire became slower beyond noise.

    Rows of both are compared by their median time, with an interval of 95 % by the bootstrap over
    rounds. A file of several runs is compared run by run. Rows of others are shown, and do not
    decide: they tell of the host.
    """
    from tensorwire.bench.report import comparison
    from tensorwire.bench.report.printed import print_comparison
    from tensorwire.bench.report.runs import read
    from tensorwire.terminal import console

    least = usage("--limit", comparison.parse_limit, limit)
    old, new = usage("BEFORE.json", read, before), usage("AFTER.json", read, after)
    if len(old) != len(new):
        raise typer.BadParameter(
            f"{len(old)} runs are in {before}, and {len(new)} in {after}", param_hint="AFTER.json"
        )
    found = [
        usage("AFTER.json", lambda pair: comparison.compare(*pair, least), pair)
        for pair in zip(old, new, strict=True)
    ]
    if json_:
        told = [each.to_json() for each in found]
        print(json.dumps({"comparisons": told}, indent=2))
    else:
        for each in found:
            print_comparison(each, console())
    raise typer.Exit(1 if any(each.regressions or each.missing for each in found) else 0)
