# SPDX-License-Identifier: Apache-2.0
"""Samples of what a measurement takes of the host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from tensorwire.bench.harness.resources import Monitor, Sample, timeline, together, traffic

TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo: 1000 1 0 0 0 0 0 0 2000 5 0 0 0 0 0 0
  eth0:30 1 0 0 0 0 0 0 4 5 0 0 0 0 0 0
"""


def test_traffic_of_all_interfaces() -> None:
    assert traffic(TABLE) == (1030, 2004)


def test_what_this_process_does_is_seen() -> None:
    with Monitor([os.getpid()], 3600) as monitor:
        before = time.process_time()
        while time.process_time() - before < 0.02:
            pass
        kept = bytearray(os.urandom(64 << 20))  # more than others give back meanwhile
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as connection,
        ):
            connection.sendall(b"x" * 1000)
    first, last = monitor.samples
    assert first.seconds < last.seconds
    assert last.cpu_seconds - first.cpu_seconds >= 0.02
    assert last.memory - first.memory > len(kept) // 2
    assert last.received - first.received >= 1000
    assert last.sent - first.sent >= 1000


def test_a_round_comes_after_the_other() -> None:
    mib = 1 << 20
    first = [Sample(0.0, 0.0, mib, 0, 0), Sample(0.5, 1.0, 2 * mib, 1_000_000, 0)]
    second = [Sample(0.1, 0.0, mib, 0, 0), Sample(2.1, 1.0, 3 * mib, 0, 8_000_000)]
    assert timeline([first, second]) == (
        [0.5, 2.6],
        {
            "CPU, cores": [2.0, 0.5],
            "memory, MiB": [2.0, 3.0],
            "received, MB/s": [2.0, 0.0],
            "sent, MB/s": [0.0, 4.0],
        },
    )


def test_samples_of_hosts_add_up() -> None:
    one = [Sample(0.0, 0.0, 1, 0, 0), Sample(0.5, 1.0, 2, 10, 20), Sample(0.7, 2.0, 3, 30, 40)]
    other = [Sample(0.1, 0.0, 10, 0, 0), Sample(0.8, 5.0, 20, 1, 2)]
    assert together([one]) == one
    assert together([one, other]) == [Sample(0.0, 0.0, 11, 0, 0), Sample(0.7, 7.0, 23, 31, 42)]


def test_there_are_samples_between(monkeypatch: pytest.MonkeyPatch) -> None:
    with Monitor([os.getpid()], 0.001) as monitor:
        while len(monitor.samples) < 4:
            time.sleep(0.001)
    assert len(monitor.samples) >= 5
    times = [sample.seconds for sample in monitor.samples]
    assert times == sorted(times)


def test_a_process_that_is_gone_is_told() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(OSError):  # noqa: PT011 what it is depends on what is looked at first
        Monitor([process.pid], 1)
