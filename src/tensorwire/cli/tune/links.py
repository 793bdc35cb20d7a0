# SPDX-License-Identifier: Apache-2.0
"""``tensorwire tune links``: its options, and what it hands over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import Json, Plot, Rounds, Seconds, choices, usage, writable

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire tune links[/]\n\n"
    "[bold]tensorwire tune links --transports tcp --plot curves.png[/]\n\n"
    "[bold]tensorwire tune links --check --report check.json[/]  # then tensorwire report\n\n"
    "[bold]tensorwire tune links --serve 0.0.0.0:7000 --token-file token[/]  # there, and here:\n\n"
    "[bold]tensorwire tune links --connect node7:7000 --token-file token[/]\n\n"
    "[bold]TENSORWIRE_LINK_TUNING=./links.table python server.py[/]\n\n"
    "Exit codes: 0 the table is kept, or Ctrl-C has ended --serve, 1 something could not be "
    "measured or did not pass the check, or the table could not be written, 2 wrong usage, 130 "
    "after Ctrl-C, which keeps no table.",
)
def links(
    transports: Annotated[
        str, typer.Option(help="Those that work: all; or some, by their names.")
    ] = "all",
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Measure links to a process there, which --serve has started."
        ),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Be the other end of --connect, there and at the port behind it, until Ctrl-C.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with a secret, the same for --serve and --connect."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(help="Then measure what was chosen beside the default and fixed values."),
    ] = False,
    rounds: Rounds = 15,
    seconds: Seconds = 0.005,
    plot: Plot = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Keep the table in this file, not in this user's cache."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="With --check: write what it found to this file, for tensorwire report."),
    ] = None,
    json_: Json = False,
) -> None:
    """Measure at which sizes messages should change their protocol, and keep that for links to use.

    Of each transport, messages of several sizes go by each protocol in interleaved rounds, over
    links within this host, or to the process at --connect. Processes that start later take the
    table, each for what it sends.
    """
    from tensorwire import progress
    from tensorwire.bench.harness import environment
    from tensorwire.bench.harness.control import AgentError
    from tensorwire.bench.harness.files import check_kept, check_plot, keep, save
    from tensorwire.bench.harness.terminal import progress_bar
    from tensorwire.bench.harness.tokens import Token
    from tensorwire.bench.suites.links import remote, service, suite, tuning
    from tensorwire.bench.suites.links.report import ROLES, as_json, as_report, draw, print_tuned
    from tensorwire.transports import names, why_not

    if serve is not None and connect is not None:
        raise typer.BadParameter("it excludes --connect", param_hint="--serve")
    if report is not None and not check:
        raise typer.BadParameter("it is of what --check finds", param_hint="--report")
    begun = service.here()
    if (target := serve or connect) is not None:
        where = usage("--serve" if serve else "--connect", remote.parsed, target)
        secret = usage("--token-file", Token.of, token_file).text.encode()
        if serve is not None:
            code = remote.serve(where, secret)
            raise typer.Exit(code)
        begun = remote.reached(where, secret)
    named = choices("--transports", transports, ("all", *names()))
    wanted = [*names()] if "all" in named else named
    path = (output or tuning.default_path()).absolute()
    writable("--output", path, None if output is not None else check_kept)
    writable("--plot", plot, check_plot)
    writable("--report", report)
    settings = {"transports": wanted, "rounds": rounds, "seconds": seconds, "connect": connect}
    described = environment.describe(settings, ROLES) if report is not None else {}
    found: list[suite.Tuned] = []
    notes: list[str] = []
    complete = True
    try:
        with progress_bar() as bar, begun as server:
            for transport in wanted:
                reason = why_not(transport)
                if reason is not None:
                    notes.append(f"{transport}: left out: {reason}")
                    complete &= "all" in named
                    continue
                try:
                    found.append(suite.tune(server, transport, rounds, seconds, check, bar))
                except AgentError as error:
                    notes.append(f"{transport}: {error}")
                    # Shared memory does not reach another host.
                    complete &= "all" in named and connect is not None
    except AgentError as error:
        progress.say(f"tensorwire tune links: {error}")
        raise typer.Exit(1) from None
    complete &= bool(found) and all(each.passed for each in found)
    text = tuning.table(path, [choice for each in found for choice in each.choices])
    saved = save(path, lambda path: keep(path, text)) if found else False
    saved &= save(plot, lambda plot: draw(found, plot))
    if found and report is not None:
        made = as_report(described, found, notes).to_json()
        saved &= save(report, lambda path: path.write_text(json.dumps(made, indent=2) + "\n"))
    if json_:
        print(json.dumps(as_json(path, found, notes), indent=2))
    else:
        print_tuned(found, notes)
    if saved:
        progress.say(f"tensorwire tune links: the table is {path}")
    print(end="", flush=True)  # to nowhere, where standard output is closed
    raise typer.Exit(0 if saved and complete else 1)
