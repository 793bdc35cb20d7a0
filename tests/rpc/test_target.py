# SPDX-License-Identifier: Apache-2.0
"""Targets and addresses: what they say about the machines behind them."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorwire.rpc import target
from tensorwire.rpc.target import DataAddress, Target


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("localhost:50051", Target("dns", ("localhost",))),
        ("host.example", Target("dns", ("host.example",))),
        ("dns:host:1", Target("dns", ("host",))),
        ("dns:///host:1", Target("dns", ("host",))),
        ("dns://8.8.8.8/host:1", Target("dns", ("host",))),
        ("127.0.0.1:1", Target("dns", ("127.0.0.1",))),
        ("[::1]:1", Target("dns", ("::1",))),
        ("[::]:0", Target("dns", ("::",))),
        ("::1", Target("dns", ("::1",))),
        ("ipv4:10.0.0.1:1,10.0.0.2:2", Target("ipv4", ("10.0.0.1", "10.0.0.2"))),
        ("ipv6:[::1]:1", Target("ipv6", ("::1",))),
        ("unix:/a/b", Target("unix", ())),
        ("unix:///a/b", Target("unix", ())),
        ("unix-abstract:name", Target("unix-abstract", ())),
        ("xds:///service", Target("xds", ())),
    ],
)
def test_parse(text: str, parsed: Target) -> None:
    assert target.parse(text) == parsed


@pytest.mark.parametrize("name", ["node7", "node-7.example", "10.0.0.7", "fd00::7", "[fd00::7]"])
def test_one_host(name: str) -> None:
    assert target.one_host(name) == name.strip("[]")


@pytest.mark.parametrize("name", ["", "node7:50052", "10.0.0.7:1", "0.0.0.0", "::", "[::]", "a b"])
def test_what_is_not_one_host(name: str) -> None:
    with pytest.raises(ValueError, match="host"):
        target.one_host(name)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tcp:localhost:1", DataAddress("tcp", "localhost", 1)),
        ("tcp:10.0.0.7:65535", DataAddress("tcp", "10.0.0.7", 65535)),
        ("verbs::4000", DataAddress("verbs", "", 4000)),
        ("verbs:[2001:db8::7]:4000", DataAddress("verbs", "2001:db8::7", 4000)),
        ("tcp:[::ffff:10.0.0.1]:1", DataAddress("tcp", "::ffff:10.0.0.1", 1)),
        ("tcp:[fe80::1%eth0]:1", DataAddress("tcp", "fe80::1%eth0", 1)),
    ],
)
def test_data_addresses(text: str, found: DataAddress) -> None:
    assert target.data_address(text) == found
    assert target.address(*found) == text


@pytest.mark.parametrize(
    "port", ["", "0", "01", "65536", "123456", "+1", " 1", "1\n", "x", "\uff11"]
)
def test_ports_are_digits(port: str) -> None:
    assert target.data_address(f"tcp:localhost:{port}") is None


@pytest.mark.parametrize(
    "where",
    [
        *("", "localhost", "::1:1", ":::1", "[]:1", "[::1", "[::1:1", "[localhost]:1"),
        *("[10.0.0.1]:1", "[::1%]:1", "[::1%a/b]:1", "[1::2::3]:1"),
        *("a b:1", "lo\0cal:1", "h\xf6st:1", "h" * 254 + ":1"),
    ],
)
def test_what_is_no_data_address(where: str) -> None:
    assert target.data_address("tcp:" + where) is None


@settings(max_examples=300)
@example("tcp:" + "9" * 5000)
@example("tcp::" + "9" * 5000)
@given(st.text(max_size=40) | st.from_regex(r"[a-z]{0,4}:\[?[0-9a-f:.%]{0,9}\]?:[0-9]{0,6}"))
def test_any_text_is_a_data_address_or_none(text: str) -> None:
    """And one that means what it says: written down it is the same text."""
    found = target.data_address(text)
    if found is not None:
        assert target.address(*found) == text
        assert 0 < found.port < 65536
        assert not set(found.host) & set("[]/ \0")


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(*_: object, **__: object) -> list[Any]:
        return [(None, None, None, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("addresses", "several"),
    [
        (("10.0.0.1",), False),
        (("10.0.0.1", "fd00::1"), False),  # one host, both families
        (("10.0.0.1", "10.0.0.2"), True),
        (("10.0.0.1", "fd00::1", "fd00::2"), True),
        (("127.0.0.1", "::1"), False),
        (("127.0.0.1", "127.0.1.1", "::1"), False),
        ((), False),  # gRPC tells that the name is wrong
    ],
)
def test_names_of_several_servers(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...], several: bool
) -> None:
    resolving(monkeypatch, *addresses)
    reason = target.why_not_one(target.parse("service.example:1"))
    assert (reason is not None) == several
    if reason is not None:
        assert "service.example" in reason


def test_lists_and_foreign_schemes() -> None:
    assert target.why_not_one(target.parse("unix:/a")) is None
    assert target.why_not_one(target.parse("ipv4:10.0.0.1:1,10.0.0.2:1"))
    assert target.why_not_one(target.parse("xds:///service"))


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:4242", "10.0.0.1"),
        ("ipv6:[::1]:4242", "::1"),
        ("ipv6:%5B::1%5D:4242", "::1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4242", "fe80::1"),
        ("unix:", ""),
    ],
)
def test_host_of_a_peer(peer: str, host: str) -> None:
    assert target.peer_host(peer) == host


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("fd00::1", False),
        ("host", False),
    ],
)
def test_loopback(address: str, loopback: bool) -> None:
    assert target.is_loopback(address) == loopback


def test_own_address() -> None:
    assert target.address_towards("127.0.0.1") == "127.0.0.1"
    assert target.address_towards("no number") is None


def test_addresses_of_the_data_plane() -> None:
    assert target.address("tcp", "10.0.0.1", 5) == "tcp:10.0.0.1:5"
    assert target.address("verbs", "::1", 5) == "verbs:[::1]:5"
