# SPDX-License-Identifier: Apache-2.0
"""``tensorwire profile``: a program, and what messages it sends."""

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
    "[bold]tensorwire profile -- python train.py[/]\n\n"
    "[bold]tensorwire profile --plot sizes.png -- tensorwire train --local ps=1,worker=2 "
    "--server_protocol grpc+tensorwire --model resnet50[/]\n\n"
    "[bold]tensorwire profile --json --output sizes.json -- python client.py[/]\n\n"
    "Exit codes: the program's; 1 a file could not be written, 2 wrong usage, 127 no such program.",
)
def profile(
    command: Program,
    received: Annotated[
        bool,
        typer.Option(
            "--received", help="What was received, where the senders are no part of the program."
        ),
    ] = False,
    keep: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000_000,
            help="Steps that each link keeps, the last ones; and buffers that each process keeps "
            "of stock gRPC, the first ones.",
        ),
    ] = 1_000_000,
    output: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the sizes of the first 2,000 messages (needs matplotlib)."),
    ] = None,
    json_: Json = False,
) -> None:
    """Run a program, and show how large its messages are, and by which protocol they went.

    It is about what links carry, and what stock gRPC sends on its connections, but for those with
    TLS. Small buffers are those below 1 KiB, large ones those from 1 MiB on. A process that is
    killed leaves nothing of the links that it had then. With --json, what the program prints goes
    to standard error.
    """
    import json

    from tensorwire.bench.harness.files import check_plot, save
    from tensorwire.observe import profile as profiling
    from tensorwire.terminal import console

    writable("--output", output)
    writable("--plot", plot, check_plot)
    with starting():
        code, found = profiling.run(
            command, keep, "received" if received else "sent", to_stderr=json_
        )
    report = profiling.as_dict(found)
    saved = save(output, lambda path: path.write_text(json.dumps(report, indent=2) + "\n"))
    saved &= save(plot, lambda path: profiling.plot(found, path))
    if json_:
        print(json.dumps(report, indent=2))
    else:
        profiling.print_profile(found, console())
    raise typer.Exit(code or int(not saved))
