# SPDX-License-Identifier: Apache-2.0
"""The same training over stock gRPC, over tensorwire, and without communication, side by side."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tensorwire.bench.environment import caveats
from tensorwire.bench.train import local
from tensorwire.bench.train.figures import Figures, arena_bytes, figures
from tensorwire.bench.train.options import STOCK, TENSORWIRE, OptionError, Options
from tensorwire.terminal import Column, fitted, show, tell_left_out

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int], None]
"""Called with what runs now, and how many of all steps are done."""

INTERRUPTED = 128 + signal.SIGINT
CEILING = "no communication"
CONTENDERS = (STOCK, TENSORWIRE, CEILING)


def run(
    options: Options,
    spec: str,
    rounds: int,
    *,
    environment: Mapping[str, str],
    progress: Progress,
    contenders: tuple[str, ...] = CONTENDERS,
) -> dict[str, Any]:
    """Runs each contender once in every round, and returns the report. Ctrl-C ends it with the
    runs that are done, if there are any.

    Raises as ``local.run`` does, and TooShortError when there are too few steps to measure.
    """
    if options.variable_update == "independent":
        raise OptionError("variable_update", "independent is the ceiling already: choose another")
    steps = options.warmup + options.num_batches
    total = steps * rounds * len(contenders)
    found: dict[str, list[tuple[Figures, local.Outcome]]] = {name: [] for name in contenders}
    interrupted = False
    turns = [(round_, name) for round_ in range(1, rounds + 1) for name in contenders]
    for done, (round_, name) in enumerate(turns):
        label = f"round {round_} of {rounds}, {name}"
        progress(label, done * steps, total)
        try:
            outcome = local.run(
                for_contender(options, name),
                spec,
                show=_shower(options, label, done * steps, total, progress),
                building=_builder(label, done * steps, total, progress),
                environment=environment,
            )
        except local.ClusterError as error:
            if error.code != INTERRUPTED or done == 0:
                raise
            interrupted = True
            break
        found[name].append((figures(outcome.workers, outcome.servers), outcome))
    ran = {name: runs for name, runs in found.items() if runs}
    outcomes = [outcome for runs in ran.values() for _, outcome in runs]
    arena = arena_bytes(process for o in outcomes for process in (*o.workers, *o.servers))
    comparable = options.cross_replica_sync and {STOCK, TENSORWIRE} <= ran.keys()
    return {
        "settings": {**settings(options, spec, rounds, environment), "arena_bytes": arena},
        "rows": [row(name, runs) for name, runs in ran.items()],
        "losses_equal": losses_equal(ran) if comparable else None,
        "curves": {name: curve(runs[0][1]) for name, runs in ran.items()},
        "interrupted": interrupted,
    }


def for_contender(options: Options, name: str) -> Options:
    if name == CEILING:
        return options.but(variable_update="independent", server_protocol=STOCK)
    return options.but(server_protocol=name)


def _shower(
    options: Options, label: str, before: int, total: int, progress: Progress
) -> local.Lines:
    """Moves the progress on by the lines of the first worker."""

    def show(job: str, index: int, line: str) -> None:
        step = line.partition("\t")[0]
        if (job, index) == ("worker", 0) and "images/sec" in line and step.isdecimal():
            progress(label, before + options.warmup + int(step), total)

    return show


def _builder(label: str, done: int, total: int, progress: Progress) -> Callable[[str], None]:
    """Says that the run waits for the plugin, which is built for a minute."""

    def building(line: str) -> None:
        progress(f"{label} ({line.removeprefix('tensorwire: ')})", done, total)

    return building


def settings(
    options: Options, spec: str, rounds: int, environment: Mapping[str, str]
) -> dict[str, Any]:
    chosen = {**os.environ, **environment}
    return {
        "model": options.model,
        "batch_size": options.batch,
        "variable_update": options.variable_update,
        "cross_replica_sync": options.cross_replica_sync,
        "optimizer": options.optimizer,
        "cluster": spec,
        "rounds": rounds,
        "steps": options.num_batches,
        "transport": chosen.get("TENSORWIRE_TRANSPORT") or "auto",
    }


def row(name: str, runs: list[tuple[Figures, local.Outcome]]) -> dict[str, Any]:
    """Medians over the rounds; of what a full arena turned away, the most."""
    each = [asdict(found) for found, _ in runs]
    medians = {
        key: None if any(found[key] is None for found in each) else median(f[key] for f in each)
        for key in each[0]
        if key not in ("path", "arena_full")
    }
    arena_full = max(found["arena_full"] for found in each)
    path = {STOCK: "grpc", CEILING: "none"}.get(name, each[-1]["path"])
    images = [found["images_per_second"] for found in each]
    return {
        "contender": name,
        **medians,
        "arena_full": arena_full,
        "path": path,
        "images_per_second_of_rounds": images,
    }


def losses_equal(found: Mapping[str, list[tuple[Figures, local.Outcome]]]) -> bool:
    """Whether every step of every worker came to the same loss, bit for bit, in all runs that
    trained together."""
    curves = [
        [worker["losses"] for worker in outcome.workers]
        for name, runs in found.items()
        if name != CEILING
        for _, outcome in runs
    ]
    return all(curve == curves[0] for curve in curves)


def curve(outcome: local.Outcome) -> dict[str, list[float]]:
    """Seconds since the first step of the first worker began, and its losses."""
    worker = outcome.workers[0]
    start, *ends = worker["step_ends"]
    return {"seconds": [end - start for end in ends], "losses": worker["losses"]}


def print_table(report: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    s = report["settings"]
    stock = next((r for r in report["rows"] if r["contender"] == STOCK), None)

    def ratio(r: dict[str, Any]) -> str:
        if stock is None:
            return "-"
        return f"{r['images_per_second'] / stock['images_per_second']:.2f}"

    columns = (
        Column("", lambda r: r["contender"], text=True),
        Column("images/s", lambda r: f"{r['images_per_second']:.1f}"),
        Column("steps/s", lambda r: f"{r['steps_per_second']:.2f}", leaves=4),
        Column("x grpc", ratio),
        Column("CPU s/step", lambda r: f"{r['cpu_seconds_per_step']:.3f}", leaves=2),
        Column("MB/step", lambda r: number(r["bytes_per_step"], 1e6), leaves=3),
        Column("copies/step", lambda r: number(r["copies_per_step"], 1), leaves=1),
        Column("path", lambda r: r["path"], text=True),
    )

    def table(shown: Sequence[Column]) -> Table:
        made = Table()
        for column in shown:
            column.head(made)
        for r in report["rows"]:
            made.add_row(*(column.cell(r) for column in shown))
        return made

    fitting, left_out = fitted(console, columns, table)
    console.print(
        f"{s['model']}, batch size {s['batch_size']}, {s['variable_update']}, {s['cluster']}",
        style="italic",
        highlight=False,
    )
    show(console, fitting)
    tell_left_out(console, left_out)
    for line in notes(report):
        show(console, line)


def number(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.1f}"


def notes(report: dict[str, Any]) -> list[str]:
    s = report["settings"]
    lines = [
        "images/s of all workers together, the rest for one step of each; medians of "
        f"{s['rounds']} interleaved rounds, from the tenth step on. MB and copies of tensors as "
        "tensorwire counts them; what goes through a socket is copied. Nothing counts them in "
        "stock gRPC.",
    ]
    if s["arena_bytes"] is not None:
        lines.append(f"Arena of {s['arena_bytes'] >> 20} MiB, transport {s['transport']}.")
    lines += caveats(["verbs"] if any("verbs" in r["path"] for r in report["rows"]) else [])
    full = sum(r["arena_full"] for r in report["rows"])
    if full:
        lines.append(
            f"The arena was full {full} times: a larger one (TENSORWIRE_BUFFER_BYTES or "
            "TF_RDMA_BUF_SIZE) may be faster."
        )
    if report["losses_equal"] is not None:
        same = "equal bit for bit" if report["losses_equal"] else "NOT equal"
        lines.append(f"Losses of all runs with communication: {same}.")
    if report["interrupted"]:
        lines.append("Interrupted: these are the runs that were done.")
    return lines


def draw(report: dict[str, Any], path: Path) -> None:
    """The loss over steps, and over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    steps, seconds = figure.subplots(1, 2, sharey=True)
    styles = {STOCK: ("C1", "-", 4.0), TENSORWIRE: ("C0", "-", 1.5)}
    for name, (colour, line, width) in styles.items():
        if name in report["curves"]:
            found = report["curves"][name]
            style = {"color": colour, "linestyle": line, "linewidth": width, "label": name}
            steps.plot(range(1, len(found["losses"]) + 1), found["losses"], **style)
            seconds.plot(found["seconds"], found["losses"], **style)
    steps.set(xlabel="step", ylabel="loss of the first worker", title="The same curve")
    seconds.set(xlabel="seconds", title="in less time")
    steps.legend()
    figure.savefig(path)
