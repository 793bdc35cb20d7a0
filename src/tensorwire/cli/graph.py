# SPDX-License-Identifier: Apache-2.0
"""``tensorwire graph``: its options, and what it hands over."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from tensorwire.cli.group import Command, single
from tensorwire.cli.options import Json, usage, words, writable

app = single()


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "[bold]tensorwire graph model.py[/]\n\n"
    "[bold]tensorwire graph train.py:step --machines encoder=a,decoder=b --json[/]\n\n"
    "[bold]tensorwire graph model/saved_model.pb --plot graph.svg[/]\n\n"
    "Exit codes: 0 the plan is printed, 1 the program has no graph that can be cut (the message "
    "says why) or a file could not be written, 2 wrong usage.",
)
def graph(
    program: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM[:NAME]",
            show_default=False,
            help="A Python file, and what it calls its graph, or a function that returns it "
            "(graph); a GraphDef or SavedModel of TensorFlow (.pb, .pbtxt, or its folder).",
        ),
    ],
    machines: Annotated[
        str | None,
        typer.Option(
            help="Which machine what is on, by the beginnings of names: ps=a,worker:0=b (tasks of "
            "TensorFlow), layers.0=a,layers=b (modules of PyTorch), encoder=a (scopes of JAX)."
        ),
    ] = None,
    depth: Annotated[
        int, typer.Option(min=1, max=64, help="Steps that receivers have memory ready for.")
    ] = 2,
    coalesce: Annotated[
        str, typer.Option(help="Small tensors of so many bytes together share a message.")
    ] = "8K",
    all_: Annotated[bool, typer.Option("--all", help="Show all edges, not the largest.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the machines into this file (needs matplotlib)."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the plan to this file, for Plan.from_bytes.")
    ] = None,
    json_: Json = False,
) -> None:
    """Show which tensors cross machines in a step of a program, and what memory that takes.

    The program is TensorFlow's, PyTorch's or JAX's. Its Python file is run as a module: it defines
    what tensorwire.graph.edges takes, or edges that it has traced itself.
    """
    from tensorwire.bench.harness.files import check_plot, save
    from tensorwire.bench.harness.work import parse_size
    from tensorwire.graph import (
        Edge,
        Plan,
        PlanError,
        ScopeError,
        edges,
        is_graph,
        plan,
        report,
        sources,
    )

    name, _, member = program.partition(":")
    path, found = Path(name), member or None
    usage("PROGRAM", lambda path: sources.check(path, found), path)
    where = None if machines is None else usage("--machines", _mapping, machines)
    small = usage("--coalesce", lambda text: parse_size(text, 1), coalesce)
    writable("--plot", plot, check_plot)
    writable("--output", output)

    def planned() -> Plan:
        loaded: Any = sources.load(path, found)
        if isinstance(loaded, Plan):
            return loaded
        if not (isinstance(loaded, (list, tuple)) and all(isinstance(e, Edge) for e in loaded)):
            if not is_graph(loaded):
                raise sources.SourceError(
                    f"{program} is of type {type(loaded).__name__}, which is no graph that "
                    "tensorwire.graph.edges takes"
                )
            loaded = edges(loaded, machines=where)
        return plan(loaded, depth=depth, coalesce=small)

    kept = _keep_output() if json_ else None
    try:
        # Of standard output programs read one object.
        with redirect_stdout(sys.stderr) if json_ else nullcontext():
            loaded = planned()
    except (PlanError, ScopeError, sources.SourceError) as error:
        print(f"tensorwire graph: {error}", file=sys.stderr, flush=True)
        raise typer.Exit(1) from None
    saved = save(plot, lambda path: report.draw(loaded, path))
    saved &= save(output, lambda path: path.write_bytes(loaded.to_bytes()))
    if json_:
        _print(json.dumps(loaded.as_json(), indent=2), kept)
    else:
        report.print_plan(loaded, most=None if all_ else report.MOST_EDGES)
    print(end="", flush=True)  # to nowhere, where standard output is closed
    raise typer.Exit(0 if saved else 1)


def _keep_output() -> int | None:
    """A descriptor of standard output, on which no other will write: what native code, the
    program's own processes, and what runs when the interpreter ends write there goes to standard
    error from now on. None where one of both is closed or is no such file."""
    try:
        if (sys.stdout.fileno(), sys.stderr.fileno()) != (1, 2):
            return None
    except (AttributeError, OSError, ValueError):
        return None
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


def _print(text: str, kept: int | None) -> None:
    if kept is None:
        print(text)
        return
    try:
        with open(kept, "w", closefd=False) as output:
            print(text, file=output)
    except OSError:
        os.dup2(kept, 1)  # for those who look why, and whether anybody reads it
        raise


def _mapping(text: str) -> dict[str, str]:
    found = {}
    for word in words("--machines", text):
        place, equals, machine = word.rpartition("=")
        if not equals or not machine:
            raise ValueError(f"{word!r} is no place and machine: write layers.0=a")
        found[place] = machine
    return found
