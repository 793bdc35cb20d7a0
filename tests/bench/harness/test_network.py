# SPDX-License-Identifier: Apache-2.0
"""Networks of namespaces: what a link is, and real ones, where this user may make them."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.harness.network import MOST_HOSTS, Host, Link, NetworkError, hosts

LIMIT_SECONDS = 30.0

rates = st.builds("{}{}bit".format, st.integers(1, 999), st.sampled_from("kmg"))
delays = st.just("") | st.builds("{}{}".format, st.integers(0, 99), st.sampled_from(["us", "ms"]))


@given(rates, delays)
def test_a_link(rate: str, delay: str) -> None:
    link = Link.of(f" {rate.upper()},{delay} " if delay else rate)
    assert link == Link(rate, delay)
    kind, *settings = link.discipline().split()
    assert kind == ("netem" if delay else "tbf")
    assert settings[:2] == ["rate", rate]


def test_a_burst_is_a_millisecond_of_the_rate_or_some_packets() -> None:
    def burst(rate: str) -> int:
        found = re.search(r"burst (\d+)", Link(rate).discipline())
        assert found is not None
        return int(found[1])

    assert burst("10gbit") == 1_250_000
    assert burst("1.5gbit") == 187_500
    assert burst("100mbit") == burst("8kbit") == 128 << 10


@pytest.mark.parametrize(
    "text",
    ["", "10", "0gbit", "-1gbit", "10gbit,", "10gbps", "10gbit,1", "1gbit;ls"],
)
def test_what_is_no_link(text: str) -> None:
    with pytest.raises(ValueError, match="write 10gbit"):
        Link.of(text)


@pytest.mark.parametrize("count", [0, MOST_HOSTS + 1])
def test_there_are_not_so_many_hosts(count: int) -> None:
    with pytest.raises(NetworkError, match="1 to 250"), hosts(Link("1gbit"), count):
        pass


@pytest.fixture
def pair() -> list[Host]:
    """Checks that there can be a network at all."""
    try:
        with hosts(Link("1gbit"), 2) as found:
            return found
    except NetworkError as error:
        pytest.skip(str(error))


SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    print(listener.accept()[1][0], flush=True)
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)"


def run(host: Host, program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [*host.enter, sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_hosts_reach_each_other_by_their_links(pair: list[Host]) -> None:
    with hosts(Link("1gbit"), 2) as (one, other):
        assert one.address != other.address
        with run(one, SERVE, one.address) as server:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            with run(other, CONNECT, one.address, port) as client:
                assert client.wait(LIMIT_SECONDS) == 0
            assert server.stdout.readline().strip() == other.address
            assert server.wait(LIMIT_SECONDS) == 0
        told = subprocess.run(
            [*one.enter, "tc", "qdisc", "show", "dev", "eth0"], capture_output=True, check=True
        )
        assert b"tbf" in told.stdout
        assert b"rate 1Gbit" in told.stdout


MAKER = """
import sys
from tensorwire.bench.harness.network import Link, hosts
with hosts(Link("1gbit"), 1) as (host,):
    print(host.enter[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_network_ends_with_who_made_it(pair: list[Host], end: signal.Signals) -> None:
    command = [sys.executable, "-c", MAKER]
    with subprocess.Popen(command, stdin=-1, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        found = re.search(r"/proc/(\d+)/", maker.stdout.readline())
        assert found is not None
        keeper = os.pidfd_open(int(found[1]))
        maker.send_signal(end)
        ended, _, _ = select.select([keeper], [], [], LIMIT_SECONDS)
        os.close(keeper)
    assert ended, "the namespace is kept"
