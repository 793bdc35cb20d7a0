# SPDX-License-Identifier: Apache-2.0
"""The same training over stock gRPC, over tensorwire, and without communication, side by side; or
over tensorwire without planned transfers and with them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NoReturn

from tensorwire.bench.harness.contenders import Role
from tensorwire.bench.harness.environment import caveats, describe, ended
from tensorwire.bench.harness.report import CONTENDER, PATH, Layout, figure
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.harness.schedule import Course, Progress, tour
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.train import local
from tensorwire.bench.suites.train.figures import Figures, arena_bytes, figures
from tensorwire.bench.suites.train.options import HOROVOD, STOCK, TENSORWIRE, OptionError, Options
from tensorwire.terminal import Column

Run = tuple[Figures, local.Outcome]

CEILING = "no communication"
PLANNED = f"{TENSORWIRE} planned"
NOT_REPEATABLE: Final = frozenset({"lstm", "gru"})
"""Models whose losses differ from run to run, whichever way tensors travel."""
CONTENDERS = (STOCK, TENSORWIRE, CEILING)
PLANS = (TENSORWIRE, PLANNED)
"""Contenders, where only planned transfers are asked about."""
ROLES: Final[dict[str, Role]] = {
    STOCK: "peer",
    TENSORWIRE: "own",
    PLANNED: "own",
    CEILING: "limit",
}


def run(
    options: Options,
    spec: str,
    rounds: int,
    *,
    environment: Mapping[str, str],
    progress: Progress,
    contenders: tuple[str, ...] = CONTENDERS,
) -> tuple[Report, bool]:
    """The report, and whether all contenders are in it. Runs each contender once in every round;
    ratios are to the first of them. Ctrl-C, SIGTERM or SIGHUP ends it with the runs that are done,
    if there are any. A contender whose cluster fails is run no more, and has no figures.

    Raises as ``local.run`` does when there are no figures, and TooShortError when there are too few
    steps to measure.
    """
    if options.variable_update == "independent":
        raise OptionError("variable_update", "independent is the ceiling already: choose another")
    if options.variable_update == HOROVOD:
        raise OptionError("variable_update", "horovod has no protocols to compare: choose another")
    described = describe(settings(options, spec, rounds, environment), ROLES)
    steps = options.warmup + options.num_batches
    found: dict[str, list[Run]] = {name: [] for name in contenders}
    course = Course()
    failures: list[local.ClusterError] = []
    turns = [(round_, name) for round_ in range(1, rounds + 1) for name in contenders]

    def of_steps(now: str, done: int, total: int) -> None:
        progress(now, done * steps, total * steps)

    def label(turn: tuple[int, str]) -> str:
        return f"round {turn[0]} of {rounds}, {turn[1]}"

    def visit(turn: tuple[int, str]) -> None:
        before = sum(map(len, found.values())) * steps
        total = len(turns) * steps
        try:
            outcome = local.run(
                for_contender(options, turn[1]),
                spec,
                show=_shower(options, label(turn), before, total, progress),
                building=_builder(label(turn), before, total, progress),
                environment={**environment, **_plans(turn[1], contenders)},
            )
        except local.ClusterError as error:
            if before == 0:
                raise
            if error.signalled is not None:
                _end_by(error.signalled)
            failures.append(error)
            course.note(f"{label(turn)}: {error}")
            del found[turn[1]]
        else:
            found[turn[1]].append((figures(outcome.workers, outcome.servers), outcome))

    left = (turn for turn in turns if turn[1] in found)
    tour(left, len(turns), label, visit, course, of_steps)
    ran = {name: runs for name, runs in found.items() if runs}
    if not ran and failures:
        raise failures[-1]
    if not ran:
        raise KeyboardInterrupt  # there is nothing to report
    outcomes = [outcome for runs in ran.values() for _, outcome in runs]
    described["settings"]["arena_bytes"] = arena_bytes(
        process for each in outcomes for process in (*each.workers, *each.servers)
    )
    base = ran.get(contenders[0])
    found_rows = [row(name, runs, options, base) for name, runs in ran.items()]
    report = Report("train", contenders[0], described, found_rows, details(options, ran))
    ended(described, [*notes(report), *course.notes], course.interrupted)
    return report, not course.failed


def _end_by(number: int) -> NoReturn:
    """Ends as a signal to this process does; the cluster that it has ended had taken it."""
    signal.raise_signal(number)  # whose handler knows how the command ends
    raise SystemExit(128 + number)


def for_contender(options: Options, name: str) -> Options:
    if name == CEILING:
        return options.but(variable_update="independent", server_protocol=STOCK)
    return options.but(server_protocol=TENSORWIRE if name == PLANNED else name)


def _plans(name: str, contenders: Sequence[str]) -> dict[str, str]:
    """What a contender has in its environment: where some have plans, the others have none."""
    if PLANNED not in contenders:
        return {}
    return {"TENSORWIRE_TF_PLAN": "on" if name == PLANNED else "off"}


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


def row(name: str, runs: Sequence[Run], options: Options, base: Sequence[Run] | None) -> Row:
    """Medians over the rounds."""

    def middle(of: Callable[[Figures], float | None], of_runs: Sequence[Run] = runs) -> Any:
        values = [value for each, _ in of_runs if (value := of(each)) is not None]
        return median(values) if len(values) == len(of_runs) else None

    images = middle(lambda each: each.images_per_second)
    return Row(
        contender=name,
        transport={STOCK: "grpc", CEILING: "none"}.get(name, runs[-1][0].path),
        case=options.model,
        size=sum(4 * tensor.elements for tensor in load(options.model)),
        payload="tensor",
        reads=True,
        callers=len(runs[0][1].workers),
        calls=round(sum(each.steps_per_second * each.seconds for each, _ in runs)),
        calls_per_s=middle(lambda each: each.steps_per_second),
        items_per_s=images,
        cpu_s_per_call=middle(lambda each: each.cpu_seconds_per_step),
        bytes_per_call=middle(lambda each: each.bytes_per_step),
        copies_per_call=middle(lambda each: each.copies_per_step),
        ratio=images / middle(lambda each: each.images_per_second, base) if base else None,
    )


def details(options: Options, ran: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """``losses_equal``: None where that cannot be known; ``losses_repeat``: of each contender, the
    same of its rounds alone. ``curves``: of the first round, the losses
    of the first worker. ``rounds``: of each row, a figure of each round. The rest by contender, for
    each round."""
    comparable = options.cross_replica_sync and len(ran.keys() - {CEILING}) > 1
    return {
        "losses_equal": losses_equal(ran) if comparable else None,
        "losses_repeat": {
            name: losses_equal({name: runs}) if comparable and len(runs) > 1 else None
            for name, runs in ran.items()
            if name != CEILING
        },
        "curves": {name: curve(runs[0][1]) for name, runs in ran.items()},
        "images_per_second": {
            name: [each.images_per_second for each, _ in runs] for name, runs in ran.items()
        },
        "rounds": [
            {"items_per_s": [each.images_per_second for each, _ in runs]} for runs in ran.values()
        ],
        "arena_full": {name: [each.arena_full for each, _ in runs] for name, runs in ran.items()},
    }


def losses_equal(found: Mapping[str, Sequence[Run]]) -> bool:
    """Whether every step of every worker came to the same loss, bit for bit, in all runs that
    trained together."""
    curves = [
        [worker["losses"] for worker in outcome.workers]
        for name, runs in found.items()
        if name != CEILING
        for _, outcome in runs
    ]
    return all(curve == curves[0] for curve in curves)


def curve(outcome: local.Outcome) -> dict[str, list[float | None]]:
    """Seconds since the first step of the first worker began, and its losses; None for one that was
    no finite number."""
    worker = outcome.workers[0]
    start, *ends = worker["step_ends"]
    return {"seconds": [end - start for end in ends], "losses": worker["losses"]}


def title(report: Report) -> str:
    s = report.environment["settings"]
    return (
        f"{s['model']}, batch size {s['batch_size']}, {s['variable_update']}, {s['cluster']}, "
        f"rounds: {s['rounds']}"
    )


def _more(report: Report) -> Sequence[Column]:
    base = "grpc" if report.baseline == STOCK else "unplanned"
    return [
        figure(f"x {base}", lambda row: row.ratio, "{:.2f}".format),
        figure("CPU s/step", lambda row: row.cpu_s_per_call, "{:.3f}".format, leaves=2),
        figure("MB/step", lambda row: row.bytes_per_call, lambda x: f"{x / 1e6:.1f}", leaves=3),
        figure("copies/step", lambda row: row.copies_per_call, "{:.1f}".format, leaves=1),
        PATH,
    ]


LAYOUT: Final = Layout(
    title=title,
    columns=(
        CONTENDER,
        figure("images/s", lambda row: row.items_per_s, "{:.1f}".format),
        figure("steps/s", lambda row: row.calls_per_s, "{:.2f}".format, leaves=4),
    ),
    more=_more,
    legend=(
        "images/s of all workers together, the rest for one step of each; medians of interleaved "
        "rounds, from the tenth step on. MB and copies of tensors as tensorwire counts them; what "
        "goes through a socket is copied. Nothing counts them in stock gRPC.",
    ),
    group=lambda row: row.case,
)


def notes(report: Report) -> list[str]:
    s, lines = report.environment["settings"], []
    if s["arena_bytes"] is not None:
        lines.append(f"Arena of {s['arena_bytes'] >> 20} MiB, transport {s['transport']}.")
    lines += caveats(["verbs"] if any("verbs" in row.transport for row in report.rows) else [])
    full = sum(map(max, report.details["arena_full"].values()))
    if full:
        lines.append(
            f"The arena was full {full} times: a larger one (TENSORWIRE_BUFFER_BYTES or "
            "TF_RDMA_BUF_SIZE) may be faster."
        )
    if report.details["losses_equal"] is not None:
        same = "equal bit for bit" if report.details["losses_equal"] else "NOT equal"
        lines.append(f"Losses of all runs with communication: {same}.")
        lines += [] if report.details["losses_equal"] else _why_not_equal(report)
    return lines


def _why_not_equal(report: Report) -> Iterator[str]:
    model = report.environment["settings"]["model"]
    repeated = report.details.get("losses_repeat", {})  # not in older reports
    alone = [name for name, same in repeated.items() if same is False]
    if alone:
        yield f"Rounds of one contender differ, too, those of {' and '.join(alone)}."
    if model in NOT_REPEATABLE:
        yield (
            f"Losses of {model} may differ in their last bits between two runs of stock gRPC, too: "
            "for this model they tell nothing of transfers."
        )


def draw(report: Report, path: Path) -> None:
    """The loss over steps, and over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    steps, seconds = figure.subplots(1, 2, sharey=True)
    styles = {
        STOCK: ("C1", "-", 4.0),
        TENSORWIRE: ("C0", "-", 1.5),
        PLANNED: ("C2", "--", 1.5),
    }
    for name, (colour, line, width) in styles.items():
        if name in report.details["curves"]:
            found = report.details["curves"][name]
            style = {"color": colour, "linestyle": line, "linewidth": width, "label": name}
            steps.plot(range(1, len(found["losses"]) + 1), found["losses"], **style)
            seconds.plot(found["seconds"], found["losses"], **style)
    steps.set(xlabel="step", ylabel="loss of the first worker", title="The same curve")
    seconds.set(xlabel="seconds", title="in less time")
    steps.legend()
    figure.savefig(path)
