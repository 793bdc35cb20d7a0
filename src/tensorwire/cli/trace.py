# SPDX-License-Identifier: Apache-2.0
"""``tensorwire trace``: a program, and what its links did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import Json, Program, starting, writable

app = single()


@app.command(
    cls=Command,
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
    command: Program,
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
    payload is the bytes of tensors and other segments. Of a rank of a group there is a table of its
    operations and the ways that they went. A process that is killed leaves nothing of
    the links that it had then. With --json, what the program prints goes to standard error.
    """
    import json

    from tensorwire import launch, signals
    from tensorwire.bench.harness.files import save
    from tensorwire.observe import trace as tracing
    from tensorwire.terminal import console

    writable("--output", output)
    writable("--chrome", chrome)
    with signals.folder("tensorwire-trace-") as name, starting():
        folder = Path(name)
        environment = tracing.environment(folder, keep)
        code = launch.follow(command, environment, to_stderr=json_).code
        links, groups = tracing.read(folder), tracing.read_groups(folder)
    report = {
        "links": [tracing.as_dict(link, events=events) for link in links],
        "groups": [tracing.group_as_dict(group) for group in groups],
    }
    saved = save(output, lambda path: path.write_text(json.dumps(report, indent=2) + "\n"))
    saved &= save(chrome, lambda path: path.write_text(json.dumps(tracing.as_chrome(links)) + "\n"))
    if json_:
        print(json.dumps(report, indent=2))
    else:
        tracing.print_links(links, console(), events=events)
        tracing.print_groups(groups, console())
    raise typer.Exit(code or int(not saved))
