# SPDX-License-Identifier: Apache-2.0
"""``tensorwire tune links``: what is chosen of figures, the table of that, and who takes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tensorwire
from tensorwire import _core
from tensorwire.bench.harness import environment
from tensorwire.bench.harness.environment import describe
from tensorwire.bench.harness.rows import Report
from tensorwire.bench.report.runs import parse
from tensorwire.bench.report.speed import ratio
from tensorwire.bench.suites.links import suite
from tensorwire.bench.suites.links.checking import (
    Checked,
    checks,
    compare,
    copies,
    does,
    fixed_values,
)
from tensorwire.bench.suites.links.curves import Curves, Fixed, Shape, Times
from tensorwire.bench.suites.links.report import CALMEST, ROLES, as_report
from tensorwire.bench.suites.links.service import TAKE, here
from tensorwire.bench.suites.links.suite import Tuned
from tensorwire.bench.suites.links.tuning import (
    BULK,
    COPIED,
    DEFAULT,
    NAMES,
    Choice,
    choices,
    chunking,
    coalescing,
    crossover,
    curve,
    default_of,
    even,
    fastest,
    peer_of,
    table,
)
from tensorwire.cli import app
from tensorwire.rpc.choice import Transport

KB = 1 << 10
FIELDS = ("coalesce", "eager", "chunk")
SIZES = (4 * KB, 8 * KB, 16 * KB, 32 * KB, 64 * KB)


def ratios(*each: float) -> dict[int, float]:
    return dict(zip(SIZES, each, strict=True))


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        ((0.5, 0.9, 1.04, 1.2, 1.5), 16 * KB),  # as it is
        ((0.5, 0.9, 1.06, 1.2, 1.5), 11585),  # one class down: between 8K and 16K
        ((0.9, 1.3, 1.06, 1.2, 1.5), 5792),
        ((1.3, 1.3, 1.3, 1.3, 1.3), 0),
        ((1.3, 1.04, 1.3, 1.3, 1.3), 11585),  # no further than it is clear
        ((0.5, 0.5, 0.5, 0.94, 1.5), 46340),  # one class up
        ((0.5, 0.5, 0.5, 0.94, 0.5), 64 * KB),  # no further than was measured
        ((0.5, 0.5, 0.5, 0.96, 0.5), 16 * KB),
    ],
)
def test_the_threshold_moves_as_far_as_the_other_way_is_clearly_faster(
    each: tuple[float, ...], expected: int
) -> None:
    assert crossover(ratios(*each), DEFAULT.eager) == expected


def test_curves_cross_where_both_ways_take_the_same() -> None:
    assert even(ratios(0.5, 0.8, 0.5, 2.0, 4.0)) == round(16 * KB * 2**0.5)
    assert even(ratios(0.5, 0.8, 1.0, 2.0, 4.0)) == 16 * KB
    assert even(ratios(0.5, 0.5, 0.5, 0.5, 0.5)) is None
    assert even(ratios(2.0, 2.0, 2.0, 2.0, 2.0)) is None


def figures(
    copied: dict[int, float], faster_coalescing: float = 1.0, default: Fixed = DEFAULT
) -> Curves:
    """Of one transport: 10 us in bulk, so many copied along; the largest coalescing and chunks are
    so many times as fast as the others."""
    times: Times = {}
    for size, us in copied.items():
        shape = Shape("call", "ordinary", size)
        times[shape, COPIED], times[shape, BULK] = us, 10.0
    for links, shape in (
        (coalescing(default), Shape("call", "ordinary", KB, 16)),
        (chunking(default), Shape("call", "ordinary", 1 << 20)),
    ):
        for fixed in links:
            times[shape, fixed] = 10.0 / (faster_coalescing if fixed == links[-1] else 1.0)
    return Curves(times=times, address="ipv4:10.0.0.2:7000")


def test_what_is_copied_along_over_bulk_is_the_mean_of_all_shapes() -> None:
    curves = figures({4 * KB: 5.0})
    other = Shape("stream", "ordinary", 4 * KB)
    curves.times[other, COPIED], curves.times[other, BULK] = 20.0, 10.0
    assert curve(curves.times) == {4 * KB: pytest.approx(1.0)}


def test_choices_are_of_the_peer_and_never_coalesce_more_than_is_copied() -> None:
    times = dict(zip(SIZES, (5.0, 20.0, 20.0, 20.0, 20.0), strict=True))
    down = figures(times, default=default_of("tcp"))
    found = {choice.threshold: choice for choice in choices(down, "tcp")}
    assert {choice.peer for choice in found.values()} == {"10.0.0.2"}
    assert found["eager_bytes"].bytes == found["coalesce_bytes"].bytes == 5792
    assert found["chunk_bytes"].bytes == default_of("tcp").chunk == 1 << 20
    assert peer_of("shm", "unix:") == peer_of("tcp", "ipv4:127.0.0.1:1") == "same_host"
    assert peer_of("tcp", "ipv6:[fd00::2]:1") == "fd00::2"


def test_another_value_has_to_be_clearly_faster_and_slower_for_none() -> None:
    curves, each = figures({4 * KB: 5.0}, faster_coalescing=1.06), coalescing(DEFAULT)

    def chosen() -> int:
        return fastest(curves.times, each, lambda fixed: fixed.coalesce, DEFAULT.coalesce)

    assert chosen() == each[-1].coalesce
    for fixed in each:
        curves.times[Shape("stream", "ordinary", KB, 16), fixed] = 10.0
    assert chosen() == DEFAULT.coalesce
    assert fastest(
        figures({4 * KB: 5.0}, 2.0).times, chunking(DEFAULT), lambda fixed: fixed.chunk, 4 << 20
    ) == (4 << 20)


def test_a_check_passes_within_its_bounds() -> None:
    assert Checked(4096, 10.0, 10.0, 9.6).passed
    assert not Checked(4096, 10.0, 10.0, 9.4).passed
    assert not Checked(4096, 8.9, 10.0, 10.0).passed
    assert not Checked(4096, 10.0, 9.0, 9.0, worst=0.85).passed


def test_a_check_takes_links_that_do_the_same_as_one() -> None:
    shape, found = Shape("call", "ordinary", 16 * KB), Fixed(8 * KB, 8 * KB, 4 << 20)
    visits = {
        (shape, fixed): [20.0 if copies(fixed, shape.size) else 10.0] * 3
        for fixed in (DEFAULT, found, *fixed_values(DEFAULT))
    }
    visits[shape, fixed_values(DEFAULT)[0]][0] = (
        1.0  # by chance; it goes in bulk, as what was found
    )
    (row,) = compare(visits, DEFAULT, found, in_chunks=True)
    assert (row.default_us, row.tuned_us, row.best_us) == pytest.approx((20.0, 10.0, 10.0))
    (row,) = compare(visits, DEFAULT, DEFAULT, in_chunks=True)
    assert not row.passed


def test_a_check_has_a_figure_of_each_round() -> None:
    """The mean of all shapes; where links do the same, of their calm quarter in that round."""
    shapes = [Shape(case, "ordinary", 16 * KB) for case in ("call", "stream")]
    found, same = Fixed(8 * KB, 8 * KB, 4 << 20), Fixed(4 * KB, 4 * KB, 4 << 20)
    rounds = {DEFAULT: (8.0, 16.0, 8.0), found: (4.0, 8.0, 2.0), same: (4.0, 8.0, 2.0)}
    visits = {
        (shape, fixed): [us * factor for us in each]
        for shape, factor in zip(shapes, (1, 4), strict=True)
        for fixed, each in rounds.items()
    }
    (row,) = compare(visits, DEFAULT, found, in_chunks=False)
    assert row.default_rounds_us == pytest.approx([16.0, 32.0, 16.0])
    assert row.tuned_rounds_us == row.best_rounds_us == pytest.approx([8.0, 16.0, 4.0])


def test_a_check_tells_the_shape_that_loses_most() -> None:
    """Which the mean of all hides."""
    found = Fixed(8 * KB, 8 * KB, 4 << 20)
    times = {"call": (10.0, 16.0), "stream": (10.0, 5.0)}
    visits = {
        (Shape(case, "ordinary", 16 * KB), fixed): [us]
        for case, each in times.items()
        for fixed, us in zip((DEFAULT, found), each, strict=True)
    }
    (row,) = compare(visits, DEFAULT, found, in_chunks=False)
    assert row.tuned_us < row.default_us
    assert row.worst == pytest.approx(0.625)
    assert not row.passed


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_check_is_of_every_threshold_and_of_small_and_large_messages(transport: str) -> None:
    plan = checks(transport, Fixed(4 * KB, 32 * KB, 1 << 20))
    sizes = {(shape.segments, shape.size) for shape, _ in plan}
    assert {(1, 256), (1, 256 * KB), (1, 1 << 20), (16, 256), (16, 6 * KB)} <= sizes
    assert ((1, 8 << 20) in sizes) == (transport == "tcp")  # shared memory cuts nothing
    values = {name: {getattr(fixed, name) for _, each in plan for fixed in each} for name in FIELDS}
    assert min(map(len, (values["coalesce"], values["eager"]))) > 4
    assert (len(values["chunk"]) > 2) == (transport == "tcp")


def test_links_that_coalesce_or_cut_otherwise_do_something_else() -> None:
    several, large = Shape("call", "ordinary", KB, 16), Shape("call", "ordinary", 8 << 20)
    for shape, field, cuts, same in (
        *((several, "coalesce", True, False), (large, "coalesce", True, True)),
        *((several, "chunk", True, True), (large, "chunk", True, False)),
        (large, "chunk", False, True),
    ):
        other = replace(DEFAULT, **{field: 1 << 10})
        assert (does(other, shape, cuts) == does(DEFAULT, shape, cuts)) == same


def test_a_check_is_a_report_as_those_of_benches() -> None:
    choice = Choice("tcp", "same_host", "eager_bytes", 16384, 8192)
    rounds = ([12.0, 12.5, 11.5, 12.0, 12.0], [10.0, 10.0, 10.5, 9.5, 10.0])
    checked = [
        Checked(8192, 12.0, 10.0, 10.0, 1, 1.0, *rounds, rounds[1]),
        Checked(16384, 9.0, 9.0, 8.0),
    ]
    tuned = Tuned("tcp", Curves(), [choice], checked)
    made = as_report(describe({}, ROLES), [tuned], ["verbs: left out"])
    report = Report.from_json(json.loads(json.dumps(made.to_json())))
    assert [(row.contender, row.size, row.p50_us) for row in report.rows] == [
        *(("defaults", 8192, 12), ("tuned", 8192, 10), ("best fixed", 8192, 10)),
        *(("defaults", 16384, 9), ("tuned", 16384, 9), ("best fixed", 16384, 8)),
    ]
    assert report.rows[1].ratio == 1.2
    assert report.environment["notes"] == [
        "tcp to same_host: eager_bytes 8K, by default 16K",
        "verbs: left out",
        CALMEST,
    ]
    assert report.rows[1].p50_spread == pytest.approx(0.1)
    (run,) = parse(json.dumps([{"command": "tune", "report": made.to_json()}]).encode(), "a file")
    assert run.rounds == 5
    usual, chosen = (
        next(each for each in run.measured if each.row.contender == name and each.row.size == 8192)
        for name in ("defaults", "tuned")
    )
    found = ratio(chosen, usual, paired=True)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert 1.0 < found.low <= 1.2 <= found.high


def test_the_host_is_described_ahead_of_what_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, did = tmp_path / "check.json", []

    def described(*arguments: Any) -> dict[str, Any]:
        did.append("described")
        return describe(*arguments)

    def tune(*arguments: Any) -> Tuned:
        did.append("measured")
        return Tuned("tcp", Curves(), [], [])

    monkeypatch.setattr(environment, "describe", described)
    monkeypatch.setattr(suite, "tune", tune)
    named = ("--transports", "tcp", "--output", str(tmp_path / "links.table"))
    done = CliRunner().invoke(app, ["tune", "links", *named, "--check", "--report", str(path)])
    assert done.exit_code == 0, done.output
    assert did == ["described", "measured"]
    assert json.loads(path.read_text())["environment"]["settings"]["transports"] == ["tcp"]


def test_a_table_keeps_what_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "links.table"
    path.write_text(
        "shm same_host eager_bytes 1\ntcp same_host eager_bytes 2 # old\nnonsense\n"
        "tcp 10.0.0.2 eager_bytes 3\n"
    )
    chosen = [
        Choice("tcp", "same_host", "eager_bytes", 16 * KB, 32 * KB),
        Choice("tcp", "same_host", "chunk_bytes", 4 << 20, 4 << 20),
    ]
    path.write_text(table(path, chosen))
    rules = [line.split() for line in path.read_text().splitlines() if line[0] != "#"]
    assert rules == [
        ["shm", "same_host", "eager_bytes", "1"],
        ["tcp", "10.0.0.2", "eager_bytes", "3"],
        ["tcp", "same_host", "eager_bytes", str(32 * KB)],
    ]


def test_the_command_measures_and_keeps_a_table(tmp_path: Path) -> None:
    path, plot = tmp_path / "links.table", tmp_path / "curves.svg"
    quick = ("--transports", "tcp", "--rounds", "1", "--seconds", "0.001")
    done = CliRunner().invoke(
        app, ["tune", "links", *quick, "--output", str(path), "--plot", str(plot), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["notes"] == []
    (tcp,) = found["transports"]
    assert {choice["threshold"] for choice in tcp["choices"]} == {
        *("coalesce_bytes", "eager_bytes", "chunk_bytes")
    }
    assert all(each["us"] > 0 for each in tcp["times"])
    assert tcp["even_bytes"] is None or 2 * KB <= tcp["even_bytes"] <= 256 * KB
    assert "copied_over_bulk" in tcp
    assert path.read_text().startswith("# Made by tensorwire tune links")
    assert plot.stat().st_size > 0


PROGRAM = """
import contextlib
from concurrent.futures import ThreadPoolExecutor
import grpc
import tensorwire
server = tensorwire.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
options = [("tensorwire.chunk_bytes", 1 << 17)]
with tensorwire.insecure_channel(f"127.0.0.1:{port}", options, transport="tcp") as channel:
    path = channel.path()
    with contextlib.suppress(grpc.RpcError):  # it is refused, so that the server has the link
        channel.unary_unary("/no/method")(b"")
    assert channel.stats()["link"]["thresholds"] == path.thresholds
    print(dict(path.thresholds))
    print(path)
    print(dict(server.paths()[0].thresholds))
server.stop(None).wait()
"""


def run(path: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "TENSORWIRE_LINK_TUNING": str(path),
        "TENSORWIRE_COALESCE_BYTES": "4K",
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )


def test_links_take_the_table_and_what_a_user_sets_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "links.table"
    path.write_text(
        "tcp same_host eager_bytes 32768\ntcp same_host coalesce_bytes 1024\n"
        "tcp same_host chunk_bytes 65536\nshm same_host eager_bytes 1\n"
    )
    of_client, shown, of_server = run(path).stdout.splitlines()
    assert of_client == str(
        {
            "coalesce_bytes": (4096, "environment"),
            "eager_bytes": (32768, "table"),
            "chunk_bytes": (131072, "argument"),
        }
    )
    assert "eager_bytes 32768 by table" in shown
    assert "'chunk_bytes': (65536, 'table')" in of_server


def test_a_table_that_is_none_is_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "links.table"
    path.write_text("tcp same_host eager_bytes 32M\n")
    done = run(path)
    assert "'eager_bytes': (16384, 'default')" in done.stdout
    assert done.stderr.count("line 1: eager_bytes is '32M'") == 1
    assert str(path) in done.stderr


def test_wrong_usage_is_told() -> None:
    with pytest.raises(ValueError, match=r"eager_bytes=-2: write a number of bytes"):
        tensorwire.insecure_channel("127.0.0.1:1", [("tensorwire.eager_bytes", -2)])
    wrong, hello = (-1, (1 << 20) + 1, -1), _core.hello()
    with pytest.raises(_core.StatusError, match="eager_bytes is 1048577, not a number from 0"):
        _core.connect(
            *("tcp:127.0.0.1:1", bytes(16), bytes(32), bytes(16), hello, 1.0), thresholds=wrong
        )
    for arguments, word in (
        (("--transports", "grpc"), "none of"),
        (("--report", "check.json"), "what --check finds"),
        (("--connect", "host"), "no HOST:PORT"),
        (("--connect", "host:1"), "both ends have"),
        (("--serve", "host:1"), "both ends have"),
        (("--serve", "host:1", "--connect", "host:1"), "excludes"),
    ):
        done = CliRunner().invoke(app, ["tune", "links", *arguments])
        assert done.exit_code == 2
        assert word in done.output


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_defaults_are_those_of_links(transport: Transport) -> None:
    default = default_of(transport)
    if transport == "tcp":
        default = replace(default, chunk=1 << 20)  # which is the most that it takes
    with (
        here() as server,
        tensorwire.insecure_channel(server.address, transport=transport) as channel,
    ):
        assert channel.unary_unary(TAKE)((bytes(8),), timeout=10) == bytes(8)
        assert dict(channel.path().thresholds) == {
            name: (nbytes, "default") for name, nbytes in zip(NAMES, astuple(default), strict=True)
        }
