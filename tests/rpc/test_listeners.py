# SPDX-License-Identifier: Apache-2.0
"""Where the data plane of a server listens, and what clients of which host hear of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tensorwire import _core
from tensorwire.rpc import bootstrap, choice


class Facts(NamedTuple):
    same_host: bool
    same_user: bool


class Core:
    """A native server that only says where it listens."""

    def listen_local(self) -> str:
        return "/tmp/x/data"

    def listen_tcp(self, host: str, port: int) -> int:
        return 4000


ANYWHERE = Facts(False, True)
HERE = Facts(True, True)


@pytest.mark.parametrize(
    ("bound", "client", "peer", "addresses"),
    [
        ("127.0.0.1:1", HERE, "127.0.0.1", ["shm:/tmp/x/data", "tcp:127.0.0.1:4000"]),
        ("127.0.0.1:1", Facts(True, False), "127.0.0.1", ["tcp:127.0.0.1:4000"]),
        ("127.0.0.1:1", ANYWHERE, "10.9.9.9", []),
        ("10.0.0.7:1", ANYWHERE, "10.9.9.9", ["tcp:10.0.0.7:4000"]),
        ("10.0.0.7:1", HERE, "10.0.0.7", ["shm:/tmp/x/data", "tcp:10.0.0.7:4000"]),
        ("0.0.0.0:1", ANYWHERE, "127.0.0.1", ["tcp:127.0.0.1:4000"]),
        ("[::]:1", ANYWHERE, "127.0.0.1", ["tcp:127.0.0.1:4000"]),
        ("[::]:1", ANYWHERE, "::1", ["tcp:[::1]:4000"]),
        ("[::]:1", ANYWHERE, "not a number", ["tcp::4000"]),
        ("unix:/a", HERE, "", ["shm:/tmp/x/data"]),
    ],
)
def test_addresses(bound: str, client: Any, peer: str, addresses: list[str]) -> None:
    listeners = bootstrap.Listeners(Core(), choice.policy(None, ["verbs"]), 0)  # type: ignore[arg-type]
    listeners.listen(bound)
    assert listeners.addresses(client, peer) == addresses


@pytest.mark.parametrize(
    ("bound", "client", "peer", "addresses"),
    [
        ("127.0.0.1:1", ANYWHERE, "10.9.9.9", []),
        ("10.0.0.7:1", ANYWHERE, "10.9.9.9", ["tcp:node7:4000"]),
        ("0.0.0.0:1", ANYWHERE, "10.9.9.9", ["tcp:node7:4000"]),
        ("0.0.0.0:1", HERE, "10.9.9.9", ["shm:/tmp/x/data", "tcp:node7:4000"]),
        ("0.0.0.0:1", ANYWHERE, "127.0.0.1", ["tcp:127.0.0.1:4000", "tcp:node7:4000"]),
    ],
)
def test_advertised_host(bound: str, client: Any, peer: str, addresses: list[str]) -> None:
    listeners = bootstrap.Listeners(
        Core(),  # type: ignore[arg-type]
        choice.policy(None, ["verbs"]),
        0,
        "node7",
    )
    listeners.listen(bound)
    assert listeners.addresses(client, peer) == addresses


@pytest.mark.parametrize(("transport", "data_port"), [("tcp", 0), (None, 4000)])
def test_unix_server_opens_a_port_that_is_asked_for(transport: str | None, data_port: int) -> None:
    listeners = bootstrap.Listeners(
        Core(),  # type: ignore[arg-type]
        choice.policy(transport, ["verbs"]),
        data_port,
    )
    listeners.listen("unix:/a")
    assert "tcp:127.0.0.1:4000" in listeners.addresses(HERE, "")  # type: ignore[arg-type]


def test_wildcard_names_the_dialled_host_and_the_interface() -> None:
    listeners = bootstrap.Listeners(Core(), choice.policy("tcp", ()), 0)  # type: ignore[arg-type]
    listeners.listen("0.0.0.0:1")
    dialled, *interfaces = listeners.addresses(ANYWHERE, "192.0.2.1")  # type: ignore[arg-type]
    assert dialled == "tcp::4000"
    for interface in interfaces:  # none on a machine without any route
        assert interface.startswith("tcp:")
        assert interface.endswith(":4000")


class BrokenCore:
    """A native server that cannot listen anywhere."""

    def listen_local(self) -> str:
        _core.parse_hello(b"")  # any error of the runtime
        raise AssertionError

    def listen_tcp(self, host: str, port: int) -> int:
        _core.parse_hello(b"")
        raise AssertionError


def test_server_that_cannot_listen_goes_without(caplog: pytest.LogCaptureFixture) -> None:
    listeners = bootstrap.Listeners(BrokenCore(), choice.policy(None, ()), 0)  # type: ignore[arg-type]
    listeners.listen("127.0.0.1:1")
    assert listeners.addresses(HERE, "127.0.0.1") == []  # type: ignore[arg-type]
    assert len(caplog.records) == 2
    assert "clients are not offered " in caplog.text
    assert "tcp there" in caplog.text


@pytest.mark.parametrize(("transport", "data_port"), [("shm", 0), ("tcp", 0), (None, 4000)])
def test_server_that_cannot_listen_where_it_has_to(transport: str | None, data_port: int) -> None:
    listeners = bootstrap.Listeners(
        BrokenCore(),  # type: ignore[arg-type]
        choice.policy(transport, ()),
        data_port,
    )
    with pytest.raises(RuntimeError, match="cannot listen at"):
        listeners.listen("127.0.0.1:1")
