# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of TF-gRPC-Bench: what their figures are made of; and real ones."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tensorwire.bench.harness.control import AgentError, LostError
from tensorwire.bench.harness.network import Link
from tensorwire.bench.harness.report import write_csv
from tensorwire.bench.harness.resources import Sample
from tensorwire.bench.harness.rows import Report
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.tokens import Token
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tf_grpc import remote, suite
from tensorwire.bench.suites.tf_grpc.cluster import Measured, Settings, Topology
from tensorwire.bench.suites.tf_grpc.contender import Request, find
from tensorwire.bench.suites.tf_grpc.payloads import Workload
from tensorwire.bench.suites.tf_grpc.suite import BENCHMARKS, Options, Payloads, topology
from tensorwire.cli import app
from tensorwire.observe.trace import read

QUICK = ("--rounds", "1", "--seconds", "0.01", "--warm-up", "0", "--no-limits")


def command(*arguments: str) -> Any:
    environment = {"COLUMNS": "250", "TERM": "dumb"}
    return CliRunner().invoke(app, ["bench", *arguments], env=environment)


class FakeCluster:
    note = ""

    def __init__(self, entry: Entry, request: Callable[[Work], Request]) -> None:
        self.path = entry.transport
        self.slower = 4 if entry.contender == "grpcio" else 1
        self.request = request
        self.requests: list[Request] = []

    def visit(self, work: Work, seconds: float) -> Measured:
        self.requests.append(self.request(work))
        us = 1000.0 * self.slower
        return Measured(
            *(us, 2 * us, 100, us / 1e4, 0.5, self.path),
            min_us=us / 2,
            mean_us=us,
            max_us=3 * us,
            samples_us=[us, us],
            resources=[Sample(0.0, 0.0, 8, 0, 0), Sample(0.5, 0.5, 9, 10, 11)],
        )


def run(
    benchmark: str,
    *,
    kind: type[FakeCluster] = FakeCluster,
    complete: bool = True,
    **more: Any,
) -> tuple[Report, list[FakeCluster]]:
    clusters: list[FakeCluster] = []

    class FakePayloads(Payloads):
        def start(self, entry: Entry) -> nullcontext[FakeCluster]:
            clusters.append(kind(entry, self.request))
            return nullcontext(clusters[-1])

    options: dict[str, Any] = {
        "workloads": [Workload("skew", ((1 << 20, 10),)), Workload("two", ((4,), (8,)))],
        "modes": ["non-serialized"],
        "origins": ["ordinary", "published"],
        "reads": [True],
        "topology": topology(benchmark, None, None, ()),
        "transports": ["shm"],
        "peers": [],
        "rounds": 2,
        "seconds": 0.1,
        "settings": Settings(0.5),
        **more,
    }
    made = FakePayloads.of(Options(benchmark, **options))
    assert made.name == benchmark
    report, is_complete = made.run()
    assert is_complete == complete
    return report, clusters


def test_rows_and_their_details() -> None:
    report, clusters = run("p2p-latency")
    assert Report.from_json(json.loads(json.dumps(report.to_json()))).rows == report.rows
    assert report.suite == "p2p-latency"
    keys = [(row.contender, row.case, row.origin) for row in report.rows]
    assert keys == [
        ("grpcio", "skew", "ordinary"),
        ("tensorwire", "skew", "ordinary"),
        ("tensorwire", "skew", "published"),
        ("grpcio", "two", "ordinary"),
        ("tensorwire", "two", "ordinary"),
        ("tensorwire", "two", "published"),
    ]
    grpcio, ours = report.rows[:2]
    assert (grpcio.size, grpcio.p50_us, ours.ratio) == ((1 << 20) + 10, 4000, 4)
    assert ours.gb_per_s == pytest.approx(2 * grpcio.size * 1000 / 1e9), "both ways of an echo"
    found = report.details["rows"]
    assert [(each["contender"], each["case"], each["origin"]) for each in found] == keys
    assert (found[1]["min_us"], found[1]["mean_us"], found[1]["max_us"]) == (500, 1000, 3000)
    assert found[1]["samples_us"] == [[1000, 1000]] * 2
    samples = report.details["samples"]
    assert [(each["contender"], each["transport"]) for each in samples[:2]] == [
        ("grpcio", "grpc ordinary"),
        ("tensorwire", "shm ordinary"),
    ]
    assert (samples[2]["transport"], samples[2]["case"]) == ("shm published", "skew 1.05 MB, read")
    assert samples[5]["case"] == "two 6 B, read"
    assert samples[1]["seconds"] == [0.5, 1.0], "a round after the other"
    assert report.details["payloads"]["two"] == [[4], [8]]
    assert {request.procedure for each in clusters for request in each.requests} == {"echo"}


def test_figures_before_the_loss_of_a_host_stay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Lost(FakeCluster):
        def visit(self, work: Work, seconds: float) -> Measured:
            if work.case == "two":
                raise LostError("rank 1 on node1 is lost")
            return super().visit(work, seconds)

    report, _ = run("p2p-latency", kind=Lost, complete=False)
    assert {row.case for row in report.rows} == {"skew"}
    assert "ended early: rank 1 on node1 is lost" in report.environment["notes"]
    assert "rank 1 on node1 is lost" in capsys.readouterr().err


def test_each_figure_is_of_all_repetitions() -> None:
    class Varying(FakeCluster):
        def visit(self, work: Work, seconds: float) -> Measured:
            us = (9.0, 1.0, 5.0, 3.0, 7.0)[len(self.requests)]
            self.requests.append(self.request(work))
            samples = [Sample(0.0, 0.0, 8, 0, 0), Sample(0.5, 0.5, 9, 10, 11)]
            more: dict[str, Any] = {"serialization_us": us / 2, "resources": samples}
            return Measured(us, us, 100, 1.0, 0.5, self.path, **more)

    one = [Workload("one", ((8,),))]
    report, _ = run("p2p-latency", kind=Varying, rounds=5, workloads=one, origins=["ordinary"])
    for row, rounds in zip(report.rows, report.details["rounds"], strict=True):
        assert row.p50_us == 5
        assert row.p50_spread == pytest.approx(8 / 5)
        assert sorted(rounds["p50_us"]) == [1, 3, 5, 7, 9]
    assert {each["serialization_us"] for each in report.details["rows"]} == {2.5}


def test_an_acknowledged_payload_counts_once() -> None:
    report, clusters = run("p2p-bandwidth")
    row = report.rows[1]
    assert row.gb_per_s == pytest.approx(row.size * 1000 / 1e9)
    assert clusters[0].requests[0].procedure == "acknowledge"


def test_several_workers_are_compared_by_calls() -> None:
    people = topology("ps-throughput", 2, 3, ())
    report, _ = run("ps-throughput", topology=people)
    assert {row.callers for row in report.rows} == {3}
    assert report.rows[1].ratio == pytest.approx(4)


def test_what_is_serialized_lies_in_no_arena() -> None:
    report, _ = run("mimic", modes=["serialized"])
    assert {(row.payload, row.origin) for row in report.rows} == {("serialized", "ordinary")}


def test_who_is_not_served_elsewhere_is_left_out() -> None:
    people = topology("p2p-latency", None, None, ("a:1",))
    with pytest.raises(AssertionError):  # not complete
        run("p2p-latency", topology=people, remote={"grpcio": ["a:2"]})


@pytest.mark.parametrize(
    "more",
    [
        {"topology": Topology(remote=("h:1",))},
        {"settings": Settings(0, link=Link("1gbit"))},
    ],
)
def test_who_cannot_leave_the_host_is_left_out(more: dict[str, Any]) -> None:
    served = {"grpcio": ["h:2"], "tensorwire": ["h:3"]}
    wanted: dict[str, Any] = {"transports": ["tcp"], "peers": ["mpi"], "may_lack": ["mpi"]}
    report, _ = run("p2p-latency", **wanted, remote=served, **more)
    assert {row.contender for row in report.rows} == {"grpcio", "tensorwire"}
    (note,) = (each for each in report.environment["notes"] if each.startswith("mpi"))
    assert note.startswith("mpi over shm: left out: it is for one host")


def test_who_takes_anybody_for_one_of_its_own_does_not_serve_others() -> None:
    near = ["mpi", "gloo", "torch-rpc", "ucxx", "nixl", "mooncake", "ray", "grpcio-unix"]
    assert remote.served([*near, "grpcio"]) == ["grpcio"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "transport"),
    [("mpi", "shm"), ("nixl", "shm"), ("nixl", "tcp"), ("mooncake", "tcp"), ("ray", "shm")],
)
def test_those_that_need_processes_of_their_own(name: str, transport: str) -> None:
    """Two pairs, each of whose processes both calls and serves."""
    if (reason := find(name).viable(transport)) is not None:
        pytest.skip(reason)
    small = ("--scheme", "uniform", "--categories", "small", "--origin", "ordinary")
    arguments = ("--both-ways", "--window", "3", "--peers", name, "--transport", "tcp", "--json")
    done = command("p2p-bandwidth", "--buffers", "2", *arguments, *small, *QUICK)
    assert done.exit_code == 0, done.output
    found = Report.from_json(json.loads(done.stdout))
    assert (name, transport) in {(row.contender, row.transport) for row in found.rows}


def test_payloads_have_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="several payloads are called 'one'"):
        run("mimic", workloads=[Workload("one", ((8,),)), Workload("one", ((9,),))])


def test_the_warm_up_counts_in_the_forecast() -> None:
    def forecast(warm_up: float) -> float:
        options = Options(
            "p2p-latency",
            [Workload("one", ((8,),))],
            ["non-serialized"],
            ["ordinary"],
            [True],
            Topology(),
            [],
            [],
            10,
            1.0,
            Settings(warm_up),
        )
        return Payloads.of(options).forecast().seconds

    assert forecast(2.0) - forecast(0.0) == pytest.approx(20)


def test_a_row_is_a_line_of_csv(tmp_path: Path) -> None:
    report, _ = run("p2p-latency")
    write_csv(report, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(report.rows)
    assert [line["contender"] for line in lines] == [row.contender for row in report.rows]
    assert float(lines[1]["p50_us"]) == 1000
    assert float(lines[1]["max_us"]) == 3000
    assert "samples_us" not in lines[0]


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_bars(tmp_path: Path, benchmark: str) -> None:
    report, _ = run(benchmark)
    path = tmp_path / "bars.svg"
    suite.plot(report, path)
    assert path.read_text().startswith("<?xml")


@pytest.mark.timeout(120)
def test_servers_and_workers_of_every_kind(tmp_path: Path) -> None:
    done = command(
        *("ps-throughput", "--servers", "2", "--workers", "2", *QUICK, "--json"),
        *("--scheme", "random,custom", "--pattern", "sms", "--categories", "small,medium"),
        *("--mode", "non-serialized,serialized", "--transport", "tcp"),
        *("--origin", "ordinary,published", "--csv", str(tmp_path / "rows.csv")),
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert {row["origin"] for row in report["rows"]} == {"ordinary", "published"}
    ways = {(row["contender"], row["transport"]) for row in report["rows"]}
    assert ways == {("grpcio", "grpc"), ("tensorwire", "tcp")}
    for row, more in zip(report["rows"], report["details"]["rows"], strict=True):
        assert row["callers"] == 2
        assert row["calls"] >= 2
        assert 0 < more["min_us"] <= more["mean_us"] <= more["max_us"]
        assert (more["serialization_us"] > 0) == (row["payload"] == "serialized")
        (times,) = more["samples_us"]
        assert len(times) == row["calls"]
    # In a visit this short the clock of processor time may not tick.
    assert sum(row["cpu_s_per_call"] for row in report["rows"]) > 0
    assert len(report["details"]["samples"]) == len(report["rows"])
    for samples in report["details"]["samples"]:
        assert samples["seconds"]
        units = ("CPU, cores", "memory, MiB", "received, MB/s", "sent, MB/s")
        assert tuple(samples["figures"]) == units
        for figures in samples["figures"].values():
            assert len(figures) == len(samples["seconds"])
        assert min(samples["figures"]["memory, MiB"]) > 1
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + len(report["rows"])


@pytest.mark.timeout(120)
def test_nodes_call_each_other() -> None:
    done = command(
        *("mimic", "--servers", "2", *QUICK, "--json", "--transport", "shm"),
        *("--scheme", "uniform", "--categories", "small", "--buffers", "1,2", "--rate", "1000"),
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["details"]["nodes"] == 2
    cases = {(row["contender"], row["case"], row["size"]) for row in report["rows"]}
    sizes = (("uniform of 1", 10), ("uniform of 2", 20))
    assert cases == {(name, *each) for name in ("grpcio", "tensorwire") for each in sizes}


@pytest.mark.timeout(120)
def test_pairs_with_a_window() -> None:
    done = command(
        *("p2p-bandwidth", "--window", "3", "--both-ways", *QUICK[:-1], "--json"),
        *("--scheme", "skew", "--buffers", "2", "--transport", "tcp", "--origin", "ordinary"),
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["details"]["nodes"], report["details"]["window"]) == (2, 3)
    rows = [(row["contender"], row["callers"]) for row in report["rows"]]
    assert rows[:3] == [("grpcio", 6), ("tensorwire", 6), ("sockets", 6)]
    assert all(row["calls"] >= 6 and row["ratio"] > 0 for row in report["rows"])


@pytest.mark.timeout(120)
def test_processes_on_a_network() -> None:
    done = command(
        *("ps-throughput", "--network", "1gbit", "--workers", "2", *QUICK, "--json"),
        *("--scheme", "uniform", "--buffers", "3", "--origin", "ordinary", "--monitor", "0.02"),
        *("--seconds", "0.1"),
    )
    if done.exit_code == 2 and "--network" in done.output:
        pytest.skip("no network namespaces here")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert "1gbit" in report["details"]["network"]
    rows = [(row["contender"], row["transport"]) for row in report["rows"]]
    assert rows == [("grpcio", "grpc"), ("tensorwire", "tcp")]
    for row in report["rows"]:
        assert row["gb_per_s"] < 0.2, "a gigabit, and what a burst adds to that"
    for samples in report["details"]["samples"]:
        assert sum(samples["figures"]["sent, MB/s"]) > 0


def test_who_cannot_have_a_window_is_not_measured() -> None:
    report, clusters = run("p2p-latency", window=4, peers=["sockets"])
    assert {row.contender for row in report.rows} == {"grpcio", "tensorwire"}
    assert {request.window for each in clusters for request in each.requests} == {4}


@pytest.mark.timeout(120)
def test_without_an_idea_its_steps_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two small buffers behind a large one, which coalesce: the steps of all links tell."""
    monkeypatch.setenv("TENSORWIRE_TRACE", "100000")
    monkeypatch.setenv("TENSORWIRE_TRACE_FOLDER", str(tmp_path))
    done = command(
        *("p2p-bandwidth", *QUICK, "--json", "--transport", "tcp", "--without", "coalescing"),
        *("--scheme", "custom", "--pattern", "lss", "--origin", "ordinary", "--seconds", "0.001"),
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    names = [row["contender"] for row in rows]
    assert names == ["grpcio", "tensorwire", "tensorwire-without-coalescing"]
    frames = set()
    for link in read(tmp_path):
        if link.role == "client":
            large = link.steps["sent"]["DATA"][1] // (1 << 20)
            frames.add(link.count("EAGER", "sent") / large)
    assert frames == {1, 2}


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("a-secret-of-some-length\n")
    return file


@pytest.mark.timeout(120)
def test_servers_of_another_command(token: Path) -> None:
    """As on another host; they end by Ctrl-C, and have refused who has another token."""
    names = ["grpcio", "sockets", *find("sockets").variants()]
    with remote.serving(names, "127.0.0.1", 0, Token.of(token)) as address:
        done = command(
            *("p2p-bandwidth", "--connect", address, "--token-file", str(token), *QUICK, "--json"),
            *("--peers", "sockets", "--transport", "tcp", "--scheme", "skew"),
        )
        report = json.loads(done.stdout)
        assert done.exit_code == 1, "tensorwire is not served there"
        notes = report["environment"]["notes"]
        assert "tensorwire over tcp: left out: it is not served there" in notes[0]
        assert {row["contender"] for row in report["rows"]} == set(names)
        other = token.with_name("other")
        other.write_text("another-secret-of-some-length")
        done = command("p2p-bandwidth", "--connect", address, "--token-file", str(other))
        assert done.exit_code == 2
        assert "UNAUTHENTICATED" in done.output


@pytest.mark.timeout(120)
def test_serving_ends_by_ctrl_c(token: Path) -> None:
    arguments = ("p2p-latency", "--serve", "--no-limits", "--token-file", str(token))
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorwire", "bench", *arguments, "--port", str(free_ports(3))],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "COLUMNS": "250"},
    )
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        assert any("serving grpcio, tensorwire at localhost:" in line for line in lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def free_ports(count: int) -> int:
    """The first of so many in a row, of which nobody listens at any now. Tests that run at the same
    time, in other processes, begin elsewhere."""
    import socket

    begin = 20_000 + os.getpid() % 100 * 100
    for first in range(begin, begin + 100 - count, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("localhost", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def test_an_address_that_some_contenders_do_not_take_is_refused(token: Path) -> None:
    with pytest.raises(ValueError, match="::1: give a name, or an address of IPv4"):
        remote.look_up(["::1"], 50001, Token.of(token))


def test_a_port_that_is_taken_is_told(token: Path) -> None:
    first = free_ports(2)
    with (
        remote.serving(["sockets"], "127.0.0.1", first, Token.of(token)),
        pytest.raises(AgentError, match=r"Address already in use|address already in use"),
        remote.serving(["sockets"], "127.0.0.1", first, Token.of(token)),
    ):
        pass


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (
            ("--ip", "192.0.2.1"),
            "cannot listen at 192.0.2.1:50001: Cannot assign requested address",
        ),
        (("--port", "65535"), "cannot listen at localhost:65536"),
        (("--ip", "::1"), "cannot listen at ::1: give a name, or an address of IPv4"),
    ],
)
def test_an_address_that_is_none_is_one_sentence(
    token: Path, where: tuple[str, ...], told: str
) -> None:
    done = command("p2p-latency", "--serve", "--token-file", str(token), *where)
    assert done.exit_code == 1
    assert told in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("text", "told"), [("short", "has no secret"), ("two words of it, long", "has no secret")]
)
def test_tokens_that_are_none(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(ValueError, match=told):
        Token.of(file)
    with pytest.raises(ValueError, match="cannot read"):
        Token.of(tmp_path / "absent")


def test_wrong_usage_is_told() -> None:
    for arguments, words in (
        (("p2p-latency", "--large", "11M"), "no large buffer: those have 1M to 10M"),
        (("p2p-latency", "--small", "1K"), "no small buffer: those have 1 to 1023"),
        (("p2p-latency", "--scheme", "random", "--categories", "small"), "two categories"),
        (("p2p-latency", "--scheme", "custom"), "--pattern, --buffers: '' is no pattern"),
        (("p2p-latency", "--buffers", "none"), "no number of buffers"),
        (("p2p-latency", "--payload", "model:nonsense"), "no model"),
        (("p2p-latency", "--payload", "nonsense"), "neither scheme nor model"),
        (("p2p-latency", "--peers", "nonsense"), "no contender"),
        (("p2p-latency", "--connect", "nobody"), "both ends have"),
        (("p2p-latency", "--serve"), "both ends have"),
        (("mimic", "--workers", "2"), "give --servers alone"),
        (("mimic", "--both-ways"), "p2p-latency and p2p-bandwidth"),
        (("p2p-latency", "--window", "2", "--rate", "9"), "have no window"),
        (("p2p-latency", "--network", "fast"), "write 10gbit, or 10gbit,0.1ms"),
        (("p2p-latency", "--network", "1gbit", "--connect", "a"), "it is for one host"),
        (("p2p-latency", "--transport", "auto"), "none of shm, verbs, tcp"),
        (("p2p-latency", "--without", "tcp"), "none of coalescing, eager, rendezvous"),
        (("p2p-latency", "--without", "zero-copy,pipelining"), "give --window 8, too"),
        (("p2p-latency", "--without", "zero-copy", "--transport", "tcp"), "zero-copy is no choice"),
        (("p2p-latency", "--without", "chunking", "--transport", "shm"), "shm hands large"),
        (("p2p-latency", "--without", "eager", "--transport", "shm"), "adaptive is without both"),
    ):
        done = command(*arguments)
        assert done.exit_code == 2, done.output
        told = " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())
        assert words in told


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_help_has_the_defaults_of_the_paper(name: str) -> None:
    told = " ".join(re.sub("[│╭╮╰╯─]", " ", command(name, "--help").output).split())
    for option, default in (
        ("--ip", "localhost"),
        ("--port", "50001"),
        ("--servers", r"\(1; mimic: 4\)"),
        ("--workers", r"\(1\)"),
        ("--mode", "non-serialized"),
        ("--scheme", "uniform"),
        ("--categories", r"\(all of them; mimic: large\)"),
        ("--buffers", r"\(10; mimic: 2,4,8\)"),
        ("--small", "10"),
        ("--medium", "10K"),
        ("--large", "1M"),
        ("--warm-up", "2.0"),
        ("--seconds", "10.0"),
        ("--rounds", "5"),
    ):
        assert re.search(rf" {option} [^\[]*(\[\S+\])?[^\[]*\[default: {default}\]", told), option
