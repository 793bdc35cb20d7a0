# SPDX-License-Identifier: Apache-2.0
"""What commands do: output for programs and for people, wrong usage, exit codes."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.watching import wait
from typer.testing import CliRunner, Result

from tensorwire import launch
from tensorwire.cli import app

ROW = {
    *("contender", "transport", "case", "size", "origin", "p50_us", "p99_us", "gb_per_s"),
    *("calls_per_s", "cpu_s_per_gb", "ratio"),
}
QUICK = ("--seconds", "0.001", "--rounds", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def rpc(*arguments: str) -> dict[str, Any]:
    result = run("bench", "rpc", *QUICK, "--json", *arguments)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_what_goes_wrong_in_a_run_is_no_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object, **_options: object) -> launch.Ended:
        raise ValueError("later")

    monkeypatch.setattr(launch, "run", fails)
    result = run("run", "--launch", "worker=1", "--", "true")
    assert isinstance(result.exception, ValueError)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str) -> None:
    result = run(option)
    assert result.exit_code == 0
    assert result.output.strip()[0].isdigit()


def test_first_calls_are_those_of_processes_of_their_own() -> None:
    report = rpc(
        *("--transport", "shm", "--sizes", "64K", "--cases", "request,first", "--reads", "yes"),
        *("--origin", "ordinary", "--no-limits", "--callers", "2"),
    )
    found = [(row["contender"], row["case"], row["callers"]) for row in report["rows"]]
    assert sorted(found) == [
        *(("grpcio", "first", 1), ("grpcio", "request", 2)),
        *(("tensorwire", "first", 1), ("tensorwire", "request", 2)),
    ]
    assert all((row["calls"] == 1) == (row["case"] == "first") for row in report["rows"])


def test_the_package_can_be_run() -> None:
    command = [sys.executable, "-m", "tensorwire", "-V"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == run("-V").output


@pytest.mark.timeout(120)
def test_rpc_measures_all_that_is_asked_for() -> None:
    report = rpc("--transport", "shm,tcp", "--sizes", "8:64K:8192")
    rows = report["rows"]
    assert set(report) == {"schema", "suite", "baseline", "environment", "rows", "details"}
    assert all(set(row) >= ROW for row in rows)
    assert {row["size"] for row in rows} == {8, 65536}
    assert {row["case"] for row in rows} == {"request", "pull", "stream"}
    ours = [row for row in rows if row["contender"] == "tensorwire"]
    assert {row["transport"] for row in ours} == {"shm", "tcp"}
    assert {row["origin"] for row in ours} == {"ordinary", "published"}
    announced = [row for row in rows if row["ratio"] is None]
    assert all(row["ratio"] > 0 for row in rows if row not in announced)
    assert {(row["transport"], row["origin"], row["reads"]) for row in announced} == {
        ("shm", "published", False)
    }
    assert {row["size"] for row in announced} == {65536}
    assert {"sockets", "memcpy", "grpcio"} <= {row["contender"] for row in rows}
    assert report["environment"]["settings"]["rounds"] == 1
    for row, more in zip(rows, report["details"]["rows"], strict=True):
        assert all(row[name] == more[name] for name in row.keys() & more.keys())
        assert more["min_us"] <= row["p50_us"] <= more["max_us"]


@pytest.mark.timeout(120)
def test_rpc_options_narrow_what_is_measured() -> None:
    report = rpc(
        *("--transport", "grpc", "--sizes", "64", "--cases", "pull", "--reads", "yes"),
        *("--origin", "ordinary", "--no-limits", "--callers", "2"),
    )
    found = {
        (row["contender"], row["transport"], row["case"], row["reads"], row["callers"])
        for row in report["rows"]
    }
    assert found == {
        ("grpcio", "grpc", "pull", True, 2),
        ("tensorwire", "grpc", "pull", True, 2),
    }


@pytest.mark.timeout(120)
def test_rpc_of_what_grpc_users_have() -> None:
    report = rpc(
        *("--transport", "shm", "--sizes", "64K", "--cases", "request", "--reads", "yes"),
        *("--payload", "bytes,protobuf"),
    )
    found = [(row["contender"], row["payload"], row["origin"]) for row in report["rows"]]
    assert sorted(found) == [
        ("grpcio", "bytes", "ordinary"),
        ("grpcio", "protobuf", "ordinary"),
        ("tensorwire", "bytes", "ordinary"),
        ("tensorwire", "protobuf", "ordinary"),
    ]
    assert report["environment"]["settings"]["payloads"] == ["bytes", "protobuf"]


@pytest.mark.timeout(120)
def test_rpc_for_people_and_into_files(tmp_path: Path) -> None:
    output, plot = tmp_path / "figures.json", tmp_path / "figures.png"
    rows = tmp_path / "rows.csv"
    result = run(
        *("bench", "rpc", *QUICK, "--transport", "shm", "--sizes", "8", "--cases", "request"),
        *("--output", str(output), "--plot", str(plot), "--csv", str(rows)),
    )
    assert result.exit_code == 0, result.output
    for word in ("tensorwire", "grpcio", "memcpy", "request 8", "x grpcio", "congestion control"):
        assert word in result.stdout
    assert {row["contender"] for row in json.loads(output.read_text())["rows"]} >= {"tensorwire"}
    assert plot.stat().st_size > 1000
    with rows.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["contender"] for line in lines} >= {"tensorwire", "grpcio", "memcpy"}
    for line in lines:
        assert float(line["min_us"]) <= float(line["p50_us"]) <= float(line["max_us"])
        assert float(line["min_us"]) <= float(line["mean_us"]) <= float(line["max_us"])


def test_figures_outlive_a_full_disk(tmp_path: Path) -> None:
    measure = (
        *("bench", "rpc", *QUICK, "--transport", "shm", "--sizes", "8", "--cases", "request"),
        *("--reads", "no", "--no-limits"),
    )
    output, plot = tmp_path / "figures.json", tmp_path / "figures.png"
    plot.symlink_to("/dev/full")
    result = run(*measure, "--output", str(output), "--plot", str(plot))
    assert result.exit_code == 1
    assert f"tensorwire: cannot write to {plot} (No space left on device)\n" in result.stderr
    assert json.loads(output.read_text())["rows"]
    assert "request 8" in result.stdout

    result = run(*measure, "--output", "/dev/full", "--plot", str(tmp_path / "other.png"))
    assert result.exit_code == 1
    assert "tensorwire: cannot write to /dev/full (No space left on device)\n" in result.stderr
    assert "request 8" in result.stdout
    assert (tmp_path / "other.png").stat().st_size > 1000


@pytest.mark.parametrize("arguments", [("doctor", "--json"), ("--version",), ("trace", "true")])
def test_standard_output_that_is_full_is_one_sentence(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tensorwire", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "tensorwire: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("arguments", [("doctor", "--json"), ("doctor",), ("--version",)])
def test_who_closes_the_pipe_hears_no_more(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tensorwire", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--transport", "pigeon", "pigeon"),
        ("--transport", ",", "empty"),
        ("--sizes", "8T", "no size"),
        ("--sizes", "9", "multiple of 8"),
        ("--sizes", "8:64M", "FROM:TO:FACTOR"),
        ("--sizes", "", "empty"),
        ("--cases", "push", "push"),
        ("--origin", "here", "here"),
        ("--payload", "bytes,json", "json"),
        ("--reads", "maybe", "maybe"),
        ("--peers", "nng", "nng"),
        ("--rounds", "0", "--rounds"),
        ("--seconds", "0", "--seconds"),
        ("--seconds", "inf", "--seconds"),
        ("--callers", "0", "--callers"),
        ("--output", "/no/such/folder/x.json", "no folder"),
        ("--output", "/proc/x.json", "cannot write"),
        ("--plot", "/no/such/folder/x.png", "no folder"),
        ("--plot", "/proc/x.png", "cannot write"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_measured(
    option: str, value: str, complaint: str
) -> None:
    result = run("bench", "rpc", option, value)
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize(
    "target", ["", "localhost", "localhost:", "localhost:0", "localhost:65536", "::1", ":1"]
)
def test_the_doctor_calls_no_other_port_than_was_meant(target: str) -> None:
    result = run("doctor", target)
    assert result.exit_code == 2
    assert "no HOST:PORT" in " ".join(result.output.split())


def test_a_plot_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.bench.harness.files.find_spec", lambda name: None)
    result = run("bench", "rpc", "--plot", "x.png")
    assert result.exit_code == 2
    assert "needs matplotlib: pip install" in result.output


def test_a_protobuf_payload_needs_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.bench.suites.rpc.messages.find_spec", lambda name: None)
    result = run("bench", "rpc", "--payload", "protobuf")
    assert result.exit_code == 2
    assert "needs protobuf: pip install" in result.output


def test_missing_figures_are_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_BUFFER_BYTES", "nonsense")
    result = run(
        *("bench", "rpc", *QUICK, "--transport", "shm", "--sizes", "8", "--no-limits"),
        *("--cases", "request", "--reads", "no", "--json"),
    )
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert {row["contender"] for row in report["rows"]} == {"grpcio"}
    (note,) = report["environment"]["notes"]
    assert "SettingError: TENSORWIRE_BUFFER_BYTES='nonsense' is not permitted" in note
    assert "Traceback" not in note
    assert "File" not in note


def test_an_interrupted_run_keeps_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def impatient() -> Iterator[Callable[[str, int, int], None]]:
        def update(now: str, done: int, total: int) -> None:
            if done == 3:
                raise KeyboardInterrupt

        yield update

    monkeypatch.setattr("tensorwire.bench.harness.handover.progress_bar", impatient)
    output = tmp_path / "figures.json"
    done = run(
        *("bench", "rpc", "--sizes", "8", "--cases", "request", "--seconds", "0.01"),
        *("--no-limits", "--output", str(output)),
    )
    assert done.exit_code == 130
    assert "tensorwire bench rpc: 50 visits, a few seconds" in done.stderr
    assert "interrupted after 3 of 50 visits" in done.stdout
    report = json.loads(output.read_text())
    assert report["environment"]["interrupted"]
    assert len(report["rows"]) == 3


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (signal.SIGINT, 130, "tensorwire: interrupted\n"),
        (signal.SIGTERM, 143, "tensorwire: ended by SIGTERM\n"),
        (signal.SIGHUP, 129, "tensorwire: ended by SIGHUP\n"),
    ],
)
def test_what_ends_a_command_leaves_nothing_behind(
    number: signal.Signals, code: int, says: str, folders: dict[str, Path]
) -> None:
    command = [sys.executable, "-m", "tensorwire", "bench", "rpc", "--sizes", "8", "--seconds", "9"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a child inherits
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **{name: str(path) for name, path in folders.items()}},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    said = process.stderr.readline()  # it measures, or is about to
    # The folder of a conversation, and the server's listener for shared memory.
    wait(
        lambda: all(any(folder.iterdir()) for folder in folders.values()), folders.values(), process
    )
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == code, said + rest
    assert says in said + rest
    assert "Traceback" not in said + rest
    assert [list(folder.iterdir()) for folder in folders.values()] == [[], []]


def test_the_doctor_tries_one_transport_at_a_time() -> None:
    result = run("doctor", "127.0.0.1:1", "--transport", "shm,tcp")
    assert result.exit_code == 2
    assert "one transport at a time" in " ".join(result.output.split())


def test_doctor_for_programs() -> None:
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert set(report) == {"versions", "host", "settings", "rdma", "peer"}
    assert report["peer"] is None
    verdicts = {finding["verdict"] for finding in report["host"]}
    assert verdicts <= {"ok", "warn", "fail"}
    assert result.exit_code == (1 if "fail" in verdicts else 0)
    assert report["settings"]["buffer_bytes"] > 0


def test_doctor_for_people() -> None:
    result = run("doctor")
    for subject in ("kernel", "CPUs", "memfd", "pidfd", "/dev/shm", "congestion", "open files"):
        assert subject in result.stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["doctor"], ["trace", "--", "true"]]
)
def test_standard_output_may_be_closed(arguments: list[str]) -> None:
    called = "import sys; from tensorwire.cli import main; sys.argv[0] = 'tensorwire'; main()"
    command = [sys.executable, "-c", called, *arguments]
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr


def test_a_cluster_whose_output_nobody_reads_ends() -> None:
    """What is said at the end goes to the same pipe."""
    fills = ["sh", "-c", "printf '%5000d\\n' 1; exec sleep 1000"]
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorwire", "run", "--launch", "worker=1", "--", *fills],
            stdout=writer,
            stderr=writer,
        )
        assert select.select([reader], [], [], 60)[0], "nothing has been written"
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        os.close(reader)
        os.close(writer)


def test_doctor_of_nobody() -> None:
    result = run("doctor", "127.0.0.1:9", "--timeout", "30", "--json")
    assert result.exit_code == 1
    peer = json.loads(result.stdout)["peer"]
    assert peer["error"].startswith("UNAVAILABLE")
    assert peer["ping_us"] is None


def test_doctor_knows_its_transports() -> None:
    result = run("doctor", "127.0.0.1:9", "--transport", "pigeon")
    assert result.exit_code == 2
    assert "pigeon" in result.output
