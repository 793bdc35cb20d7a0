# SPDX-License-Identifier: Apache-2.0
"""``tensorwire doctor``: what this host has, what a peer would get, and what mends the rest."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tensorwire.observe.host import UNLIMITED, Facts, facts
from tensorwire.terminal import show

if TYPE_CHECKING:
    import grpc
    from rich.console import Console

    from tensorwire.rpc.choice import Transport

OVERFLOW_UID = 65534
LINK_FILES = 8
"""File descriptors that a link may need; a host should afford a thousand links."""
GOOD_NOFILE = 1000 * LINK_FILES
GOOD_TCP_BUFFER = 4 << 20
MEMLOCK = (
    "ulimit -l unlimited  # a service: LimitMEMLOCK=infinity; a container: --ulimit memlock=-1"
)
PINGS = 20
TRANSFERS = (1 << 20, 64 << 20)
TRANSFER_ROUNDS = 5


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    verdict: ``ok``, ``warn`` (works, but slower or with less room) or ``fail`` (a transport cannot
        work, or a setting is wrong). meaning: why it matters. mend: the command that mends it;
        empty when all is well.
    """

    subject: str
    value: str
    verdict: str
    meaning: str
    mend: str = ""


@dataclass(frozen=True)
class Transfer:
    """A request of ``nbytes`` with an empty reply: median seconds, and GB of 10^9 bytes."""

    nbytes: int
    seconds: float
    gb_per_s: float


@dataclass(frozen=True)
class PeerReport:
    """What calls to one peer get.

    transport, peer, reasons: of ``channel.path()``. error: why there was no answer, else empty.
    ping_us: median time of an empty call. note: why there are no transfers. crowded: of
        ``channel.path()``, after them. thresholds: of ``channel.path()``.
    """

    target: str
    transport: str = ""
    peer: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    error: str = ""
    ping_us: float | None = None
    transfers: tuple[Transfer, ...] = ()
    note: str = ""
    crowded: str = ""
    thresholds: Mapping[str, tuple[int, str]] = field(default_factory=dict)


def examine(found: Facts, buffer_bytes: int) -> list[Finding]:
    """Judges a host. buffer_bytes: the arena's size by the settings."""
    return [
        Finding("kernel", f"{found.kernel} {found.machine}", "ok", ""),
        _cpus(found),
        *(Finding(**check) for check in found.checks),
        _user(found),
        _page_scan(found),
        _memory(found, buffer_bytes),
        _runtime_folder(found),
        Finding(
            "/dev/shm",
            size(found.dev_shm),
            "ok",
            "not used: shared memory is anonymous, so the size of this file system limits nothing",
        ),
        _huge_pages(found),
        _files(found),
        _buffers(found),
        _congestion(found),
        _locked_memory(found, buffer_bytes),
    ]


def _cpus(found: Facts) -> Finding:
    if found.cpus > 1:
        return Finding("CPUs", str(found.cpus), "ok", "")
    meaning = "waiting threads do not spin on one CPU: a small call costs a wake-up at each end"
    return Finding("CPUs", "1", "warn", meaning, "taskset -acp 0-1 $PID  # or give it more CPUs")


def _user(found: Facts) -> Finding:
    if found.uid != OVERFLOW_UID:
        meaning = f"peers of the same user on this host get {_local(found)}"
        return Finding("user", str(found.uid), "ok", meaning)
    meaning = (
        f"{_local(found)} cannot work: this is what every unmapped user looks like in a user "
        "namespace"
    )
    mend = "docker run --user 1000  # or any user id that the namespace maps"
    return Finding("user", str(found.uid), "fail", meaning, mend)


def _local(found: Facts) -> str:
    return " or ".join(found.local)


def _page_scan(found: Facts) -> Finding:
    if found.pagemap_scan:
        return Finding("PAGEMAP_SCAN", "yes", "ok", "finds pages that a receiver has written to")
    meaning = "giving back received memory takes longer: 8 bytes are read for each page of it"
    mend = "uname -r  # Linux 6.7 or newer has it"
    return Finding("PAGEMAP_SCAN", "no", "warn", meaning, mend)


def _memory(found: Facts, buffer_bytes: int) -> Finding:
    limits = [limit for limit in (found.memory_free, found.memory_limit) if limit != UNLIMITED]
    room = min(limits, default=UNLIMITED)
    value = f"{size(room)} for an arena of up to {size(buffer_bytes)}"
    if room == UNLIMITED or buffer_bytes <= room // 2:
        return Finding("memory", value, "ok", "")
    meaning = "the arena may grow to more than half of what is free"
    return Finding(
        "memory", value, "warn", meaning, f"export TENSORWIRE_BUFFER_BYTES={size(room // 4)}"
    )


def _runtime_folder(found: Facts) -> Finding:
    value = found.runtime_folder
    if found.runtime_folder_writable:
        meaning = (
            f"containers that share it, and a user, get {_local(found)} (TENSORWIRE_RUNTIME_DIR)"
        )
        return Finding("folder for sockets", value, "ok", meaning)
    meaning = f"a server cannot offer {_local(found)}: it makes its socket there"
    mend = (
        "export TENSORWIRE_RUNTIME_DIR=$(mktemp -d)  # containers: "
        "-v tw:/run/tw -e TENSORWIRE_RUNTIME_DIR=/run/tw, with the same --user"
    )
    return Finding("folder for sockets", value, "fail", meaning, mend)


def _huge_pages(found: Facts) -> Finding:
    value = found.shared_huge_pages or "unknown"
    if value not in ("never", "deny"):
        return Finding("huge pages for shared memory", value, "ok", "")
    meaning = "shared memory that is used for the first time takes several times longer"
    mend = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled  # as root"
    return Finding("huge pages for shared memory", value, "warn", meaning, mend)


def _files(found: Facts) -> Finding:
    value = "unlimited" if found.nofile == UNLIMITED else str(found.nofile)
    if found.nofile == UNLIMITED or found.nofile >= GOOD_NOFILE:
        return Finding("open files", value, "ok", "")
    meaning = f"room for about {found.nofile // LINK_FILES} links"
    return Finding("open files", value, "warn", meaning, "ulimit -n $(ulimit -Hn)")


def _buffers(found: Facts) -> Finding:
    value = f"receive {size(found.tcp_receive)}, send {size(found.tcp_send)}"
    if min(found.tcp_receive, found.tcp_send) >= GOOD_TCP_BUFFER:
        return Finding("TCP buffers, at most", value, "ok", "")
    meaning = "too small for one connection to fill a fast or long network"
    mend = (
        "sysctl -w net.ipv4.tcp_rmem='4096 131072 33554432' net.ipv4.tcp_wmem='4096 16384 33554432'"
    )
    return Finding("TCP buffers, at most", value, "warn", meaning, mend)


def _congestion(found: Facts) -> Finding:
    value = f"{found.congestion_same_host} within the host, {found.congestion} elsewhere"
    asked = found.congestion_asked
    if asked not in ("auto", "system", found.congestion_same_host):
        meaning = f"the kernel refuses {asked}, which TENSORWIRE_TCP_CONGESTION names"
        mend = (
            f"modprobe tcp_{asked}; sysctl net.ipv4.tcp_available_congestion_control "
            "net.ipv4.tcp_allowed_congestion_control"
        )
        return Finding("TCP congestion control", value, "warn", meaning, mend)
    if found.congestion_same_host != "bbr":
        return Finding("TCP congestion control", value, "ok", "")
    meaning = "paces links within the host to about a third of what they can carry"
    mend = (
        "modprobe tcp_cubic; sysctl -w net.ipv4.tcp_allowed_congestion_control="
        f"'cubic reno {found.congestion}'"
    )
    return Finding("TCP congestion control", value, "warn", meaning, mend)


def _locked_memory(found: Facts, buffer_bytes: int) -> Finding:
    value = "unlimited" if found.memlock == UNLIMITED else size(found.memlock)
    if not found.rdma:
        return Finding("locked memory", value, "ok", "only RDMA locks memory; no device is here")
    devices = ", ".join(found.rdma)
    if found.memlock == UNLIMITED or found.memlock >= buffer_bytes:
        return Finding("locked memory", value, "ok", f"enough for RDMA by {devices}")
    meaning = f"RDMA by {devices} locks the arena of {size(buffer_bytes)}"
    return Finding("locked memory", value, "warn", meaning, MEMLOCK)


def size(nbytes: int) -> str:
    """With the largest unit that keeps it at 1 or more, as the settings are written."""
    if nbytes == UNLIMITED:
        return "unlimited"
    for unit, shift in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if nbytes >> shift:
            return f"{nbytes >> shift}{unit}"
    return str(nbytes)


PACKAGES = (
    *("tensorwire", "numpy", "grpcio", "grpcio-health-checking", "msgspec", "protobuf"),
    *("ml_dtypes", "tensorflow", "tensorflow-cpu", "torch", "jax", "rich", "typer"),
)


def versions() -> dict[str, str]:
    """Of Python, the C library, the wire format, and what is installed of the packages that
    matter."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from tensorwire import _core

    name, number = platform.libc_ver()
    found = {"Python": platform.python_version(), name or "libc": number or "unknown"}
    with suppress(_core.StatusError):  # without a runtime, where a setting is wrong
        found["wire format"] = str(_core.parse_hello(_core.hello()).version)
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def examine_host() -> tuple[list[Finding], dict[str, Any]]:
    """The findings about this host, and the settings in force."""
    from tensorwire import environment

    here = ", ".join(f"{name} {number}" for name, number in versions().items())
    found = [Finding("versions", here, "ok", "")]
    try:
        settings = environment.settings()
        environment.data_hosts()
    except environment.SettingError as error:
        name = str(error).partition("=")[0]
        wrong = Finding("settings", name, "fail", str(error), f"unset {name}  # or correct it")
        return [*found, wrong, *_unknown_settings()], {}
    found += [*examine(facts(), int(settings["buffer_bytes"])), _permitted(), *_link_tuning()]
    return [*found, *_unknown_settings()], dict(settings)


def _unknown_settings() -> list[Finding]:
    from tensorwire.environment import unknown

    return [
        Finding(
            "environment",
            name,
            "warn",
            "no setting has this name: it has no effect",
            f"unset {name}" + (f"  # {near} is a setting" if near else ""),
        )
        for name, near in unknown(os.environ).items()
    ]


def _link_tuning() -> list[Finding]:
    from tensorwire import _core

    try:
        _core.link_tuning()
    except _core.StatusError as error:
        mend = "tensorwire tune links  # or correct the table"
        return [Finding("thresholds of links", "by default", "warn", error.details, mend)]
    return []


def _permitted() -> Finding:
    from tensorwire.rpc.choice import policy

    try:
        chosen = policy(None, ())
    except ValueError as error:
        mend = "unset TENSORWIRE_TRANSPORT TENSORWIRE_FORBID  # or correct them"
        return Finding("transports", "none", "fail", str(error), mend)
    permitted = (*chosen.data_plane, *(["grpc"] if chosen.permits("grpc") else []))
    meaning = "what calls may take, unless a channel or server says otherwise"
    return Finding("transports", ", ".join(permitted), "ok", meaning)


def examine_peer(
    target: str, transport: Transport | None = None, timeout: float = 5.0
) -> PeerReport:
    """Calls ``target`` (as for ``insecure_channel``) and times it.

    A peer that cannot be reached, or may not be by the settings, is a report, too, not an
    exception. timeout: seconds that one call may take.
    """
    import numpy as np

    import tensorwire

    try:
        opened = tensorwire.insecure_channel(target, transport=transport)
    except ValueError as error:
        return PeerReport(target, error=f"not called: {error}")
    with opened as channel:
        take = Take(channel, timeout)
        try:
            take.seconds(b"")
            path = channel.path()
            report = PeerReport(
                target,
                path.transport,
                path.peer,
                dict(path.reasons),
                thresholds=dict(path.thresholds),
            )
            pings = [take.seconds(b"") for _ in range(PINGS)]
            report = replace(report, ping_us=statistics.median(pings) * 1e6)
            for nbytes in TRANSFERS:
                payload = np.ones(nbytes, np.uint8)
                try:
                    take.seconds(payload)  # memory and buffers grow with the first one
                    rounds = [take.seconds(payload) for _ in range(TRANSFER_ROUNDS)]
                    why = take.refusal
                except UnreachableError as error:  # it has answered before
                    why = str(error)
                if why:
                    note = f"requests of {size(nbytes)} were not timed: {why}"
                    return replace(report, note=note)
                seconds = statistics.median(rounds)
                transfer = Transfer(nbytes, seconds, nbytes / seconds / 1e9)
                report = replace(report, transfers=(*report.transfers, transfer))
            return replace(report, crowded=channel.path().crowded)
        except UnreachableError as error:
            path = channel.path()
            return PeerReport(target, reasons=dict(path.reasons), error=str(error))


class UnreachableError(Exception):
    """The peer did not answer; the text says why."""


class Take:
    """Times calls to the probe of a server. A server that has none, or does not let this client
    use it, refuses quickly: as good a ping, but no transfer."""

    def __init__(self, channel: grpc.Channel, timeout: float) -> None:
        from tensorwire.rpc import probe

        self.method: grpc.UnaryUnaryMultiCallable[Any, bytes] = channel.unary_unary(probe.METHOD)
        self.timeout = timeout
        self.refusal = ""

    def seconds(self, payload: Any) -> float:
        import grpc

        before = time.perf_counter()
        try:
            self.method(payload, timeout=self.timeout)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise UnreachableError(f"{code.name}: {details}") from None
            self.refusal = f"{code.name}: {details}" if details else code.name
        return time.perf_counter() - before


STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """A table; below it the commands that mend what is not ok."""
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", box=None, padding=(0, 1))
    for heading in ("", "this host", "", ""):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        verdict = Text(finding.verdict, STYLES[finding.verdict])
        table.add_row(verdict, finding.subject, finding.value, finding.meaning)
    show(console, table)
    for finding in findings:
        if finding.mend:  # in one line, which can be copied
            mend = f"{finding.subject}: {finding.mend}"
            console.print(mend, markup=False, highlight=False, soft_wrap=True)


def print_report(
    findings: Sequence[Finding], peer: PeerReport | None, environment: Mapping[str, str]
) -> None:
    """All of it as Markdown, for a bug report. environment: the settings that are set."""
    from rich.console import Console

    console = Console(width=100, force_terminal=False, no_color=True)
    console.print("```text")
    print_findings(findings, console)
    if peer is not None:
        print_peer(peer, console)
    for name, value in sorted(environment.items()):
        console.print(f"{name}={value}", markup=False, highlight=False, soft_wrap=True)
    console.print("```")


def print_peer(report: PeerReport, console: Console) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    line("")
    if report.error:
        line(f"{report.target}: no answer: {report.error}")
    else:
        line(f"{report.target}: calls go by {report.transport} to {report.peer}")
    together: dict[str, list[str]] = {}
    for name, why in report.reasons.items():
        together.setdefault(why, []).append(name)
    for why, names in together.items():
        line(f"  not {', '.join(names)}: {why}")
    if report.crowded:
        line(f"  crowded: {report.crowded}")
    for name, (nbytes, who) in report.thresholds.items():
        line(f"  {name}: {size(nbytes)} by {who}")
    if report.ping_us is not None:
        line(f"  an empty call: {report.ping_us:.0f} us")
    for transfer in report.transfers:
        line(
            f"  a request of {size(transfer.nbytes)}: {transfer.seconds * 1e3:.2f} ms, "
            f"{transfer.gb_per_s:.2f} GB/s"
        )
    if report.note:
        line(f"  {report.note}")
