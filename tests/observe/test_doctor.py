# SPDX-License-Identifier: Apache-2.0
"""Judging a host and a peer."""

from __future__ import annotations

import dataclasses
import io
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from rich.console import Console
from typer.testing import CliRunner

import tensorwire
from tensorwire.cli import app
from tensorwire.observe import doctor
from tensorwire.observe.host import UNLIMITED, Facts

GOOD = Facts(
    kernel="6.18",
    machine="x86_64",
    cpus=8,
    uid=1000,
    pagemap_scan=True,
    memory_free=64 << 30,
    memory_limit=UNLIMITED,
    memlock=64 << 10,
    nofile=65536,
    tcp_receive=32 << 20,
    tcp_send=4 << 20,
    congestion="bbr",
    congestion_same_host="cubic",
    congestion_asked="auto",
    runtime_folder="/run/user/1000",
    runtime_folder_writable=True,
    dev_shm=64 << 20,
    shared_huge_pages="advise",
    rdma=(),
    local=("near",),
    checks=(),
)

CHECK = {
    "subject": "its engine",
    "value": "none",
    "verdict": "fail",
    "meaning": "near cannot work",
    "mend": "modprobe engine",
}


def judge(**changes: Any) -> list[doctor.Finding]:
    return doctor.examine(dataclasses.replace(GOOD, **changes), buffer_bytes=1 << 30)


def test_a_good_host_has_nothing_to_mend() -> None:
    assert [f for f in judge() if f.verdict != "ok" or f.mend] == []


@pytest.mark.parametrize(
    ("changes", "subject", "verdict", "command"),
    [
        ({"cpus": 1}, "CPUs", "warn", "taskset"),
        ({"checks": (CHECK,)}, "its engine", "fail", "modprobe engine"),
        ({"uid": 65534}, "user", "fail", "--user"),
        ({"pagemap_scan": False}, "PAGEMAP_SCAN", "warn", "Linux 6.7"),
        ({"shared_huge_pages": "never"}, "huge pages for shared memory", "warn", "echo advise"),
        ({"memory_free": 1 << 30}, "memory", "warn", "TENSORWIRE_BUFFER_BYTES=256M"),
        ({"memory_limit": 400 << 20}, "memory", "warn", "TENSORWIRE_BUFFER_BYTES=100M"),
        (
            {"runtime_folder_writable": False},
            "folder for sockets",
            "fail",
            "-v tw:/run/tw -e TENSORWIRE_RUNTIME_DIR=/run/tw",
        ),
        ({"nofile": 1024}, "open files", "warn", "ulimit -n"),
        ({"tcp_send": 200 << 10}, "TCP buffers, at most", "warn", "net.ipv4.tcp_wmem"),
        ({"congestion_same_host": "bbr"}, "TCP congestion control", "warn", "modprobe tcp_cubic"),
        ({"congestion_asked": "dctcp"}, "TCP congestion control", "warn", "modprobe tcp_dctcp"),
        ({"rdma": ("mlx5_0",)}, "locked memory", "warn", "ulimit -l"),
    ],
)
def test_what_is_wrong_comes_with_its_remedy(
    changes: dict[str, Any], subject: str, verdict: str, command: str
) -> None:
    (finding,) = (f for f in judge(**changes) if f.verdict != "ok")
    assert (finding.subject, finding.verdict) == (subject, verdict)
    assert command in finding.mend
    assert finding.meaning


def test_what_processes_of_a_user_share_is_called_by_its_name() -> None:
    told = {finding.subject: finding.meaning for finding in judge()}
    assert told["user"] == "peers of the same user on this host get near"
    assert "a user, get near" in told["folder for sockets"]
    told = {f.subject: f.meaning for f in judge(uid=65534, runtime_folder_writable=False)}
    assert told["user"].startswith("near cannot work")
    assert told["folder for sockets"].startswith("a server cannot offer near")


@pytest.mark.parametrize(
    "changes",
    [
        {"nofile": UNLIMITED},
        {"memlock": UNLIMITED, "rdma": ("mlx5_0",)},
        {"memory_free": UNLIMITED},
    ],
)
def test_unlimited_is_fine(changes: dict[str, Any]) -> None:
    assert {f.verdict for f in judge(**changes)} == {"ok"}


def transports() -> doctor.Finding:
    findings, _ = doctor.examine_host()
    (found,) = (finding for finding in findings if finding.subject == "transports")
    return found


def test_what_the_environment_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TENSORWIRE_TRANSPORT", "TENSORWIRE_FORBID"):
        monkeypatch.delenv(name, raising=False)
    assert transports().value == "shm, verbs, tcp, grpc"
    monkeypatch.setenv("TENSORWIRE_FORBID", "shm")
    assert transports().value == "verbs, tcp, grpc"
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "tcp")
    assert transports().value == "tcp"
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "rdma")
    wrong = transports()
    assert wrong.verdict == "fail"
    assert "TENSORWIRE_TRANSPORT=rdma" in wrong.meaning
    assert "unset" in wrong.mend


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(-1, "unlimited"), (0, "0"), (1023, "1023"), (65536, "64K"), (1 << 40, "1T")],
)
def test_sizes_are_written_as_settings_are(nbytes: int, text: str) -> None:
    assert doctor.size(nbytes) == text


def serving(server: grpc.Server) -> Iterator[str]:
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def stock() -> Iterator[str]:
    yield from serving(grpc.server(ThreadPoolExecutor(2)))


@pytest.fixture
def ours() -> Iterator[str]:
    yield from serving(tensorwire.server(ThreadPoolExecutor(2)))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_server_of_ours(ours: str, transport: Any) -> None:
    report = doctor.examine_peer(ours, transport)
    assert (report.error, report.note) == ("", "")
    assert report.transport == transport
    assert report.ping_us is not None
    assert [transfer.nbytes for transfer in report.transfers] == list(doctor.TRANSFERS)
    for transfer in report.transfers:
        assert transfer.gb_per_s == pytest.approx(transfer.nbytes / transfer.seconds / 1e9)


def test_a_large_transfer_that_takes_too_long(ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before is told."""
    seconds = doctor.Take.seconds

    def late(self: Any, payload: Any) -> float:
        if len(payload) > 2 << 20:
            raise doctor.UnreachableError("DEADLINE_EXCEEDED")
        return seconds(self, payload)

    monkeypatch.setattr(doctor.Take, "seconds", late)
    report = doctor.examine_peer(ours, "tcp")
    assert (report.error, report.transport) == ("", "tcp")
    assert report.ping_us is not None
    assert [transfer.nbytes for transfer in report.transfers] == [1 << 20]
    assert report.note == "requests of 64M were not timed: DEADLINE_EXCEEDED"


def test_a_server_of_ours_by_grpc(ours: str) -> None:
    """It accepts 4 MB a message."""
    report = doctor.examine_peer(ours, "grpc")
    assert report.transport == "grpc"
    assert [transfer.nbytes for transfer in report.transfers] == [1 << 20]
    assert report.note.startswith("requests of 64M were not timed: RESOURCE_EXHAUSTED")


def test_a_stock_server(stock: str) -> None:
    report = doctor.examine_peer(stock)
    assert report.transport == "grpc"
    assert set(report.reasons) == {"shm", "verbs", "tcp"}
    assert report.ping_us is not None
    assert report.transfers == ()
    assert "UNIMPLEMENTED" in report.note


def test_a_server_that_says_nothing_about_what_it_lacks() -> None:
    class Silent(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(self.refuse)

        def refuse(self, request: bytes, context: Any) -> bytes:
            context.set_code(grpc.StatusCode.UNIMPLEMENTED)
            return b""

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Silent()])
    for target in serving(server):
        report = doctor.examine_peer(target)
    assert report.reasons["shm"] == "the server has no data plane (UNIMPLEMENTED)"
    assert report.note == "requests of 1M were not timed: UNIMPLEMENTED"


def test_a_required_transport_that_is_missing(stock: str) -> None:
    report = doctor.examine_peer(stock, "shm")
    assert report.error.startswith("UNAVAILABLE")
    assert report.ping_us is None


def printed(findings: list[doctor.Finding], *peers: doctor.PeerReport, width: int = 200) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    doctor.print_findings(findings, console)
    for peer in peers:
        doctor.print_peer(peer, console)
    return out.getvalue()


def test_a_table_and_its_commands() -> None:
    text = printed(judge(nofile=64))
    assert "room for about 8 links" in text
    assert "open files: ulimit -n $(ulimit -Hn)" in text


@pytest.mark.parametrize("width", [60, 80, 180])
def test_a_table_in_a_pipe(width: int) -> None:
    found = judge(nofile=64, tcp_send=1)
    lines = printed(found, width=width).splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert all(len(line) <= width for line in lines if line.startswith(" "))
    # What mends is one line each, to be copied.
    assert [line for line in lines if not line.startswith(" ")] == [
        f"{finding.subject}: {finding.mend}" for finding in found if finding.mend
    ]


def test_peers_in_words() -> None:
    good = doctor.PeerReport(
        "ps0:1",
        "tcp",
        "ipv4:1.2.3.4:5",
        {"shm": "[another host]"},
        "",
        12.4,
        (doctor.Transfer(64 << 20, 0.01, 6.7),),
    )
    closed = {"shm": "closed", "verbs": "no device", "tcp": "closed"}
    lost = doctor.PeerReport("ps1:1", reasons=closed, error="UNAVAILABLE: nobody")
    text = printed([], good, lost)
    for expected in (
        "ps0:1: calls go by tcp to ipv4:1.2.3.4:5",
        "not shm: [another host]",
        "an empty call: 12 us",
        "a request of 64M: 10.00 ms, 6.70 GB/s",
        "ps1:1: no answer: UNAVAILABLE: nobody",
        "not shm, tcp: closed",
        "not verbs: no device",
    ):
        assert expected in text


def test_versions() -> None:
    found = doctor.versions()
    assert found["Python"] == platform.python_version()
    assert found["tensorwire"] == tensorwire.__version__
    assert {"numpy", "grpcio", "grpcio-health-checking", "rich", "typer"} <= set(found)
    assert int(found["wire format"]) >= 1
    assert "no-such-package" not in found


def test_a_bug_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "tcp")
    done = CliRunner().invoke(app, ["doctor", "--report"])
    assert done.exit_code == 0, done.stdout
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("```text", "```")
    assert "TENSORWIRE_TRANSPORT=tcp" in lines
    assert f"Python {platform.python_version()}" in done.stdout
    assert all(len(line) <= 100 for line in lines if line.startswith(" "))  # of the table
