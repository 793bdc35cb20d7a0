# SPDX-License-Identifier: Apache-2.0
"""Tables of pages agree with the files that they come from, and are made of what was measured."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.figures import calls, pages, sets, steps
from tests.figures.pages import TABLES, Table
from tests.figures.rows import Rows
from tests.figures.sets import ROOT, SETS, TRAINED

from tensorwire.bench.harness.rows import Report, Row


@pytest.mark.parametrize("table", TABLES, ids=lambda each: f"{each.page}-{each.name}")
def test_a_table_agrees_with_its_file(table: Table) -> None:
    """One whose file is missing was written by hand."""
    (found,) = pages.place(table.name).findall((ROOT / table.page).read_text())
    if table.measured:
        assert found[1] == table.text, "run: python -m tests.figures --write"
    else:
        assert ".json" not in found[1]


def test_the_folder_has_files_of_sets_only() -> None:
    names = {path.name for path in sets.FOLDER.glob("*")}
    assert names <= {sets.file_of(name).name for name in SETS}
    for name in SETS:
        if sets.file_of(name).exists():
            assert sets.load(name)


def test_each_set_has_tables_and_is_on_the_page() -> None:
    assert {name for table in TABLES for name in table.sets} == SETS.keys()
    page = (ROOT / "docs" / "figures.md").read_text()
    assert re.findall(r"^python -m tests\.figures ([a-z]+)", page, re.MULTILINE) == [*SETS]


def test_every_place_on_a_page_is_of_a_table() -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    places = {
        (str(page.relative_to(ROOT)), name)
        for page in texts
        for name in re.findall(r"<!-- figures: (\w+) -->", page.read_text())
    }
    assert places == {(table.page, table.name) for table in TABLES}


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
        calls.SIZES.values(),
        ("request", "pull", "stream"),
        (False, True),
        ("ordinary", "published"),
        CALLS.items(),
    ):
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


def trained(model: str, batch: int, images: float) -> Report:
    speeds = {"grpc": 10.0, "grpc+tensorwire": images, "no communication": 40.0}
    rows = [
        Row(name, "way", model, 8, items_per_s=speed, cpu_s_per_call=1 / speed)
        for name, speed in speeds.items()
    ]
    return Report("train", "grpc", {"settings": {"model": model, "batch_size": batch}}, rows)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pages, with a file of each set."""
    monkeypatch.setattr(sets, "FOLDER", tmp_path / "docs" / "figures")
    sets.FOLDER.mkdir(parents=True)
    shutil.copy(ROOT / "README.md", tmp_path)
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, tmp_path / "docs")
    calls_ = [Report("rpc", "grpcio", {}, [*rpc_rows()])]
    reports: dict[str, list[Report]] = {
        **dict.fromkeys(("rpc", "sizes", "bytes", "protobuf"), calls_),
        "tensorflow": [Report("tensorflow", "grpc", {}, step_rows())],
        "training": [
            trained(model, batch, images)
            for model, batch, tcp in TRAINED
            for images in ((30.0, 20.0) if tcp else (30.0,))
        ],
    }
    for name, found in reports.items():
        both = zip(SETS[name], found, strict=True)
        made = [{"command": command, "report": each.to_json()} for command, each in both]
        sets.file_of(name).write_text(json.dumps(made))
    return tmp_path


def test_tables_show_what_was_measured(measured: Path) -> None:
    assert len(pages.write(measured)) == len(TABLES)
    readme = (measured / "README.md").read_text()
    assert "| 8 B, p50 | 1 ms | 10 us (**100x**) | 100 us (10x) |" in readme
    # What is only announced has a time, and no ratio.
    assert "| 64 MiB published, not read | 1 ms | 10 us | 100 us (10x) |" in readme
    assert "| 8 B messages on one stream | 1 k/s | 100 k/s (**100x**) | 10 k/s (10x) |" in readme
    assert "| CPU seconds per GB at 64 MiB | 1 | 0.01 | 0.1 |" in readme
    assert "| 16 MiB | 60 ms | 5 ms (**12x**) | 20 ms (3.0x) |" in readme
    assert "Made from [rpc.json](docs/figures/rpc.json) and [bytes.json]" in readme
    figures = (measured / "docs" / "figures.md").read_text()
    assert "| 8 B request, p50 (p99) | 100x (200x) | 10x (20x) |" in figures
    assert "| 64 MiB request against NIXL (ours published, both read) | 4.0x | |" in figures
    assert "| 64 MiB request against plain sockets with cubic | | 0.97x |" in figures
    assert "| CPU seconds per GB at 64 MiB | 1/100 | 1/10 |" in figures
    assert "| 1, 16, 64, 256 MiB | 12x, 12x, 12x, 12x | 3.0x, 3.0x, 3.0x, 3.0x |" in figures
    assert "| parameter-server step, 100 MiB (CPU seconds) | 12x (1/12) | 3.0x (1/3.0) |" in figures
    assert "| alexnet 2 | 10 | 30 (3.0x) | 20 (2.0x) | 40 | 0.10, 0.03 |" in figures
    assert "| fcn5 32 | 10 | 30 (3.0x) | | 40 | 0.10, 0.03 |" in figures
    protobuf = (measured / "docs" / "protobuf.md").read_text()
    assert "| 8 B | 1 ms | 10 us (100x) | 5 us (**200x**) | 50 us (20x) |" in protobuf
    guide = (measured / "docs" / "tensorflow.md").read_text()
    assert "| AlexNet 2 | 3.0x | 0.75 |" in guide


def test_tables_are_written_again_when_a_set_is_measured_again(measured: Path) -> None:
    pages.write(measured)
    once = (measured / "README.md").read_text()
    pages.write(measured)
    assert (measured / "README.md").read_text() == once
    faster = json.loads(sets.file_of("rpc").read_text())
    for row in faster[0]["report"]["rows"]:
        row["p50_us"] /= 2
    sets.file_of("rpc").write_text(json.dumps(faster))
    pages.write(measured)
    assert "| 8 B, p50 | 500 us | 5 us" in (measured / "README.md").read_text()


def test_what_was_not_measured_has_no_line(measured: Path) -> None:
    found = json.loads(sets.file_of("rpc").read_text())
    report = found[0]["report"]
    report["rows"] = [row for row in report["rows"] if row["contender"] not in ("nixl", "mpi")]
    sets.file_of("rpc").write_text(json.dumps(found))
    assert "NIXL" not in calls.calls()
    assert "pyzmq" in calls.calls()


def test_a_file_of_other_commands_is_refused(measured: Path) -> None:
    found = json.loads(sets.file_of("rpc").read_text())
    found[0]["command"] += " --rounds 1"
    sets.file_of("rpc").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="is not of the commands of the set"):
        sets.load("rpc")


def test_a_file_of_another_schema_is_refused(measured: Path) -> None:
    found = json.loads(sets.file_of("rpc").read_text())
    row = found[0]["report"]["rows"][0]
    row["p50_ms"] = row.pop("p50_us")
    sets.file_of("rpc").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="missing or unknown: p50_ms, p50_us"):
        sets.load("rpc")
    found[0]["report"]["schema"] = 0
    sets.file_of("rpc").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="schema 0, and this version of tensorwire reads 1"):
        sets.load("rpc")


def test_a_set_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = (
        "TENSORWIRE_SPIN_US=0 tensorwire bench rpc --transport shm --sizes 8 --cases request "
        "--origin ordinary --reads no --no-limits --rounds 1 --seconds 0.001"
    )
    monkeypatch.setitem(SETS, "rpc", [quick])
    monkeypatch.setattr(sets, "FOLDER", tmp_path / "figures")
    sets.measure("rpc")
    row = calls.call(Rows(sets.load("rpc")), "shm", "request", 8)
    assert row is not None
    assert row.ratio is not None
    assert row.ratio > 0
    monkeypatch.setitem(SETS, "rpc", ["tensorwire bench rpc --sizes 9"])
    with pytest.raises(SystemExit) as ended:
        sets.measure("rpc")
    assert ended.value.code == 2
    assert json.loads(sets.file_of("rpc").read_text())[0]["command"] == quick
