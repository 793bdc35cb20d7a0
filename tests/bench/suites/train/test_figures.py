# SPDX-License-Identifier: Apache-2.0
"""Figures of a run, from what its processes wrote down, and the comparison of several."""

from __future__ import annotations

import json
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.tensorflow import counters
from typer.testing import CliRunner

from tensorwire.bench.harness.report import print_report
from tensorwire.bench.harness.rows import Report
from tensorwire.bench.suites.train import compare, local
from tensorwire.bench.suites.train.figures import (
    ARENA_FULL,
    COPIES,
    TooShortError,
    byte_counters,
    figures,
    path,
)
from tensorwire.bench.suites.train.options import Options
from tensorwire.cli import app
from tensorwire.tensorflow import build


def worker(
    start: float = 0.0, step: float = 1.0, steps: int = 30, warmup: int = 10, **more: Any
) -> dict[str, Any]:
    """Half of a CPU, a copy and 100 bytes in place each second of the first 5, then no copies."""
    ends = [start + number * step for number in range(steps + 1)]
    samples = [
        {
            "time": float(t),
            "cpu_seconds": t / 2,
            "counts": {
                "received_in_place_bytes": 100 * t,
                "received_copied": min(t, 5),
                "arena_capacity": 1 << 21,
            },
        }
        for t in range(int(start), int(start + steps * step) + 2)
    ]
    return {
        "step_ends": ends,
        "warmup": warmup,
        "batch_size": 4,
        "samples": samples,
        "losses": [1.0] * steps,
        **more,
    }


def test_figures_are_of_the_time_that_all_workers_have_in_common() -> None:
    slow, server = worker(start=2.0, step=2.0, steps=12), worker()
    found = figures([worker(steps=28), slow], [server])  # from 22 to 26
    assert found.seconds == 4.0
    assert found.images_per_second == pytest.approx(4 * (1.0 + 0.5))
    assert found.steps_per_second == pytest.approx(0.75)
    assert found.cpu_seconds_per_step == pytest.approx(1.5 / 0.75)
    assert found.bytes_per_step == pytest.approx(300 / 0.75)
    assert found.copies_per_step == 0.0
    assert found.path == "in place"


def test_speed_counts_from_the_tenth_step_on() -> None:
    assert figures([worker(warmup=0)], []).seconds == 20.0
    assert figures([worker(warmup=25)], []).seconds == 5.0
    with pytest.raises(TooShortError, match="more num_batches"):
        figures([worker(steps=9, warmup=0)], [])
    with pytest.raises(TooShortError, match="no time in common"):
        figures([worker(), worker(start=100.0)], [])


def test_what_nobody_counted_is_not_zero() -> None:
    uncounted = worker()
    for sample in uncounted["samples"]:
        sample["counts"] = {}
    found = figures([uncounted], [])
    assert found.bytes_per_step is None
    assert found.copies_per_step is None


def test_what_goes_through_a_socket_is_copied() -> None:
    pushed = worker()
    for number, sample in enumerate(pushed["samples"]):
        sample["counts"] |= {"served_pushed": 3 * number}
    assert figures([pushed], []).copies_per_step == pytest.approx(3.0)


def test_the_arena_was_full_if_it_ever_was() -> None:
    """As it is when variables are made, ahead of the steps that are measured."""
    full = worker()
    for sample in full["samples"]:
        sample["counts"] |= {"allocated_elsewhere": 2}
    assert figures([worker()], []).arena_full == 0
    assert figures([full, worker()], [full]).arena_full == 4


def test_all_counters_that_are_read_are_the_plugins() -> None:
    assert {*byte_counters().values(), *COPIES, ARENA_FULL} <= counters.NAMES


def test_paths() -> None:
    assert path({"in place": 0, "tcp": 0}) == "none"
    assert path({"in place": 9, "tcp": 0}) == "in place"
    assert path({"grpc": 250, "in place": 749, "shm": 1}) == "in place 75 %, grpc 25 %"


def test_a_comparison_interleaves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []

    def run(options: Options, spec: str, **more: Any) -> local.Outcome:
        asked.append(options)
        assert spec == "ps=1,worker=2"
        assert more["environment"] == {"TENSORWIRE_TRANSPORT": "tcp"}
        more["show"]("worker", 0, "20\timages/sec: 1.0 +/- 0.0 (jitter = 0.0)\t1.000")
        more["show"]("worker", 1, "30\timages/sec: 1.0 +/- 0.0 (jitter = 0.0)\t1.000")
        step = {"grpc": 1.0, "grpc+tensorwire": 0.25}[options.server_protocol]
        step = step if options.variable_update == "parameter_server" else 0.2
        return local.Outcome([worker(step=step), worker(step=step)], [])

    monkeypatch.setattr(local, "run", run)
    progress: list[tuple[int, int]] = []
    report, _ = compare.run(
        Options(model="lenet", num_batches=20),
        "ps=1,worker=2",
        2,
        environment={"TENSORWIRE_TRANSPORT": "tcp"},
        progress=lambda what, done, total: progress.append((done, total)),
    )
    order = ["grpc", "grpc+tensorwire", "grpc"] * 2
    assert [options.server_protocol for options in asked] == order
    assert [o.variable_update for o in asked[:3]] == ["parameter_server"] * 2 + ["independent"]
    assert progress[:3] == [(0, 180), (30, 180), (30, 180)]
    assert [row.contender for row in report.rows] == list(compare.CONTENDERS)
    images = [row.items_per_s for row in report.rows]
    assert images == pytest.approx([8.0, 32.0, 40.0])
    assert report.details["losses_equal"] is True

    shown = StringIO()
    print_report(report, compare.LAYOUT, Console(file=shown, width=180))
    assert "4.00" in shown.getvalue()
    assert "Arena of 2 MiB, transport tcp." in shown.getvalue()
    assert "The arena was full" not in shown.getvalue()
    assert "equal bit for bit" in shown.getvalue()


def test_plans_are_compared_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def run(options: Options, spec: str, **more: Any) -> local.Outcome:
        plan = more["environment"]["TENSORWIRE_TF_PLAN"]
        asked.append((options.server_protocol, plan))
        return local.Outcome([worker(step={"off": 1.0, "on": 0.5}[plan])], [])

    monkeypatch.setattr(local, "run", run)
    report, _ = compare.run(
        Options(model="lenet"),
        "ps=1,worker=1",
        2,
        environment={"TENSORWIRE_TF_PLAN": "on"},
        progress=lambda *_: None,
        contenders=compare.PLANS,
    )
    assert asked == [("grpc+tensorwire", "off"), ("grpc+tensorwire", "on")] * 2
    assert [row.ratio for row in report.rows] == pytest.approx([1, 2])
    assert report.details["losses_equal"] is True
    shown = StringIO()
    print_report(report, compare.LAYOUT, Console(file=shown, width=180))
    assert "x unplanned" in shown.getvalue()


def test_an_interrupted_comparison_keeps_the_runs_that_were_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = 0

    def run(options: Options, spec: str, **more: Any) -> local.Outcome:
        nonlocal runs
        runs += 1
        if runs > last:
            raise local.ClusterError(130, "interrupted", signal.SIGINT)
        return local.Outcome([worker()], [])

    monkeypatch.setattr(local, "run", run)
    arguments: dict[str, Any] = {"environment": {}, "progress": lambda *_: None}
    last = 4
    report, _ = compare.run(Options(), "ps=1,worker=1", 3, **arguments)
    assert report.interrupted
    assert [len(images) for images in report.details["images_per_second"].values()] == [2, 1, 1]
    runs, last = 0, 1
    report, _ = compare.run(Options(), "ps=1,worker=1", 3, **arguments)
    assert [row.contender for row in report.rows] == ["grpc"]
    assert report.details["losses_equal"] is None
    shown = StringIO()
    print_report(report, compare.LAYOUT, Console(file=shown, width=80))
    assert "interrupted after 1 of 9 visits" in shown.getvalue()
    assert all(line == line.rstrip() for line in shown.getvalue().splitlines())
    runs, last = 0, 0
    with pytest.raises(local.ClusterError):
        compare.run(Options(), "ps=1,worker=1", 3, **arguments)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_comparison_that_a_signal_ends_keeps_the_runs_that_were_done(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while a cluster runs, which takes it and ends."""
    runs = 0

    def run(options: Options, spec: str, **more: Any) -> local.Outcome:
        nonlocal runs
        runs += 1
        if runs > 3:
            raise local.ClusterError(128 + number, f"ended by {number.name}", number)
        return local.Outcome([worker()], [])

    monkeypatch.setattr(local, "run", run)
    output = tmp_path / "figures.json"
    arguments = ["train", "--compare", "--model=lenet", f"--output={output}"]
    assert CliRunner().invoke(app, arguments).exit_code == 128 + number
    report = Report.from_json(json.loads(output.read_text()))
    assert len(report.rows) == 3
    assert report.interrupted


@pytest.mark.parametrize(
    ("code", "how"), [(3, "failed with exit code 3"), (143, "was ended by SIGTERM")]
)
def test_a_cluster_that_fails_costs_its_own_figures_only(
    code: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where somebody has killed a worker."""
    ran: list[str] = []

    def run(options: Options, spec: str, **more: Any) -> local.Outcome:
        ran.append(options.server_protocol)
        if options.server_protocol == "grpc+tensorwire" and len(ran) > 3:
            raise local.ClusterError(code, f"worker 1 {how}")
        return local.Outcome([worker()], [])

    monkeypatch.setattr(local, "run", run)
    output = tmp_path / "figures.json"
    arguments = ["train", "--compare", "--model=lenet", f"--output={output}"]
    assert CliRunner().invoke(app, arguments).exit_code == 1
    assert ran == ["grpc", "grpc+tensorwire", "grpc"] * 2 + ["grpc"] * 2
    report = Report.from_json(json.loads(output.read_text()))
    assert [row.contender for row in report.rows] == ["grpc", "no communication"]
    told = f"round 2 of 3, grpc+tensorwire: worker 1 {how}"
    assert told in report.environment["notes"]
    assert not report.interrupted


def test_a_run_that_waits_for_the_plugin_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: Options, spec: str, *, building: Any, **more: Any) -> local.Outcome:
        building(f"{build.BUILDING} 2.21.0: 3 of 23")
        raise local.ClusterError(1, "enough")

    monkeypatch.setattr(local, "run", run)
    told: list[tuple[str, int, int]] = []
    with pytest.raises(local.ClusterError):
        compare.run(
            Options(num_batches=10, num_warmup_batches=0),
            "ps=1,worker=1",
            1,
            environment={},
            progress=lambda *now: told.append(now),
        )
    label = "round 1 of 1, grpc (building the plugin for TensorFlow 2.21.0: 3 of 23)"
    assert told[-1] == (label, 0, 30)


def test_other_losses_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: Options, spec: str, **more: Any) -> local.Outcome:
        other = options.server_protocol != "grpc"
        return local.Outcome([worker(losses=[1.0, 2.0 + 1e-7 * other])], [])

    monkeypatch.setattr(local, "run", run)
    arguments: dict[str, Any] = {"environment": {}, "progress": lambda *_: None}
    report, _ = compare.run(Options(), "ps=1,worker=1", 1, **arguments)
    assert report.details["losses_equal"] is False
    assert compare.notes(report)[-1].endswith("NOT equal.")
    unsynchronised = Options(cross_replica_sync=False)
    report, _ = compare.run(unsynchronised, "ps=1,worker=1", 1, **arguments)
    assert report.details["losses_equal"] is None


def test_losses_that_no_transfer_changed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(options: Options, spec: str, **more: Any) -> local.Outcome:
        protocol = options.server_protocol
        ran.append(protocol)
        again = ran.count(protocol) > 1
        return local.Outcome(
            [worker(losses=[1.0, 2.0 + 1e-7 * (again and protocol == "grpc")])], []
        )

    monkeypatch.setattr(local, "run", run)
    arguments: dict[str, Any] = {"environment": {}, "progress": lambda *_: None}
    contenders = ("grpc", "grpc+tensorwire")
    report, _ = compare.run(
        Options(model="gru"), "ps=1,worker=1", 2, contenders=contenders, **arguments
    )
    assert report.details["losses_repeat"] == {"grpc": False, "grpc+tensorwire": True}
    unequal, control, known = compare.notes(report)[-3:]
    assert unequal.endswith("NOT equal.")
    assert control.endswith("those of grpc.")
    assert "of gru may differ" in known
    del report.details["losses_repeat"]
    assert [line for line in compare.notes(report) if "Rounds of one" in line] == []
    report, _ = compare.run(
        Options(model="gru"), "ps=1,worker=1", 1, contenders=contenders, **arguments
    )
    assert set(report.details["losses_repeat"].values()) == {None}


def test_a_full_arena_of_one_round_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []

    def run(options: Options, spec: str, **more: Any) -> local.Outcome:
        rounds.append(options)
        found = worker()
        found["samples"][-1]["counts"]["allocated_elsewhere"] = 7 * (len(rounds) == 1)
        return local.Outcome([found], [])

    monkeypatch.setattr(local, "run", run)
    arguments: dict[str, Any] = {"environment": {}, "progress": lambda *_: None}
    report, _ = compare.run(
        Options(), "ps=1,worker=1", 3, contenders=("grpc+tensorwire",), **arguments
    )
    assert any(line.startswith("The arena was full 7 times") for line in compare.notes(report))


def test_the_transport_of_the_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "shm")
    assert compare.settings(Options(), "worker=2", 1, {})["transport"] == "shm"
    given = {"TENSORWIRE_TRANSPORT": "tcp"}
    assert compare.settings(Options(), "worker=2", 1, given)["transport"] == "tcp"


def test_figures_outlive_a_plot_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    outcome = local.Outcome([worker(), worker()], [])
    monkeypatch.setattr(local, "run", lambda *_, **__: outcome)
    output, plot = tmp_path / "figures.json", tmp_path / "plot.png"
    plot.symlink_to("/dev/full")
    arguments = ["train", "--compare", "--model=lenet", "--rounds=1", "--num-batches=20"]
    done = CliRunner().invoke(app, [*arguments, f"--output={output}", f"--plot={plot}"])
    assert done.exit_code == 1
    assert f"tensorwire: cannot write to {plot} (No space left on device)\n" in done.stderr
    assert "images/s" in done.stdout
    assert len(json.loads(output.read_text())["rows"]) == 3
    done = CliRunner().invoke(app, [*arguments, "--output=/dev/full", f"--plot={tmp_path}/x.png"])
    assert done.exit_code == 1
    assert "tensorwire: cannot write to /dev/full" in done.stderr
    assert (tmp_path / "x.png").exists()


def test_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = {
        name: {"seconds": [1.0, 2.0], "losses": [2.0, 1.0]} for name in ("grpc", "grpc+tensorwire")
    }
    compare.draw(Report("train", "grpc", {}, [], {"curves": curves}), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
