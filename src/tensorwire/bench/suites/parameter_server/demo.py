# SPDX-License-Identifier: Apache-2.0
"""``make demo``: a parameter server and two clients move ResNet-50's tensors, over grpcio and over
tensorwire, and the figures of both are printed side by side."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorwire import progress, signals, terminal
from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.processes import START_SECONDS, expect, started
from tensorwire.bench.harness.report import table
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.parameter_server.service import GRADIENT
from tensorwire.terminal import Column

if TYPE_CHECKING:
    from rich.console import Console

MODEL = "resnet50"
CLIENTS = 2
SECONDS = 6.0
LIBRARIES = ("grpcio", "tensorwire")


@dataclass(frozen=True)
class Outcome:
    """One library's run: seconds for one pull and one push (medians), steps of all clients, GB in
    10^9 bytes, and how often the library copied each byte (None: it does not say)."""

    library: str
    path: str
    pull_s: float
    push_s: float
    steps_per_s: float
    gb_per_s: float
    copies: float | None


def run(library: str, model: str = MODEL, seconds: float = SECONDS) -> Outcome:
    """Starts the three processes, lets the clients pull and push, and checks the result: AgentError
    when a process fails, RuntimeError when the parameters are not what the pushes add up to."""

    def commands(path: str) -> list[list[str]]:
        command = [sys.executable, "-m", "tensorwire.bench.suites.parameter_server.service"]
        roles = ["server", *["client"] * CLIENTS]
        return [[*command, role, library, model, path] for role in roles]

    nbytes = 4 * sum(tensor.elements for tensor in load(model))
    with started(commands, CLIENTS + 1) as (*hellos, (server, hello)):
        clients = [control for control, _ in hellos]
        for client in clients:
            client.send({"address": hello["address"]})
        for client in clients:
            expect(client, START_SECONDS, server)
        for client in clients:
            client.send({"seconds": seconds})
        results = [expect(client, seconds + START_SECONDS, server) for client in clients]
        steps = sum(result["steps"] for result in results)
        clients[0].send({"check": True})
        found = expect(clients[0], START_SECONDS, server)
    if not found["minimum"] == found["maximum"] == steps * GRADIENT:
        raise RuntimeError(f"{steps} pushes of {GRADIENT} came to {found}: something was lost")
    copied = [result["copied_bytes"] for result in results]
    steps_per_s = sum(result["steps"] / result["seconds"] for result in results)
    return Outcome(
        library=library,
        path=", ".join(sorted({result["path"] for result in results})),
        pull_s=statistics.median(result["pull_s"] for result in results),
        push_s=statistics.median(result["push_s"] for result in results),
        steps_per_s=steps_per_s,
        gb_per_s=steps_per_s * 2 * nbytes / 1e9,
        copies=None if None in copied else sum(copied) / (steps * 2 * nbytes),
    )


def _copies(outcome: Outcome) -> str:
    return "unknown" if outcome.copies is None else f"{outcome.copies:.1f}"


def print_table(outcomes: Sequence[Outcome], console: Console) -> None:
    """outcomes: grpcio's first, with which the others are compared."""
    base = outcomes[0]
    columns = (
        Column("", lambda outcome: outcome.library, text=True),
        Column("path", lambda outcome: outcome.path, text=True),
        Column("pull", lambda outcome: f"{outcome.pull_s * 1e3:.1f} ms"),
        Column("push", lambda outcome: f"{outcome.push_s * 1e3:.1f} ms"),
        Column("steps/s", lambda outcome: f"{outcome.steps_per_s:.1f}", leaves=1),
        Column("GB/s", lambda outcome: f"{outcome.gb_per_s:.2f}", leaves=2),
        Column("copies", _copies, leaves=3),
        Column("x grpcio", lambda outcome: f"{outcome.steps_per_s / base.steps_per_s:.1f}"),
    )
    fitting, left_out = terminal.fitted(
        console, columns, lambda shown: table(shown, [(None, outcomes)])
    )
    terminal.show(console, fitting)
    terminal.tell_left_out(console, left_out, json=False)


def _told(library: str) -> Outcome:
    """``run``, of which is told that it runs."""
    now = f"{library}: {SECONDS:.0f} s of pulls and pushes, after the start of the processes"
    with progress.lines(lambda: now):
        return run(library)


def main() -> None:
    console = terminal.console()
    inventory = load(MODEL)
    console.print(
        f"One parameter server and {CLIENTS} clients, each a process; each step of a client pulls "
        f"and pushes the {len(inventory)} trainable tensors of {MODEL} "
        f"({4 * sum(tensor.elements for tensor in inventory) / 1e6:.0f} MB each way).",
        highlight=False,
    )
    outcomes = []
    for library in LIBRARIES:
        try:
            outcomes.append(_told(library))
        except (AgentError, RuntimeError) as error:
            sys.exit(f"tensorwire: {library}: {error}")
        console.print(f"{library}: done, the parameters are what the pushes add up to")
    print_table(outcomes, console)
    console.print(
        "Push includes applying the gradients. Copies: how often the library copied each byte on "
        "its way; x grpcio: steps/s against grpcio's.",
        highlight=False,
    )


if __name__ == "__main__":
    with signals.ending():
        main()
