# SPDX-License-Identifier: Apache-2.0
"""Tables of TensorFlow: its steps, measured by ``tensorwire bench tensorflow``, and training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.figures.rows import (
    MB,
    WAYS,
    Rows,
    about,
    measured,
    part,
    table,
    times,
    with_ratio,
    wrapped,
)
from tests.figures.sets import kept, load

from tensorwire.bench.harness.report import duration, significant
from tensorwire.bench.harness.rows import Report, Row, spread
from tensorwire.bench.suites.tensorflow.cases import MANY


def step(rows: Rows, way: str, case: str, size: int) -> Row | None:
    contender = "grpc" if way == "grpc" else "tensorwire"
    return rows.one(contender=contender, transport=way, case=case, size=size)


STEPS: Final = {
    "a variable read by another process, 1 MiB": ("tensor", MB),
    "16 MiB": ("tensor", 16 * MB),
    "64 MiB": ("tensor", 64 * MB),
    "256 MiB": ("tensor", 256 * MB),
    "parameter-server step, 100 MiB read and applied": ("ps-step", 100 * MB),
    "ring allreduce, 64 MiB": ("allreduce", 64 * MB),
}


def readme_steps() -> str:
    rows = Rows(load("tensorflow"))

    def cell(way: str, case: str, size: int) -> str:
        row, stock = step(rows, way, case, size), step(rows, "grpc", case, size)
        if row is None:
            return ""
        ratio = row.ratio if way != "grpc" else None
        return with_ratio(duration(measured(row.p50_us)), ratio, row, stock, bold=way == "shm")

    lines = [
        [label, *(cell(way, case, size) for way in ("grpc", *WAYS))]
        for label, (case, size) in STEPS.items()
    ]
    return table(["step", "grpc", "shm", "tcp only"], lines)


def _step_ratio(rows: Rows, way: str, case: str, size: int, *, cpu: bool = False) -> str:
    row, stock = step(rows, way, case, size), step(rows, "grpc", case, size)
    if row is None or stock is None:
        return ""
    less = part(measured(stock.cpu_s_per_call) / measured(row.cpu_s_per_call))
    return about(times(row.ratio), row, stock) + (f" ({less})" if cpu else "")


def _variables(rows: Rows, way: str) -> str:
    return ", ".join(
        filter(None, (_step_ratio(rows, way, "tensor", size * MB) for size in (1, 16, 64, 256)))
    )


def steps() -> str:
    rows = Rows(load("tensorflow"))
    return table(
        ["case", "shm", "tcp only"],
        [
            [
                "one tensor between two processes: 4 B",
                *(_step_ratio(rows, way, "tensor", 4) for way in WAYS),
            ],
            ["1, 16, 64, 256 MiB", *(_variables(rows, way) for way in WAYS)],
            [
                "parameter-server step, 100 MiB (CPU seconds)",
                *(_step_ratio(rows, way, "ps-step", 100 * MB, cpu=True) for way in WAYS),
            ],
            [
                "ring allreduce, 64 MiB, 2 workers (CPU seconds)",
                *(_step_ratio(rows, way, "allreduce", 64 * MB, cpu=True) for way in WAYS),
            ],
        ],
    )


def guide_steps() -> str:
    rows = Rows(load("tensorflow"))
    return table(
        ["step", "shared memory", "TCP only"],
        [
            [
                "a variable of 1, 16, 64, 256 MiB read by another process",
                *(_variables(rows, way) for way in WAYS),
            ],
            [
                "parameter-server step, 100 MiB read and updated",
                *(_step_ratio(rows, way, "ps-step", 100 * MB) for way in WAYS),
            ],
            [
                "ring allreduce of 64 MiB, 2 workers",
                *(_step_ratio(rows, way, "allreduce", 64 * MB) for way in WAYS),
            ],
        ],
    )


SMALL: Final = {"4 KiB": 4 << 10, "64 KiB": 64 << 10}
"""Bytes of each of many variables."""
PLANNED: Final = "tensorwire-planned"


def _many(rows: Rows, name: str, way: str, size: int) -> str:
    row = rows.one(contender=name, transport=way, case="many", size=MANY * size)
    if row is None:
        return ""
    stock = rows.one(contender="grpc", case="many", size=MANY * size)
    ratio = row.ratio if name != "grpc" else None
    return with_ratio(duration(measured(row.p50_us)), ratio, row, stock)


def many() -> str:
    rows = Rows(load("many"))
    ways = [("grpc", "grpc"), *((name, way) for way in WAYS for name in ("tensorwire", PLANNED))]
    return table(
        [f"{MANY} variables, of each", "grpc", "shm", "shm, planned", "tcp", "tcp, planned"],
        [[label, *(_many(rows, *way, size) for way in ways)] for label, size in SMALL.items()],
    )


def readme_many() -> str:
    rows, size = Rows(load("many")), SMALL["4 KiB"]
    stock, ours, planned = (
        _many(rows, *way, size)
        for way in (("grpc", "grpc"), ("tensorwire", "shm"), (PLANNED, "shm"))
    )
    return wrapped(
        f"A step that reads {MANY} variables of 4 KiB: {stock} over grpc, {ours} over shared "
        f"memory, and {planned} as [planned transfers](docs/tensorflow.md#planned-transfers)."
    )


def plans() -> str:
    """Of each model its speed with plans as a part of that without, and how far the rounds of each
    were apart."""
    lines = []
    for report in load("plans"):
        without, planned = report.rows
        apart = (
            spread(each["items_per_s"]) for each in report.details["rounds"] if each["items_per_s"]
        )
        lines.append(
            [
                without.case,
                significant(images(without)),
                significant(images(planned)),
                f"{images(planned) / images(without):.2f}",
                ", ".join(f"{each:.0%}" for each in apart),
            ]
        )
    return table(["model", "images/s", "planned", "ratio", "rounds apart"], lines)


class Training(NamedTuple):
    """One model; a row for each contender. ``command``: the one with shared memory; ``tcp``: of the
    run without it. ``equal``: whether losses of all its runs were; None where nobody compared."""

    command: str
    model: str
    batch: int
    rounds: int
    equal: bool | None
    grpc: Row
    shm: Row
    tcp: Row | None
    ceiling: Row

    @property
    def steps(self) -> int:
        """Of a worker, that were timed of each contender at least."""
        rows = (self.grpc, self.shm, self.tcp, self.ceiling)
        return min(row.calls for row in rows if row)


def images(row: Row) -> float:
    """In a second."""
    return measured(row.items_per_s)


def trained() -> Iterator[Training]:
    """In their order in the file, those of which stock gRPC and ours were measured."""
    found: dict[tuple[str, int], dict[str, dict[str, Row]]] = {}
    commands: dict[tuple[str, int, str], str] = {}
    rounds: dict[tuple[str, int], int] = {}
    equal: dict[tuple[str, int], list[bool | None]] = {}
    for each in kept("training"):
        report = Report.from_json(each["report"])
        settings = report.environment["settings"]
        way = "tcp" if each["command"].endswith(" --transport tcp") else "shm"
        model, batch = settings["model"], settings["batch_size"]
        ways = found.setdefault((model, batch), {})
        ways[way] = {row.contender: row for row in report.rows}
        commands[model, batch, way] = each["command"]
        rounds[model, batch] = min(
            settings["rounds"], rounds.get((model, batch), settings["rounds"])
        )
        equal.setdefault((model, batch), []).append(report.details.get("losses_equal"))
    for (model, batch), ways in found.items():
        if rows := ways.get("shm"):
            tcp = ways["tcp"]["grpc+tensorwire"] if "tcp" in ways else None
            yield Training(
                commands[model, batch, "shm"],
                model,
                batch,
                rounds[model, batch],
                None if None in equal[model, batch] else all(equal[model, batch]),
                rows["grpc"],
                rows["grpc+tensorwire"],
                tcp,
                rows["no communication"],
            )


def _made_by() -> str:
    """The commands, as one."""
    found: dict[str, list[int]] = {}
    for each in kept("training"):
        command = each["command"].removesuffix(" --transport tcp")
        (batches,) = re.findall(r"--num_batches (\d+)", command)
        for option, name in (("model", "MODEL"), ("batch_size", "N"), ("num_batches", "B")):
            command = re.sub(rf"--{option} \S+", f"--{option} {name}", command)
        found.setdefault(command, []).append(int(batches))
    return " and ".join(
        f"`{command}` (B: from {min(counts)} to {max(counts)})" for command, counts in found.items()
    )


def _how_often(models: Sequence[Training]) -> str:
    least = min(each.rounds for each in models)
    return "once" if least == 1 else f"in {least} rounds"


def _losses(models: Sequence[Training]) -> str:
    """A sentence, which says nothing of what was not compared."""
    other = [f"{each.model} {each.batch}" for each in models if each.equal is False]
    if other:
        return f"Losses of {', '.join(other)} were not equal."
    same = all(each.equal for each in models)
    return "Losses are the same, bit for bit." if same else ""


def training() -> str:
    models = list(trained())

    def speed(row: Row | None, ratio: float | None = None) -> str:
        return "" if row is None else with_ratio(significant(images(row)), ratio)

    text = table(
        [
            "model, batch",
            "grpc",
            "shm",
            "tcp only",
            "no communication",
            "CPU seconds per step, grpc and shm",
            "steps timed, at least",
        ],
        [
            [
                f"{each.model} {each.batch}",
                speed(each.grpc),
                speed(each.shm, each.shm.ratio),
                speed(each.tcp, each.tcp.ratio if each.tcp else None),
                speed(each.ceiling),
                ", ".join(f"{measured(row.cpu_s_per_call):.2f}" for row in (each.grpc, each.shm)),
                str(each.steps),
            ]
            for each in models
        ],
    )
    about = (
        f"By {_made_by()}, and for *tcp only* in another run with `--transport tcp`. Ratios are to "
        "stock gRPC in the same run; grpc, no communication and CPU are of the run with shared "
        f"memory. Each was measured {_how_often(models)}, over as few steps as the last column "
        f"tells. {_losses(models)}"
    )
    if all(each.shm.copies_per_call == 0 for each in models):
        about += " Over shm no tensor of 32 KiB or more was copied."
    return f"{text}\n\n{wrapped(about.strip())}"


MODELS: Final = {
    "alexnet": "AlexNet",
    "vgg16": "VGG-16",
    "fcn5": "fully connected (fcn5)",
    "resnet50": "ResNet-50",
    "inception3": "Inception v3",
}


def guide_training() -> str:
    models = list(trained())
    text = table(
        ["model, batch", "shared memory", "of what no communication gives", "steps timed"],
        [
            [
                f"{MODELS[each.model]} {each.batch}",
                times(images(each.shm) / images(each.grpc)),
                f"{images(each.shm) / images(each.ceiling):.2f}",
                str(each.steps),
            ]
            for each in models
        ],
    )
    about = f"Each was measured {_how_often(models)}, over so few steps. {_losses(models)}"
    return f"{text}\n\n{wrapped(about.strip())}"


def readme_training() -> str:
    """Of the first model, and of the one that gains the least."""

    def gain(each: Training) -> float:
        return images(each.shm) / images(each.grpc)

    def speeds(each: Training) -> tuple[str, str, str]:
        stock, ours, ceiling = map(images, (each.grpc, each.shm, each.ceiling))
        return significant(stock), significant(ours), significant(ceiling)

    def title(each: Training) -> str:
        return f"{MODELS[each.model]} at batch {each.batch}"

    models = list(trained())
    shown, least = models[0], min(models, key=gain)
    stock, ours, ceiling = speeds(shown)
    text = (
        "Training gains the time that it spent on communication. With 1 PS and 2 workers "
        f"{title(shown)} went from {stock} to {ours} images/s; it would be {ceiling} without any "
        "communication. "
    )
    if least is not shown:
        stock, ours, ceiling = speeds(least)
        text += (
            f"{title(least)}, which gains the least of {len(models)} models, went from {stock} to "
            f"{ours}, of {ceiling}. "
        )
    fewest, most = min(each.steps for each in models), max(each.steps for each in models)
    text += (
        f"{_losses(models)} Each was measured {_how_often(models)}, over {fewest} to {most} steps."
    )
    return f"{wrapped(text)}\n(`{shown.command}`)"
