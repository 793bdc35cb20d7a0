# SPDX-License-Identifier: Apache-2.0
"""Traces: what a channel, a server and a whole program show of their links' steps."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console

import tensorwire
from tensorwire.observe import trace

MAIN = "from tensorwire.cli import main; main()"

PROGRAM = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import grpc, tensorwire

take = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
handlers = grpc.method_handlers_generic_handler("test", {"Take": take})
server = tensorwire.server(ThreadPoolExecutor(2), [handlers])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with tensorwire.insecure_channel(f"127.0.0.1:{port}", transport=sys.argv[1]) as channel:
    for _ in range(3):
        channel.unary_unary("/test/Take")([b"0123456789"] * 100)
print("traced", flush=True)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def server() -> Iterator[tuple[Any, str]]:
    take: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    handlers = grpc.method_handlers_generic_handler("test", {"Take": take})
    server = tensorwire.server(ThreadPoolExecutor(2), [handlers])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield server, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def tracing() -> Iterator[None]:
    trace.keep(10_000)
    yield
    trace.keep(0)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.usefixtures("tracing")
def test_small_segments_are_one_message_and_one_send(
    server: tuple[Any, str], transport: Any
) -> None:
    ours, target = server
    with tensorwire.insecure_channel(target, transport=transport) as channel:
        call: Any = channel.unary_unary("/test/Take")
        call([b"0123456789"] * 100)
        found = channel.trace()
        assert found is not None
        assert (found.transport, found.total) == (transport, len(found.events))
        assert found.count("MESSAGE", "sent") == found.count("SEND", "sent") == 1
        first = found.events[0]
        assert (first.step, first.segment, first.bytes) == ("MESSAGE", 100, 1000)
        served = next(link for link in ours.traces() if link.transport == transport)
        assert served.count("MESSAGE", "received") == 1
        times = [event.time_ns for event in found.events]
        assert times == sorted(times)


@pytest.mark.usefixtures("tracing")
def test_large_segments_by_transport(server: tuple[Any, str]) -> None:
    _, target = server
    payload = bytes(10 << 20)
    cases: list[tuple[Any, Any, int]] = [("tcp", "DATA", 10), ("shm", "FIN", 1)]
    for transport, step, count in cases:
        with tensorwire.insecure_channel(target, transport=transport) as channel:
            call: Any = channel.unary_unary("/test/Take")
            call(payload)
            call(b"")  # takes a lease home that was not back yet
            found = channel.trace()
            assert found is not None
            assert found.count(step, "sent" if step == "DATA" else "received") == count


def test_what_is_kept_is_bounded_and_off_by_default(server: tuple[Any, str]) -> None:
    _, target = server
    with tensorwire.insecure_channel(target, transport="shm") as channel:
        call: Any = channel.unary_unary("/test/Take")
        call(b"x")
        found = channel.trace()
        assert found is not None
        assert (found.total, found.events) == (0, ())
        trace.keep(5)
        try:
            for _ in range(10):
                call(b"x")
            found = channel.trace()
            assert found is not None
            assert found.total >= 30  # of each call: a message and a send out, a message in
            assert len(found.events) == 5
        finally:
            trace.keep(0)


def test_over_grpc_there_is_none(server: tuple[Any, str]) -> None:
    _, target = server
    with tensorwire.insecure_channel(target, transport="grpc") as channel:
        call: Any = channel.unary_unary("/test/Take")
        call(b"x")
        assert channel.trace() is None


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "trace", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_command_shows_both_ends_of_every_link(tmp_path: Path, transport: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output = tmp_path / "steps.json"
    chrome = tmp_path / "chrome.json"
    done = command(
        *("--events", "--output", str(output), "--chrome", str(chrome)),
        *("--", sys.executable, str(program), transport, "7"),
    )
    assert done.returncode == 7, done.stderr
    assert "traced" in done.stdout
    for word in ("client", "server", transport, "MESSAGE", "SEND"):
        assert word in done.stdout
    links = json.loads(output.read_text())["links"]
    ends = {link["role"]: link for link in links}
    assert set(ends) == {"client", "server"}
    assert {link["transport"] for link in links} == {transport}
    assert ends["client"]["steps"]["sent"]["MESSAGE"] == {"count": 3, "bytes": 3000}
    assert ends["server"]["steps"]["received"]["MESSAGE"] == {"count": 3, "bytes": 3000}
    assert ends["client"]["total"] == len(ends["client"]["events"])
    shown = json.loads(chrome.read_text())["traceEvents"]
    threads = [event for event in shown if event["name"] == "thread_name"]
    assert {event["args"]["name"].split()[0] for event in threads} == {"client", "server"}
    assert sum(event["ph"] == "i" for event in shown) == sum(link["total"] for link in links)


@pytest.mark.parametrize("option", ["--output", "--chrome"])
@pytest.mark.parametrize(("program", "code"), [("true", 1), ("exit 7", 7)])
def test_a_file_that_cannot_be_written_is_told(option: str, program: str, code: int) -> None:
    done = command(option, "/dev/full", "--", "sh", "-c", program)
    assert done.returncode == code
    assert done.stderr == "tensorwire: cannot write to /dev/full (No space left on device)\n"
    assert "No link was opened" in done.stdout


def test_what_is_lent_counts_as_payload(server: tuple[Any, str]) -> None:
    _, target = server
    payload = tensorwire.zeros(1 << 20, "uint8")
    trace.keep(1000)
    try:
        for transport in ("shm", "tcp"):
            with tensorwire.insecure_channel(target, transport=transport) as channel:
                call: Any = channel.unary_unary("/test/Take")
                call([payload, b"0123456789"])
                found = channel.trace()
                assert found is not None
                assert found.payload("sent") == (1 << 20) + 10
                if transport == "shm":
                    (lent,) = (event for event in found.events if event.step == "MAP")
                    assert (lent.segment, lent.bytes) == (0, 1 << 20)
    finally:
        trace.keep(0)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_and_no_number_is_cut(width: int) -> None:
    large = 123_456_789_012
    event = trace.Event(5, "received", "READ_DONE", 1234, 5678, 3, large, 90_123)
    link = trace.LinkTrace(
        transport="shm",
        peer="unix:",
        total=9,
        events=(event,),
        steps={"sent": {"MAP": (2, large)}, "received": {"READ_DONE": (1, large)}},
        role="client",
        pid=42,
    )
    console = Console(file=io.StringIO(), width=width)
    trace.print_links([link], console, events=True)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width and line == line.rstrip() for line in lines)
    rows = [line.split() for line in lines]
    assert ["MAP", "2", f"{large:,}", "0", "0"] in rows
    assert ["payload", f"{large:,}", "0"] in rows
    assert any(f"{large:,}" in row and "5678" in row for row in rows)


def test_a_read_takes_its_time_in_a_timeline() -> None:
    def event(time_ns: int, step: trace.Step, id: int) -> trace.Event:
        return trace.Event(time_ns, "sent", step, 1, 2, 3, 4096, id)

    link = trace.LinkTrace(
        transport="verbs",
        peer="unix:",
        total=4,
        events=(
            event(1000, "READ", 7),
            event(2000, "READ", 8),
            event(5500, "READ_DONE", 7),
            event(6000, "READ_DONE", 9),  # begun before what was kept
        ),
        steps={"sent": {}, "received": {}},
        role="client",
        pid=42,
    )
    shown = [one for one in trace.as_chrome([link])["traceEvents"] if one["ph"] != "M"]
    assert [(one["ph"], one["name"], one["ts"]) for one in shown] == [
        ("X", "READ", 1.0),
        ("i", "READ_DONE", 6.0),
    ]
    assert shown[0]["dur"] == 4.5
    assert shown[0]["args"]["bytes"] == 4096
    assert {one["pid"] for one in shown} == {42}


def test_a_file_that_cannot_be_written_is_said_before_the_program_runs(tmp_path: Path) -> None:
    done = command("--output", "/proc/steps.json", "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 2
    assert "cannot write to /proc/steps.json" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_the_command_says_when_there_is_nothing() -> None:
    done = command("--json", "--", sys.executable, "-c", "pass")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"links": [], "groups": []}
    assert command("--", "/no/such/program").returncode == 127


@pytest.mark.parametrize("name", ["trace", "profile"])
def test_for_programs_there_is_nothing_but_the_object(name: str) -> None:
    program = "import os; print('print'); os.write(1, b'write')"
    done = subprocess.run(
        [sys.executable, "-c", MAIN, name, "--json", "--", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    assert "print" in done.stderr
    assert "write" in done.stderr


WAITS = """
import signal, sys
def ended(*_):
    print("told", file=sys.stderr, flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, ended)
signal.alarm(120)  # whoever was to tell it has failed
print("ready", flush=True)
signal.pause()
"""


def test_a_closed_terminal_ends_the_program_and_leaves_nothing(folders: dict[str, Path]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "trace", "--", sys.executable, "-c", WAITS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folders["TMPDIR"])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert list(folders["TMPDIR"].iterdir())
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 5, said
    assert "told" in said
    assert list(folders["TMPDIR"].iterdir()) == []


RANKS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from tensorwire.collective import join

def work(rank):
    with join(sys.argv[1], rank, 2) as group:
        for count in (2, 2, 100_000):
            group.all_reduce(np.ones(count, np.float32))

with ThreadPoolExecutor(2) as pool:
    list(pool.map(work, range(2)))
"""


def test_the_command_shows_operations_of_ranks(tmp_path: Path) -> None:
    output = tmp_path / "steps.json"
    folder = str(tmp_path / "store")
    done = command("--output", str(output), "--", sys.executable, "-c", RANKS, folder)
    assert done.returncode == 0, done.stderr
    groups = json.loads(output.read_text())["groups"]
    assert sorted(group["rank"] for group in groups) == [0, 1]
    for group in groups:
        assert (group["size"], group["links"]) == (2, 1)
        assert (group["fabric"], group["tuned"]) == ("shared memory", False)
        assert group["operations"] == {
            "all_reduce": {
                "one_step": {"operations": 2, "bytes": 16},
                "stage": {"operations": 1, "bytes": 400_000},
            }
        }
    assert "rank 1 of 2" in done.stdout
    (line,) = {line for line in done.stdout.splitlines() if "stage" in line}
    assert line.split() == ["all_reduce", "stage", "1", "400,000"]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    whole = {
        "pid": 7,
        "role": "client",
        "transport": "shm",
        "peer": "unix:",
        "total": 2,
        "thresholds": {"eager_bytes": [8192, "table"]},
        "steps": {"sent": {"MESSAGE": [2, 30]}, "received": {}},
        "events": [[1, "sent", "MESSAGE", 1, 2, 3, 15, 0]],
    }
    (tmp_path / "7.jsonl").write_text(json.dumps(whole) + '\n{"pid": 7, "ro')
    (found,) = trace.read(str(tmp_path))
    assert found.count("MESSAGE", "sent") == 2
    assert found.events[0] == trace.Event(1, "sent", "MESSAGE", 1, 2, 3, 15, 0)
    assert found.pid == 7
    assert found.thresholds == {"eager_bytes": (8192, "table")}
    # Names of peers are bytes, and lines end where the file says so.
    whole["peer"] = "unix:/\u2028\u00fc"
    line = json.dumps(whole, ensure_ascii=False).encode()
    (tmp_path / "8.jsonl").write_bytes(line + b"\n" + line[: line.index(b"\xc3") + 1])
    assert [each.peer for each in trace.read(tmp_path)] == ["unix:", whole["peer"]]
    with pytest.raises(FileNotFoundError):
        trace.read(tmp_path / "none")
