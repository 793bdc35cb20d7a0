# SPDX-License-Identifier: Apache-2.0
"""Pages with a file of each set, of figures that tests know."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.figures import calls, profiles, sets, steps
from tests.figures.memory import ACCESSES, REDUCED
from tests.figures.rows import MB
from tests.figures.sets import ROOT, SETS, TRAINED

from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.suites.tensorflow.cases import MANY

# What a call or a step takes, in microseconds. Each ratio then tells which two rows it is of.
CALLS = {
    "grpcio": ("grpc", 1000.0),
    "tensorwire shm": ("shm", 10.0),
    "tensorwire tcp": ("tcp", 100.0),
    "zmq": ("tcp", 300.0),
    "flight": ("tcp", 500.0),
    "nixl": ("shm", 40.0),
    "mpi": ("shm", 50.0),
    "sockets-cubic": ("tcp", 97.0),
}


def rpc_rows() -> Iterator[Row]:
    for payload, size, case, reads, origin, (name, (transport, p50_us)) in itertools.product(
        ("array", "bytes", "protobuf", "protobuf-codec"),
        (*calls.SIZES.values(), MB // 2),
        ("request", "pull", "stream"),
        (False, True),
        ("ordinary", "published"),
        CALLS.items(),
    ):
        plain = payload == "array" and case == "request" and origin == "ordinary" and not reads
        known = name.startswith("tensorwire") or (
            origin == "ordinary" and (payload == "array" or name == "grpcio")
        )
        if not known or not (plain or size in (8, MB // 2, MB, 64 * MB)):
            continue
        time = p50_us / 2 if payload == "protobuf-codec" else p50_us
        announced = origin == "published" and transport == "shm" and not reads
        yield Row(
            contender=name.partition(" ")[0],
            transport=transport,
            case=case,
            size=size,
            payload=payload,
            origin=origin,
            reads=reads,
            p50_us=time,
            calls_per_s=1e6 / time,
            cpu_s_per_gb=time / 1000,
            ratio=None if announced else 1000 / time,
            p99_ratio=None if announced else 2000 / time,
        )


def torch_rows(megabytes: Sequence[int]) -> list[Row]:
    return [
        Row(name, "way", "ddp", size * 10**6, p50_us=ms * 1e3, cpu_s_per_call=ms / 1e3)
        for size in megabytes
        for name, ms in (("gloo", 90.0), ("tensorwire", 60.0), ("nothing", 50.0))
    ]


def step_rows() -> list[Row]:
    return [
        Row(
            contender=contender,
            transport=transport,
            case=case,
            size=size,
            p50_us=ms * 1e3,
            cpu_s_per_call=ms,
            ratio=60 / ms,
        )
        for contender, transport, ms in (
            ("grpc", "grpc", 60.0),
            ("tensorwire", "shm", 5.0),
            ("tensorwire", "tcp", 20.0),
        )
        for case, size in (("tensor", 4), *steps.STEPS.values())
    ]


HERE = {
    "cpu": "a processor",
    "notes": ["nixl over tcp: left out: nixl is not installed: pip install nixl"],
    "interrupted": False,
    "settings": {},
    "commit": "0123456789abcdef-dirty",
    "time": "2026-11-25T00:00:00Z",
    "roles": {"grpcio": "peer", "tensorwire": "own", "sockets-cubic": "limit"},
}
"""Of a run."""


def peer_rows() -> Iterator[Row]:
    for size in (8, MB // 2, 64 * MB):
        for name, way, p50_us in (("ray", "shm", 500.0), ("mooncake", "tcp", 50.0)):
            yield Row(name, way, "request", size, reads=True, p50_us=p50_us)


def payload_report(suite: str) -> Report:
    speeds = (("grpcio", "grpc", 90.0), ("tensorwire", "shm", 10.0), ("tensorwire", "tcp", 30.0))
    rows = [
        Row(
            *(name, way, "uniform", 4 * MB, "non-serialized"),
            reads=suite != "mimic",
            p50_us=p50_us,
            calls_per_s=1e6 / p50_us,
            gb_per_s=1 / p50_us,
            ratio=90 / p50_us,
        )
        for name, way, p50_us in speeds
    ]
    return Report(suite, "grpcio", {**HERE}, rows, {**PAYLOADS, "unit": UNITS[suite]})


PAYLOADS = {"nodes": 0, "servers": 1, "workers": 1, "window": 1}
UNITS = {"p2p-latency": "ms", "p2p-bandwidth": "MB/s", "mimic": "RPC/s"}


def reduce_rows() -> Iterator[Row]:
    speeds = {
        "gloo": 60.0,
        "mpich": 5.0,
        "openmpi": 20.0,
        "memory": 4.0,
        "tensorwire": 10.0,
        "tensorwire-tcp": 30.0,
    }
    sizes_of = {"all_reduce": REDUCED.values(), "broadcast": [64 << 20], "ping_pong": [8]}
    for case, sizes in sizes_of.items():
        for size in sizes:
            for name, p50_us in speeds.items():
                yield Row(name, "way", case, size, p50_us=p50_us)


def type_rows() -> Iterator[Row]:
    for payload, p50_us in (("float32", 10.0), ("bfloat16", 12.5)):
        yield Row("tensorwire", "shm", "all_reduce", 64 << 20, payload, p50_us=p50_us)


def access_rows() -> Iterator[Row]:
    for case, size in ACCESSES.values():
        for name, way, p50_us in (
            *(("tensorwire", "shm", 1.0), ("tensorwire", "tcp", 20.0)),
            *(("mpi", "shm", 2.0), ("nixl", "shm", 3.0), ("nixl", "tcp", 10.0)),
        ):
            yield Row(name, way, case, size, p50_us=p50_us)


def first_reports() -> list[Report]:
    calls, weights = (
        [
            Row("tensorwire-tcp", "tcp", steady, size, p50_us=1e4),
            Row("tensorwire-tcp", "tcp", "first", size, p50_us=2.5e4),
        ]
        for steady, size in (("request", 64 * MB), ("copied", 1 << 30))
    )
    return [Report("rpc", "grpcio", {**HERE}, calls), Report("weights", "gloo", {**HERE}, weights)]


def weight_rows() -> Iterator[Row]:
    for name, p50_us in {
        "tensorwire": 2e5,
        "tensorwire-tcp": 5e5,
        "gloo": 1e6,
        "grpcio": 2e6,
        "memcpy": 1e5,
        "mpich": 4e5,
        "nixl": 5e5,
        "nixl-tcp": 3e6,
    }.items():
        yield Row(name, "way", "copied", 1 << 30, p50_us=p50_us)
    yield Row("tensorwire", "way", "adopted", 1 << 30, p50_us=3e3)
    yield Row("tensorwire-sharded", "way", "resharded", 1 << 30, p50_us=1e5)
    yield Row("memcpy", "way", "resharded", 1 << 30, p50_us=5e4)


def many_rows() -> Iterator[Row]:
    speeds = {
        ("grpc", "grpc"): 9e4,
        ("tensorwire", "shm"): 3e4,
        ("tensorwire-planned", "shm"): 1e4,
        ("tensorwire", "tcp"): 4.5e4,
        ("tensorwire-planned", "tcp"): 1.5e4,
    }
    for (name, way), p50_us in speeds.items():
        yield Row(name, way, "many", MANY * 4096, p50_us=p50_us, ratio=9e4 / p50_us)


def planned(model: str) -> Report:
    speeds = {"grpc+tensorwire": 10.0, "grpc+tensorwire planned": 11.0}
    rows = [Row(name, "way", model, 8, items_per_s=speed) for name, speed in speeds.items()]
    rounds = [{"items_per_s": [speed * 0.9, speed, speed]} for speed in speeds.values()]
    settings = {"settings": {"model": model, "batch_size": 1}}
    details = {"curves": {}, "rounds": rounds}
    return Report("train", "grpc+tensorwire", {**HERE, **settings}, rows, details)


def queue_rows() -> Iterator[Row]:
    speeds = {("tensorwire", "shm"): 900, ("grpcio", "grpc"): 90, ("multiprocessing", "pipe"): 30}
    for (name, way), speed in speeds.items():
        yield Row(name, way, "queue", 16 << 20, p50_us=1e3, calls_per_s=speed)


def trained(model: str, batch: int, images: float, stock: float = 10.0) -> Report:
    """More steps of larger batches."""
    speeds = {"grpc": stock, "grpc+tensorwire": images, "no communication": 40.0}
    rows = [
        Row(
            *(name, "way", model, 8),
            calls=2 + batch,
            items_per_s=speed,
            cpu_s_per_call=1 / speed,
            copies_per_call=0,
            ratio=speed / stock,
        )
        for name, speed in speeds.items()
    ]
    settings = {"settings": {"model": model, "batch_size": batch, "rounds": 1}}
    details = {"curves": {}, "losses_equal": True}
    return Report("train", "grpc", {**HERE, **settings}, rows, details)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pages, with a file of each set, and the recorded messages."""
    recorded = profiles.file()
    monkeypatch.setattr(sets, "FOLDER", tmp_path / "docs" / "figures")
    sets.FOLDER.mkdir(parents=True)
    shutil.copy(recorded, sets.FOLDER)
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, tmp_path / "docs")
    calls_ = Report("rpc", "grpcio", {**HERE}, [*rpc_rows()])
    reports: dict[str, list[Report]] = {
        **{name: [calls_] * len(SETS[name].commands) for name in ("rpc", "bytes", "protobuf")},
        "repeated": [calls_, calls_],
        "sizes": [calls_, Report("rpc", "grpcio", {**HERE}, [])],
        "peers": [Report("rpc", "grpcio", {**HERE}, [*rpc_rows(), *peer_rows()])],
        "tensorflow": [Report("tensorflow", "grpc", {**HERE}, step_rows())],
        "training": [
            trained(model, batch, *speeds)
            for model, batch, _, tcp in TRAINED
            for speeds in (((30.0,), (20.0, 16.0)) if tcp else ((30.0,),))
        ],
        "many": [Report("tensorflow", "grpc", {**HERE}, [*many_rows()])],
        "plans": [planned(model) for model in sets.PLANS],
        "torch": [
            Report("torch", "gloo", {**HERE}, torch_rows(sizes)) for sizes in ((96,), (6, 64))
        ],
        "tf-grpc": [payload_report(name) for name in ("p2p-latency", "p2p-bandwidth")],
        "mimic": [payload_report("mimic")],
        "collectives": [Report("collectives", "gloo", {**HERE}, [*reduce_rows()])] * 6,
        "types": [Report("collectives", "gloo", {**HERE}, [*type_rows()])],
        "remote": [Report("remote", "memcpy", {**HERE}, [*access_rows()])] * 3,
        "weights": [Report("weights", "gloo", {**HERE}, [*weight_rows()])] * 2,
        "first": first_reports(),
        "queue": [Report("queue", "grpcio", {**HERE}, [*queue_rows()])],
    }
    for name, found in reports.items():
        both = zip(SETS[name].commands, found, strict=name != "tf-grpc")
        made = [{"command": command, "report": each.to_json()} for command, each in both]
        sets.file_of(name).write_text(json.dumps(made))
    return tmp_path
