# SPDX-License-Identifier: Apache-2.0
"""Tables of TensorFlow: its steps, measured by ``tensorwire bench tensorflow``, and training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.figures.rows import MB, WAYS, Rows, measured, part, table, times, with_ratio, wrapped
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
        row = step(rows, way, case, size)
        if row is None:
            return ""
        ratio = row.ratio if way != "grpc" else None
        return with_ratio(duration(measured(row.p50_us)), ratio, bold=way == "shm")

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
    return times(row.ratio) + (f" ({less})" if cpu else "")


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
    return with_ratio(duration(measured(row.p50_us)), row.ratio if name != "grpc" else None)


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
    run without it."""

    command: str
    model: str
    batch: int
    grpc: Row
    shm: Row
    tcp: Row | None
    ceiling: Row


def images(row: Row) -> float:
    """In a second."""
    return measured(row.items_per_s)


def trained() -> Iterator[Training]:
    """In their order in the file, those of which stock gRPC and ours were measured."""
    found: dict[tuple[str, int], dict[str, dict[str, Row]]] = {}
    commands: dict[tuple[str, int, str], str] = {}
    for each in kept("training"):
        report = Report.from_json(each["report"])
        settings = report.environment["settings"]
        way = "tcp" if each["command"].endswith(" --transport tcp") else "shm"
        model, batch = settings["model"], settings["batch_size"]
        ways = found.setdefault((model, batch), {})
        ways[way] = {row.contender: row for row in report.rows}
        commands[model, batch, way] = each["command"]
    for (model, batch), ways in found.items():
        if rows := ways.get("shm"):
            tcp = ways["tcp"]["grpc+tensorwire"] if "tcp" in ways else None
            yield Training(
                commands[model, batch, "shm"],
                model,
                batch,
                rows["grpc"],
                rows["grpc+tensorwire"],
                tcp,
                rows["no communication"],
            )


def training() -> str:
    def speed(row: Row | None, stock: Row | None = None) -> str:
        if row is None:
            return ""
        return with_ratio(significant(images(row)), images(row) / images(stock) if stock else None)

    return table(
        [
            "model, batch",
            "grpc",
            "shm",
            "tcp only",
            "no communication",
            "CPU seconds per step, grpc and shm",
        ],
        [
            [
                f"{each.model} {each.batch}",
                speed(each.grpc),
                speed(each.shm, each.grpc),
                speed(each.tcp, each.grpc),
                speed(each.ceiling),
                ", ".join(f"{measured(row.cpu_s_per_call):.2f}" for row in (each.grpc, each.shm)),
            ]
            for each in trained()
        ],
    )


MODELS: Final = {
    "alexnet": "AlexNet",
    "vgg16": "VGG-16",
    "fcn5": "fully connected (fcn5)",
    "resnet50": "ResNet-50",
    "inception3": "Inception v3",
}


def guide_training() -> str:
    return table(
        ["model, batch", "shared memory", "of what no communication gives"],
        [
            [
                f"{MODELS[each.model]} {each.batch}",
                times(images(each.shm) / images(each.grpc)),
                f"{images(each.shm) / images(each.ceiling):.2f}",
            ]
            for each in trained()
        ],
    )


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
    text += "Losses are the same, bit for bit."
    if "--rounds 1" in shown.command:
        text += " Each was measured once."
    return f"{wrapped(text)}\n(`{shown.command}`)"
