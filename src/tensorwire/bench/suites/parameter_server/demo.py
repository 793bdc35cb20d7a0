# SPDX-License-Identifier: Apache-2.0
"""``make demo-rpc``: a parameter server and two clients move ResNet-50's tensors, over grpcio and
over tensorwire, and the figures of both are printed side by side."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from tensorwire import progress, signals, terminal
from tensorwire.bench.harness import environment
from tensorwire.bench.harness.contenders import Role
from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.processes import START_SECONDS, expect, started, tell
from tensorwire.bench.harness.report import (
    CONTENDER,
    NOTE,
    PATH,
    Layout,
    duration,
    figure,
    print_report,
)
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.parameter_server.service import GRADIENT

MODEL: Final = "resnet50"
CLIENTS: Final = 2
SECONDS: Final = 6.0
ROLES: Final[dict[str, Role]] = {"grpcio": "peer", "tensorwire": "own"}
"""Of the libraries, of which the first one is the baseline."""


def bytes_of(model: str) -> int:
    """Of all its tensors."""
    return 4 * sum(tensor.elements for tensor in load(model))


def run(library: str, model: str = MODEL, seconds: float = SECONDS) -> list[Row]:
    """Starts the three processes, lets the clients pull and push, and checks the result: AgentError
    when a process fails, RuntimeError when the parameters are not what the pushes add up to.

    Rows of a pull, a push, and a step of both."""

    def commands(path: str) -> list[list[str]]:
        command = [sys.executable, "-m", "tensorwire.bench.suites.parameter_server.service"]
        roles = ["server", *["client"] * CLIENTS]
        return [[*command, role, library, model, path] for role in roles]

    nbytes = bytes_of(model)
    with started(commands, CLIENTS + 1) as (*hellos, (server, hello)):
        clients = [control for control, _ in hellos]
        for client in clients:
            tell([client], {"address": hello["address"]})
        for client in clients:
            expect(client, START_SECONDS, server)
        for client in clients:
            tell([client], {"seconds": seconds})
        results = [expect(client, seconds + START_SECONDS, server) for client in clients]
        steps = sum(result["steps"] for result in results)
        tell(clients[:1], {"check": True})
        found = expect(clients[0], START_SECONDS, server)
    if not found["minimum"] == found["maximum"] == steps * GRADIENT:
        raise RuntimeError(f"{steps} pushes of {GRADIENT} came to {found}: something was lost")
    copied = [result["copied_bytes"] for result in results]
    known = None not in copied
    steps_per_s = sum(result["steps"] / result["seconds"] for result in results)
    step = Row(
        *(library, ", ".join(sorted({result["path"] for result in results})), "step", 2 * nbytes),
        callers=CLIENTS,
        calls=steps,
        calls_per_s=steps_per_s,
        gb_per_s=steps_per_s * 2 * nbytes / 1e9,
        note=f"each byte was copied {sum(copied) / (steps * 2 * nbytes):.1f} times"
        if known
        else "",
    )
    halves = [
        replace(
            step,
            case=case,
            size=nbytes,
            p50_us=1e6 * statistics.median(result[f"{case}_s"] for result in results),
            calls_per_s=None,
            gb_per_s=None,
            note="",
        )
        for case in ("pull", "push")
    ]
    return [*halves, step]


def compared(rows: Sequence[Row], base: Sequence[Row]) -> list[Row]:
    """With ratios to those of the baseline: by the time of a pull and a push, and by steps."""
    return [
        replace(row, ratio=_speed(row) / _speed(other))
        for row, other in zip(rows, base, strict=True)
    ]


def _speed(row: Row) -> float:
    if row.calls_per_s is not None:
        return row.calls_per_s
    assert row.p50_us is not None
    return 1 / row.p50_us


LAYOUT: Final = Layout(
    title=lambda report: f"{MODEL}, {CLIENTS} clients: a pull, a push, and steps of both",
    columns=(
        CONTENDER,
        PATH,
        figure("p50", lambda row: row.p50_us, duration),
        figure("steps/s", lambda row: row.calls_per_s),
        figure("GB/s", lambda row: row.gb_per_s, leaves=2),
        figure("x grpcio", lambda row: row.ratio),
        NOTE,
    ),
    legend=(
        "p50: the median of a client, of both the one in the middle. A push includes applying the "
        "gradients.",
        "x grpcio: by p50, and of steps by steps/s, of all clients together.",
    ),
    group=lambda row: row.case,
)


def _told(library: str) -> list[Row]:
    """``run``, of which is told that it runs."""
    now = f"{library}: {SECONDS:.0f} s of pulls and pushes, after the start of the processes"
    with progress.lines(lambda: now):
        return run(library)


def main(
    json_: Annotated[
        bool, typer.Option("--json", help="Print the JSON object of a bench, and nothing else.")
    ] = False,
) -> None:
    """A parameter server and two clients move ResNet-50's tensors, over grpcio and tensorwire."""
    console = terminal.console()
    if not json_:
        console.print(
            f"One parameter server and {CLIENTS} clients, each a process; each step of a client "
            f"pulls and pushes the {len(load(MODEL))} trainable tensors of {MODEL} "
            f"({bytes_of(MODEL) / 1e6:.0f} MB each way).",
            highlight=False,
        )
    settings = {"model": MODEL, "clients": CLIENTS, "seconds": SECONDS}
    described = environment.describe(settings, ROLES)
    found: list[list[Row]] = []
    for library in ROLES:
        try:
            found.append(_told(library))
        except (AgentError, RuntimeError) as error:
            sys.exit(f"tensorwire: {library}: {error}")
        if not json_:
            console.print(f"{library}: done, the parameters are what the pushes add up to")
    environment.ended(described, [], interrupted=False)
    rows = [row for each in found for row in compared(each, found[0])]
    report = Report("demo-rpc", next(iter(ROLES)), described, rows)
    if json_:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_report(report, LAYOUT, console)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(signals.ending()(main))
    app()
