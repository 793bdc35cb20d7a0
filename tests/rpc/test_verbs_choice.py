# SPDX-License-Identifier: Apache-2.0
"""RDMA as a way for calls: who offers it, who takes it, what is said where it is missing, and what
becomes of a channel whose links by it fail. No device is needed: links by ``verbs`` are links by
tcp under another name here."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from tests.rpc import channels
from tests.rpc.channels import WhyNot, all_work, having
from tests.rpc.pairings import Local, local
from tests.rpc.service import LIMIT_SECONDS, path
from tests.rpc.test_listeners import ANYWHERE, HERE, Core

import tensorwire
from tensorwire import _core, transports
from tensorwire.rpc import bootstrap, choice, registry

LOCAL = "shm:/tmp/x/data"
ENOUGH = 2  # links in a row that die young, before the transport is passed over
NONE_HERE = "the adapter is in the drawer"
without_device = pytest.mark.skipif(
    transports.why_not("verbs") is None, reason="this host has a device"
)


def echo(channel: Any) -> Any:
    return channel.unary_unary(path("echo"))(b"x", timeout=20)


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < limit


# -------------------------------------------------------------------------- hosts without devices


@without_device
def test_auto_goes_on_without_a_device() -> None:
    with (
        local("tensorwire") as server,
        tensorwire.insecure_channel(server.target, forbid=["shm"]) as channel,
    ):
        assert echo(channel) == b"x"
        assert channel.path().transport == "tcp"
        assert channel.path().reasons["verbs"] == transports.why_not("verbs")


@without_device
def test_a_client_that_requires_it_hears_why_not() -> None:
    with (
        local("tensorwire") as server,
        tensorwire.insecure_channel(server.target, transport="verbs") as channel,
    ):
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as caught:
                echo(channel)
            error: Any = caught.value
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert f"verbs: {transports.why_not('verbs')}" in error.details()
        assert channel.path().transport == "none"
        assert server.server.paths() == []


@without_device
def test_a_server_that_requires_it_does_not_start() -> None:
    server = tensorwire.server(None, transport="verbs")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="cannot offer verbs: ") as caught:
        server.add_insecure_port("127.0.0.1:0")
    assert str(caught.value).endswith(str(transports.why_not("verbs")))


# ------------------------------------------------------------------------------------- the offer


def listeners_of(transport: str | None, forbid: Any, why_not: WhyNot) -> bootstrap.Listeners:
    policy = dataclasses.replace(choice.policy(transport, forbid), why_not=why_not)
    return bootstrap.Listeners(Core(), policy, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("transport", "forbid", "client", "peer", "addresses"),
    [
        (None, (), HERE, "127.0.0.1", [LOCAL, "verbs:127.0.0.1:4000", "tcp:127.0.0.1:4000"]),
        (None, (), ANYWHERE, "not a number", ["verbs::4000", "tcp::4000"]),
        (None, "tcp", ANYWHERE, "::1", ["verbs:[::1]:4000"]),
        (None, "verbs", ANYWHERE, "::1", ["tcp:[::1]:4000"]),
        ("verbs", (), HERE, "127.0.0.1", ["verbs:127.0.0.1:4000"]),
        ("shm", (), HERE, "127.0.0.1", ["shm:/tmp/x/data"]),
    ],
)  # fmt: skip
def test_both_share_a_port(
    transport: str | None, forbid: Any, client: Any, peer: str, addresses: list[str]
) -> None:
    listeners = listeners_of(transport, forbid, all_work)
    listeners.listen("[::]:1")
    assert listeners.addresses(client, peer) == addresses


def test_a_server_without_a_device_does_not_offer_it() -> None:
    listeners = listeners_of(None, (), {"verbs": NONE_HERE}.get)
    listeners.listen("127.0.0.1:1")
    assert listeners.addresses(ANYWHERE, "127.0.0.1") == ["tcp:127.0.0.1:4000"]  # type: ignore[arg-type]


def test_a_client_without_a_device_does_not_try_it(server: Local) -> None:
    tried: list[str] = []

    def listed(address: str, *rest: Any) -> Any:
        tried.append(address)
        return _core.connect(address, *rest)

    without = {"verbs": NONE_HERE}.get
    with channels.channel(
        server.target, forbid=["shm"], why_not=without, connect=listed
    ) as channel:
        assert echo(channel) == b"x"
        assert channel.path().reasons == {"shm": "forbidden", "verbs": NONE_HERE}
    assert [address.partition(":")[0] for address in tried] == ["tcp"]


# ---------------------------------------------------------------------------------- links that fail


class Fabric:
    """What connects by ``verbs``: makes a link by tcp and calls it otherwise, or fails."""

    def __init__(self) -> None:
        self.links: list[Named] = []
        self.broken = ""

    def __call__(self, address: str, *rest: Any) -> Any:
        name, _, where = address.partition(":")
        if name != "verbs":
            return _core.connect(address, *rest)
        if self.broken:
            raise Unreachable(14, self.broken)
        self.links.append(Named(_core.connect(f"tcp:{where}", *rest)))
        return self.links[-1]

    def channel(self, server: Local, **options: Any) -> Any:
        given = {"forbid": ["shm"], "why_not": all_work, "connect": self, **options}
        return channels.channel(server.target, **given)


class Unreachable(_core.StatusError):
    def __init__(self, code: int, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details


class Named:
    """A link that says it goes by verbs."""

    transport = "verbs"

    def __init__(self, link: Any) -> None:
        self._link = link
        self._death = ""

    def fail(self, why: str) -> None:
        self._death = why
        self._link.close()

    @property
    def death(self) -> str:
        return self._death or str(self._link.death)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


@pytest.fixture
def server() -> Iterator[Local]:
    with local("tensorwire", prepare=having(all_work)) as server:
        yield server


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    return [text for text in found if "passed over" in text]


def test_preferred_to_tcp(server: Local, fabric: Fabric) -> None:
    with fabric.channel(server) as channel:
        assert echo(channel) == b"x"
        assert channel.path().transport == "verbs"
        assert channel.path().reasons == {"shm": "forbidden"}
        assert len(fabric.links) == 1


def test_a_link_that_dies_is_made_again(server: Local, fabric: Fabric) -> None:
    lost = registry.LOST.get().counts().get("verbs", 0)
    with fabric.channel(server) as channel:
        assert echo(channel) == b"x"
        fabric.links[0].fail("transport retry counter exceeded")
        assert echo(channel) == b"x"
        assert channel.path().transport == "verbs"
        assert len(fabric.links) == 2
        assert (channel.stats()["opened"], channel.stats()["lost"]) == (2, 1)
    assert registry.LOST.get().counts()["verbs"] == lost + 1


def test_links_that_die_young_are_passed_over_for_a_while(
    server: Local, fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tensorwire"), fabric.channel(server) as channel:
        for number in range(ENOUGH):
            assert echo(channel) == b"x"
            fabric.links[number].fail(f"fault {number}")
        for _ in range(3):
            assert echo(channel) == b"x"
        found = channel.path()
        assert found.transport == "tcp"
        assert found.reasons["verbs"].endswith("because its links fail: fault 1")
        assert len(fabric.links) == 2
        (warning,) = warnings(caplog)
        assert server.target in warning
        assert "fault 1" in warning


def test_the_channel_returns(
    server: Local, fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    """While calls go on over tcp, which lose nothing by it."""
    failed = registry.FAILED.get().counts().get("verbs", 0)
    soon = (0.2,) * 5
    with (
        caplog.at_level(logging.INFO, "tensorwire"),
        fabric.channel(server, pauses=soon) as channel,
    ):
        fabric.broken = "no route to the GID"
        assert echo(channel) == b"x"
        found = channel.path()
        assert found.transport == "tcp"
        assert "UNAVAILABLE: no route to the GID" in found.reasons["verbs"]
        until(lambda: registry.FAILED.get().counts()["verbs"] >= failed + 3)  # it goes on trying
        fabric.broken = ""
        until(lambda: echo(channel) == b"x" and channel.path().transport == "verbs")
        assert len(warnings(caplog)) == 1
        assert channel.stats()["opened"] == 2


def test_calls_under_way_end_on_the_link_before(server: Local, fabric: Fabric) -> None:
    with fabric.channel(server, pauses=(0.1,) * 5) as channel:
        fabric.broken = "not yet"
        future = channel.unary_unary(path("pass_gate")).future(b"gate")
        server.service.diary.read("gate started")
        fabric.broken = ""
        until(lambda: channel.path().transport == "verbs")
        assert not future.done()
        server.service.gates["gate"].set()
        assert future.result(LIMIT_SECONDS) == b"passed"


def test_required_it_is_never_passed_over(server: Local, fabric: Fabric) -> None:
    with fabric.channel(server, transport="verbs", forbid=()) as channel:
        for number in range(2 * ENOUGH):
            until(lambda: len(fabric.links) > number or bool(attempted(channel)))  # noqa: B023
            assert channel.path().transport in ("verbs", "none")
            fabric.links[-1].fail("fault")
        fabric.broken = "no route to the GID"
        with pytest.raises(grpc.RpcError, match=r"no route to the GID|transport='verbs'"):
            echo(channel)
        fabric.broken = ""
        until(lambda: attempted(channel) == b"x")
        assert channel.path().transport == "verbs"


def attempted(channel: Any) -> Any:
    try:
        return echo(channel)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None


def test_closing_ends_the_wait_to_return(server: Local, fabric: Fabric) -> None:
    fabric.broken = "never"
    channel = fabric.channel(server)
    assert echo(channel) == b"x"
    thread = channel._uplink._returning
    assert thread is not None
    channel.close()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()
