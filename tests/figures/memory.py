# SPDX-License-Identifier: Apache-2.0
"""Tables of what moves memory: collectives, remote memory, weights."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Final

from tests.figures.rows import MB, Line, Rows, about, faster, measured, table, times, wrapped
from tests.figures.sets import SETS, kept, load

from tensorwire.bench.harness.fresh import FIRST
from tensorwire.bench.harness.report import duration, rate
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.suites.remote.contender import BATCH
from tensorwire.bench.suites.weights.contender import COPIED, PUBLISHED

REDUCED: Final = {
    "8 B": 8,
    "64 KiB": 64 << 10,
    "1 MiB": MB,
    "8 MiB": 8 * MB,
    "64 MiB": 64 * MB,
    "256 MiB": 256 * MB,
}
"""All-reduces by two ranks, by four, and by two over TCP."""
REDUCED_BY_FOUR: Final = ("8 B", "64 KiB", "1 MiB", "64 MiB")
REDUCED_OVER_TCP: Final = ("8 B", "1 MiB", "64 MiB")
MOVED: Final = ("broadcast", "all_gather", "reduce_scatter", "all_to_all")
"""By two ranks, 64 MiB."""
ROOTED: Final = ("reduce", "gather", "scatter")
"""The same."""
SENT: Final = (("ping_pong", "8 B"), ("stream", "64 KiB"), ("stream", "1 MiB"))


def _against(ours: Row | None, other: Row | None, *, bold: bool = False) -> str:
    """How many times faster ours is; with the other's time where that is ahead."""
    if ours is None or other is None:
        return ""
    by = measured(other.p50_us) / measured(ours.p50_us)
    return faster(ours, other, bold=bold) + (
        f" ({duration(measured(other.p50_us))})" if by < 1 else ""
    )


def _share(ours: Row | None, limit: Row | None) -> str:
    """How many times as fast as memory's line, which moves other amounts."""
    if ours is None or limit is None:
        return ""
    return f"{measured(limit.p50_us) / measured(ours.p50_us):.2f}"


def _time(row: Row | None) -> str:
    return "" if row is None else duration(measured(row.p50_us))


def _what(command: str) -> str:
    """That it measures, for however long."""
    return re.sub(r" --(rounds|seconds) \S+", "", command)


def collectives() -> str:
    found = kept("collectives")
    made = {_what(each["command"]): Report.from_json(each["report"]) for each in found}
    by_two, by_four, over_tcp, moved, rooted, sent = map(_what, SETS["collectives"].commands)

    def line(title: str, command: str, case: str, size: str, ours: str = "tensorwire") -> Line:
        rows = Rows([made[command]] if command in made else [])
        gloo, mpich, openmpi, limit, own = (
            rows.one(contender=name, case=case, size=REDUCED[size])
            for name in ("gloo", "mpich", "openmpi", "memory", ours)
        )
        share = _share(own, limit) if REDUCED[size] >= MB else ""
        by_mpi = (_against(own, mpich), _against(own, openmpi))
        return [f"{title}, {size}", _time(own), _against(own, gloo, bold=True), *by_mpi, share]

    def halves() -> Line:
        """The same bytes in twice as many elements."""
        rows = Rows(load("types"))
        whole, half = (
            rows.one(contender="tensorwire", payload=payload, size=64 * MB)
            for payload in ("float32", "bfloat16")
        )
        beside = f" ({faster(half, whole)} the speed of float32)" if whole and half else ""
        return [f"all-reduce of bfloat16, 2 ranks, 64 MiB{beside}", _time(half), "", "", "", ""]

    return table(
        ["what", "tensorwire", "x gloo", "x MPICH", "x Open MPI", "beside memory"],
        [
            *(line("all-reduce, 2 ranks", by_two, "all_reduce", size) for size in REDUCED),
            *(line("all-reduce, 4 ranks", by_four, "all_reduce", size) for size in REDUCED_BY_FOUR),
            *(
                line("all-reduce over TCP, 2 ranks", over_tcp, "all_reduce", size, "tensorwire-tcp")
                for size in REDUCED_OVER_TCP
            ),
            halves(),
            *(line(f"`{case}`, 2 ranks", moved, case, "64 MiB") for case in MOVED),
            *(line(f"`{case}`, 2 ranks", rooted, case, "64 MiB") for case in ROOTED),
            *(line(f"`{case}`, a message", sent, case, size) for case, size in SENT),
        ],
    )


ACCESSES: Final = {
    "read 8 B": ("read", 8),
    "read 64 KiB": ("read", 64 << 10),
    "of a published array of 64 KiB": ("read_published", 64 << 10),
    "read 1 MiB": ("read", MB),
    "of a published array of 1 MiB": ("read_published", MB),
    "512 prepared reads of 4 KiB, each": ("batch", 2 * MB),
    "100,000 strided reads of 64 B, described": ("prepare", 6_400_000),
    "fetch_add of 8 B": ("fetch_add", 8),
    "write and signal, there and back": ("signal", 8),
    "read 64 MiB": ("read", 64 * MB),
    "of a published array of 64 MiB": ("read_published", 64 * MB),
    "array of JAX, 64 MiB": ("jax", 64 * MB),
    "the same, published": ("jax_published", 64 * MB),
}
OTHERS: Final = {
    "mpi": ("MPICH", "shm"),
    "nixl": ("NIXL", "shm"),
    "jax": ("jax.experimental.transfer", "tcp"),
}


def remote() -> str:
    rows = Rows(load("remote"))

    def found(name: str, way: str, case: str, size: int) -> str:
        row = rows.one(contender=name, transport=way, case=case, size=size)
        each = BATCH if case == "batch" else 1
        return "" if row is None else duration(measured(row.p50_us) / each)

    def line(label: str, case: str, size: int) -> Line:
        others = ((title, found(name, way, case, size)) for name, (title, way) in OTHERS.items())
        return [
            label,
            found("tensorwire", "shm", case, size),
            ", ".join(f"{title} {time}" for title, time in others if time),
            found("tensorwire", "tcp", case, size),
            found("nixl", "tcp", case, size),
        ]

    return table(
        ["", "shm", "others", "tcp", "NIXL over tcp"],
        [line(label, *work) for label, work in ACCESSES.items()],
    )


def first() -> str:
    """What new processes move first, beside the same by those that have moved more."""
    calls, weights = load("first")

    def lines(title: str, report: Report, case: str) -> list[Line]:
        rows = Rows([report])
        found: list[Line] = []
        for row in report.rows:
            steady = rows.one(contender=row.contender, transport=row.transport, case=case)
            if row.case != FIRST or steady is None:
                continue
            later = measured(steady.p50_us)
            by = about(f"{measured(row.p50_us) / later:.1f}x", row, steady)
            name = row.contender.removesuffix(f"-{row.transport}")
            own = [f"{title}, {name} over {row.transport}", duration(later)]
            found.append([*own, duration(measured(row.p50_us)), by])
        return found

    return table(
        ["", "later", "first", "of later"],
        [*lines("64 MiB, a call", calls, "request"), *lines("1 GiB of weights", weights, "copied")],
    )


RECEIVERS: Final = {
    "memcpy": "memcpy by both",
    "mpich": "MPICH",
    "nixl": "NIXL",
    "nixl-tcp": "NIXL over tcp",
    "gloo": "gloo",
    "grpcio": "grpcio",
}
COUNTED: Final = "the same, `publish()` counted"
WEIGHTS: Final[dict[str, tuple[str, str, set[str]]]] = {
    "shm, into the receivers' own memory": ("tensorwire", COPIED, {"nixl-tcp"}),
    f"shm, {COUNTED}": ("tensorwire", PUBLISHED, {"nixl-tcp"}),
    "shm, adopted": ("tensorwire", "adopted", set()),
    "tcp": ("tensorwire-tcp", COPIED, {"nixl"}),
    f"tcp, {COUNTED}": ("tensorwire-tcp", PUBLISHED, {"nixl"}),
    "tcp, in place": ("tensorwire-in-place-tcp", COPIED, {"nixl"}),
    f"tcp, in place, {COUNTED}": ("tensorwire-in-place-tcp", PUBLISHED, {"nixl"}),
    "shm, from four trainers, in parts": ("tensorwire-sharded", "resharded", set()),
    "tcp, from four trainers, in parts": ("tensorwire-sharded-tcp", "resharded", set()),
}
"""Of each line the contender, the case, and with whom it is not compared."""


def weights() -> str:
    """What others do begins at the trainer's own parameters: where ours was measured from there,
    too, it is that which is compared with them."""
    rows = Rows(load("weights"))
    size = max(row.size for row in rows.all)

    def line(label: str, name: str, case: str, without: Collection[str]) -> Line:
        ours = rows.one(contender=name, case=case, size=size)
        begins_later = case == COPIED and rows.one(contender=name, case=PUBLISHED, size=size)
        against = []
        for other, title in RECEIVERS.items():
            theirs = COPIED if case == PUBLISHED else case
            row = rows.one(contender=other, case=theirs, size=size)
            if ours and row and other not in without and not begins_later:
                against.append(f"{title} {_time(row)} ({faster(ours, row)})")
        return [label, _time(ours), ", ".join(against)]

    text = table(
        ["1 GiB to two receivers", "p50", "against"],
        [line(label, *each) for label, each in WEIGHTS.items()],
    )
    return f"{text}\n\n{wrapped(_of_publish(rows))}"


def _of_publish(rows: Rows) -> str:
    """What a reader of the times of weights has to know."""
    if any(row.case == PUBLISHED for row in rows.all):
        return (
            "The others send from the trainer's parameters. Ours sends from its arena, into which "
            "`publish()` copies all bytes before: with that counted, both begin at the same moment."
        )
    return (
        "The others send from the trainer's parameters. Ours sends from its arena, into which "
        "`publish()` has copied all bytes before: that is not counted here, and takes one more "
        "copy of all the bytes."
    )


def readme() -> str:
    """One line of each, with the fastest of the others among those that it names."""
    reduced, queued = Rows(load("collectives")[:1]), Rows(load("queue"))
    accessed, moved = Rows(load("remote")), Rows(load("weights"))

    def line(label: str, ours: Row | None, others: Mapping[str, Row | None]) -> Line:
        against = (
            f"{name} {_time(row)}, {_against(ours, row, bold=True)}"
            for name, row in others.items()
            if row
        )
        return [label, _time(ours), "; ".join(against)]

    def all_reduce(name: str) -> Row | None:
        return reduced.one(contender=name, case="all_reduce", size=64 * MB)

    by_mpi = {"MPICH": all_reduce("mpich"), "Open MPI": all_reduce("openmpi")}
    mpi = min(by_mpi.items(), key=lambda it: measured(it[1].p50_us) if it[1] else math.inf)

    def read(name: str) -> Row | None:
        return accessed.one(contender=name, transport="shm", case="read", size=8)

    def weights_of(name: str, case: str = COPIED) -> Row | None:
        return moved.one(contender=name, case=case, size=max(row.size for row in moved.all))

    label = "[weights](docs/weights.md) of 1 GiB, to two receivers"
    ours, counted = weights_of("tensorwire"), weights_of("tensorwire", PUBLISHED)
    others = {title: weights_of(title.lower()) for title in ("NIXL", "gloo", "grpcio")}
    sent = [line(label, counted or ours, others)]
    if counted:
        sent.append(line("the same, from when `publish()` has ended", ours, {}))

    text = table(
        ["between two ranks or processes", "over shared memory", "others"],
        [
            line(
                "[all-reduce](docs/collectives.md) of 64 MiB",
                all_reduce("tensorwire"),
                {mpi[0]: mpi[1], "gloo": all_reduce("gloo")},
            ),
            line(
                "8 B read from [another process's memory](docs/remote.md)",
                read("tensorwire"),
                {"NIXL": read("nixl"), "MPICH": read("mpi")},
            ),
            *sent,
            _queued(queued),
        ],
    )
    about = _of_publish(moved)
    return f"{text}\n\n{wrapped(f'Weights: {about[0].lower()}{about[1:]}')}"


def _queued(rows: Rows) -> Line:
    """By items in a second: the time of one is that within a group."""

    def found(name: str, **way: str) -> Row | None:
        return rows.one(contender=name, case="queue", size=16 * MB, **way)

    def speed(row: Row) -> str:
        return f"{rate(measured(row.calls_per_s))} items/s"

    ours = found("tensorwire", transport="shm")
    names = {"torch": "torch", "grpcio": "grpcio", "`multiprocessing`": "multiprocessing"}
    others = [(title, row) for title, name in names.items() if (row := found(name))]
    label = "items of 16 MiB through a [queue](docs/queue.md)"
    if ours is None:
        return [label, "", ""]
    by = measured(ours.calls_per_s)
    against = (
        f"{title} {speed(row)}, "
        f"{about(times(by / measured(row.calls_per_s), bold=True), ours, row)}"
        for title, row in others
    )
    return [label, speed(ours), "; ".join(against)]
