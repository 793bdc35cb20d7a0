# SPDX-License-Identifier: Apache-2.0
"""Tables of calls, measured by ``tensorwire bench rpc``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from tests.figures.rows import (
    MB,
    WAYS,
    Line,
    Rows,
    about,
    faster,
    measured,
    part,
    table,
    times,
    with_ratio,
    wrapped,
)
from tests.figures.sets import load

from tensorwire.bench.harness.report import duration, rate
from tensorwire.bench.harness.rows import Row


def call(rows: Rows, way: str, case: str, size: int, **more: Any) -> Row | None:
    contender = "grpcio" if way == "grpcio" else "tensorwire"
    wanted = {"origin": "ordinary", "reads": False, "payload": "array", **more}
    if way == "grpcio":
        return rows.one(
            contender=contender, case=case, size=size, **{**wanted, "origin": "ordinary"}
        )
    return rows.one(contender=contender, transport=way, case=case, size=size, **wanted)


def time_of(row: Row | None, stock: Row | None, *, bold: bool = False) -> str:
    if row is None:
        return ""
    ratio = row.ratio if row.contender != "grpcio" else None
    return with_ratio(duration(measured(row.p50_us)), ratio, row, stock, bold=bold)


def ratio_of(row: Row | None, stock: Row | None) -> str:
    return "" if row is None else about(times(row.ratio), row, stock)


def times_of(rows: Rows, label: str, case: str, size: int, **more: Any) -> Line:
    """A line with the times of all three."""
    found = [call(rows, way, case, size, **more) for way in ("grpcio", *WAYS)]
    stock, shm, tcp = found
    return [label, time_of(stock, stock), time_of(shm, stock, bold=True), time_of(tcp, stock)]


def streamed(rows: Rows, way: str) -> tuple[float, float, Row, Row] | None:
    """Messages of 8 bytes in a second, how many times as many as grpcio's, and the rows of both."""
    ours, theirs = (call(rows, each, "stream", 8) for each in (way, "grpcio"))
    if ours is None or theirs is None:
        return None
    speed = measured(ours.calls_per_s)
    return speed, speed / measured(theirs.calls_per_s), ours, theirs


def readme_calls() -> str:
    rows, ready = Rows(load("rpc")), Rows(load("bytes"))
    streams = {way: streamed(rows, way) for way in ("grpcio", *WAYS)}
    cpu = [call(rows, way, "request", 64 * MB) for way in ("grpcio", *WAYS)]
    lines = [
        times_of(rows, "8 B, p50", "request", 8),
        times_of(rows, "512 KiB from an ordinary array, not read", "request", MB // 2),
        times_of(rows, "64 MiB from an ordinary array, not read", "request", 64 * MB),
        times_of(
            rows,
            "64 MiB published, all of it read",
            "request",
            64 * MB,
            origin="published",
            reads=True,
        ),
        times_of(rows, "64 MiB published, not read (*)", "request", 64 * MB, origin="published"),
        times_of(
            ready,
            "64 MiB as `bytes`, not read, stubs and servicers unchanged (**)",
            "request",
            64 * MB,
            payload="bytes",
        ),
        [
            "8 B messages on one stream",
            *(
                ""
                if found is None
                else with_ratio(
                    f"{rate(found[0])}/s",
                    found[1] if way != "grpcio" else None,
                    *found[2:],
                    bold=way == "shm",
                )
                for way, found in streams.items()
            ),
        ],
        [
            "CPU seconds per GB at 64 MiB",
            *("" if row is None else f"{measured(row.cpu_s_per_gb):.2g}" for row in cpu),
        ],
    ]
    return table(["request", "grpcio", "tensorwire, shm", "tensorwire, tcp"], lines)


NEIGHBOURS: Final = {
    "plain Python TCP sockets": {"contender": "sockets"},
    "the same with `cubic`": {"contender": "sockets-cubic"},
    "pyzmq": {"contender": "zmq"},
    "Arrow Flight": {"contender": "flight"},
    "NIXL over shared memory": {"contender": "nixl", "transport": "shm"},
    "MPI over shared memory": {"contender": "mpi", "transport": "shm"},
}


def readme_others() -> str:
    """Of each the fastest of its ways."""
    rows = Rows(load("rpc"))
    found = {
        label: rows.one(**way, case="request", size=64 * MB, origin="ordinary", reads=True)
        for label, way in NEIGHBOURS.items()
    }
    times = [f"{label} {duration(measured(row.p50_us))}" for label, row in found.items() if row]
    return wrapped(f"Others in the same run, 64 MiB, all of it read: {', '.join(times)}.")


def calls() -> str:
    rows = Rows(load("rpc"))

    def line(label: str, case: str, size: int, **more: Any) -> Line:
        stock, *ours = (call(rows, way, case, size, **more) for way in ("grpcio", *WAYS))
        return [label, *(ratio_of(row, stock) for row in ours)]

    def with_p99(way: str) -> str:
        row, stock = (call(rows, each, "request", 8) for each in (way, "grpcio"))
        return f"{ratio_of(row, stock)} ({times(row.p99_ratio)})" if row else ""

    def against_8_bytes() -> str:
        large = call(rows, "shm", "request", 64 * MB, origin="published")
        small = call(rows, "shm", "request", 8)
        if large is None or small is None:
            return ""
        by = measured(large.p50_us) / measured(small.p50_us)
        return about(f"{by:.2f}x its time", large, small)

    def cpu(way: str) -> str:
        ours, theirs = (call(rows, each, "request", 64 * MB) for each in (way, "grpcio"))
        return (
            part(measured(theirs.cpu_s_per_gb) / measured(ours.cpu_s_per_gb))
            if ours and theirs
            else ""
        )

    published: dict[str, Any] = {"origin": "published", "reads": True}
    return table(
        ["case", "shm", "tcp"],
        [
            ["8 B request, p50 (p99)", *(with_p99(way) for way in WAYS)],
            line("512 KiB request, not read", "request", MB // 2),
            line("64 MiB request, ordinary array, not read", "request", 64 * MB),
            line(
                "64 MiB request, published, receiver reads all of it",
                "request",
                64 * MB,
                **published,
            ),
            ["64 MiB request, published, not read: against the 8 B call", against_8_bytes(), ""],
            line("64 MiB pull, ordinary, not read", "pull", 64 * MB),
            line("64 MiB pull, published, read", "pull", 64 * MB, **published),
            [
                "8 B messages on one stream, messages/s",
                *(
                    about(times(found[1]), *found[2:]) if (found := streamed(rows, way)) else ""
                    for way in WAYS
                ),
            ],
            ["CPU seconds per GB at 64 MiB", *(cpu(way) for way in WAYS)],
            *against_others(rows),
        ],
    )


OTHERS: Final = {
    "nixl": ("NIXL", "shm", True),
    "mpi": ("MPICH", "shm", True),
    "zmq": ("pyzmq", "tcp", False),
    "flight": ("Arrow Flight", "tcp", False),
    "sockets-cubic": ("plain sockets with cubic", "tcp", False),
}
"""Their names, the way that they are compared with, and whether both ends read: over shared memory
what is published is compared."""


def against_others(rows: Rows) -> Iterator[Line]:
    for name, (title, way, reads) in OTHERS.items():
        wanted = {"case": "request", "size": 64 * MB, "reads": reads, "payload": "array"}
        theirs = rows.one(contender=name, **wanted)
        origin = "published" if reads else "ordinary"
        ours = rows.one(contender="tensorwire", transport=way, origin=origin, **wanted)
        ratio = faster(ours, theirs) if theirs and ours else ""
        label = f"64 MiB request against {title}" + (
            " (ours published, both read)" if reads else ", not read"
        )
        yield [label, ratio, ""] if way == "shm" else [label, "", ratio]


COMPARED: Final[dict[str, dict[str, str]]] = {
    "Tensorwire, shm": {"contender": "tensorwire", "transport": "shm"},
    "Tensorwire, tcp": {"contender": "tensorwire", "transport": "tcp"},
    "grpcio": {"contender": "grpcio"},
    "Arrow Flight": {"contender": "flight"},
    "NIXL, shm": {"contender": "nixl", "transport": "shm"},
    "MPICH, shm": {"contender": "mpi", "transport": "shm"},
}


def comparison() -> str:
    """Requests from an ordinary array."""
    rows = Rows(load("rpc"))
    works = [(8, False), (64 * MB, False), (64 * MB, True)]

    def time(size: int, reads: bool, way: dict[str, str]) -> str:
        wanted: dict[str, Any] = {"case": "request", "size": size, "reads": reads, **way}
        row = rows.one(origin="ordinary", payload="array", **wanted)
        return duration(measured(row.p50_us)) if row else ""

    lines = [
        [label, *(time(size, reads, way) for size, reads in works)]
        for label, way in COMPARED.items()
    ]
    return table(["a request of", "8 B", "64 MiB", "64 MiB, all of it read"], lines)


PEERS: Final = {
    "grpcio-unix": "grpcio",
    "grpc-aio": "grpc.aio",
    "torch-rpc": "PyTorch's RPC",
    "gloo": "Gloo",
    "ray": "Ray",
    "mooncake": "Mooncake",
}


def more_peers() -> str:
    """Requests whose receiver reads all, from ordinary memory, by each of their ways."""
    rows = Rows(load("peers"))

    def cell(row: Row | None, size: int) -> str:
        if row is None:
            return ""
        way = {"unix": "shm", "shm": "shm"}.get(row.transport, "tcp")
        ours = call(rows, way, "request", size, reads=True)
        by = f" ({faster(ours, row)})" if ours else ""
        return f"{duration(measured(row.p50_us))}{by}"

    def line(title: str, name: str, way: str) -> Line:
        wanted = {"contender": name, "transport": way, "case": "request", "origin": "ordinary"}
        found = (
            (rows.one(size=size, reads=True, **wanted), size) for size in (8, MB // 2, 64 * MB)
        )
        return [f"{title}, {way}", *(cell(row, size) for row, size in found)]

    ways = dict.fromkeys(
        (row.contender, row.transport) for row in rows.all if row.contender in PEERS
    )
    return table(
        ["request, all of it read; how many times faster ours is", "8 B", "512 KiB", "64 MiB"],
        [line(PEERS[name], name, way) for name, way in ways],
    )


SIZES: Final = {
    "0 B": 0, "8 B": 8, "512 B": 512, "4 KiB": 4 << 10, "16 KiB": 16 << 10, "64 KiB": 64 << 10,
    "256 KiB": 256 << 10, "1 MiB": MB, "4 MiB": 4 * MB, "16 MiB": 16 * MB, "64 MiB": 64 * MB,
    "256 MiB": 256 * MB, "1 GiB": 1 << 30,
}  # fmt: skip


def sizes() -> str:
    rows = Rows(load("sizes"))
    lines = [times_of(rows, label, "request", size) for label, size in SIZES.items()]
    return table(["request from an ordinary array, not read", "grpcio", "shm", "tcp"], lines)


def ready_bytes() -> str:
    rows = Rows(load("bytes"))
    return table(
        ["payload, case; not read", "grpcio", "shm", "tcp"],
        [
            times_of(rows, f"`{payload}`, {size // MB} MiB, {case}", case, size, payload=payload)
            for payload in ("bytes", "protobuf")
            for size in (MB, 64 * MB)
            for case in ("request", "pull")
        ],
    )


def _protobuf(rows: Rows, way: str, case: str, size: int, codec: bool) -> Row | None:
    """With the codec, too, compared with grpcio and the message as it is: that is the row shown."""
    payload = "protobuf-codec" if codec else "protobuf"
    row = call(rows, way, case, size, payload=payload, reads=True)
    stock = call(rows, "grpcio", case, size, payload="protobuf", reads=True)
    if row is None or stock is None:
        return None
    return replace(row, ratio=measured(stock.p50_us) / measured(row.p50_us))


def protobuf_large() -> str:
    rows = Rows(load("protobuf"))

    def line(label: str, way: str, codec: bool) -> Line:
        row = _protobuf(rows, way, "request", 64 * MB, codec)
        if row is None:
            return [label, "", ""]
        stock = _protobuf(rows, "grpcio", "request", 64 * MB, codec=False)
        ratio = "" if way == "grpcio" else about(times(row.ratio, bold=codec), row, stock)
        return [label, duration(measured(row.p50_us)), ratio]

    return table(
        ["64 MiB in a `bytes` field, all of it read", "time of a call", "against grpcio"],
        [
            line("grpcio", "grpcio", False),
            line("tensorwire, generated code as it is: shm", "shm", False),
            line("tcp", "tcp", False),
            line("tensorwire with `tensorwire.protobuf`: shm", "shm", True),
            line("tcp", "tcp", True),
        ],
    )


def protobuf_others() -> str:
    rows = Rows(load("protobuf"))
    cases = {
        "8 B": ("request", 8),
        "1 MiB, request": ("request", MB),
        "1 MiB, reply": ("pull", MB),
        "64 MiB, reply": ("pull", 64 * MB),
    }
    return table(
        ["the same for", "grpcio", "as it is, shm", "with the codec, shm", "with the codec, tcp"],
        [
            [
                label,
                *(
                    time_of(
                        _protobuf(rows, way, case, size, codec),
                        _protobuf(rows, "grpcio", case, size, codec=False),
                        bold=codec and way == "shm",
                    )
                    for way, codec in (
                        ("grpcio", False),
                        ("shm", False),
                        ("shm", True),
                        ("tcp", True),
                    )
                ),
            ]
            for label, (case, size) in cases.items()
        ],
    )
