# SPDX-License-Identifier: Apache-2.0
"""What a closed channel leaves to the next one: its link, for a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import grpc
import pytest
from tests.rpc.pairings import DATA_PLANE, Local, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path

from tensorwire.rpc.client import idle


def call_once(pairing: Pairing, target: str, **options: Any) -> object:
    """By a channel of its own; the counters of its link."""
    with pairing.channel(target, **options) as channel:
        assert channel.unary_unary(path("echo"))(b"x") == b"x"
        return channel.stats()["link"]


def until_links(server: Local, number: int) -> None:
    """Waits until the server has so many."""
    limit = monotonic() + LIMIT_SECONDS
    while len(server.server.paths()) != number:
        assert monotonic() < limit


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    """No link of another test, and no thread that waits for it."""
    yield
    idle.clear()


@pytest.fixture
def kept_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "KEEP_SECONDS", LIMIT_SECONDS)


@pytest.mark.usefixtures("kept_long")
@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_a_channel_for_each_call_opens_one_link(pairing: Pairing) -> None:
    with local("tensorwire") as server:
        sent = [call_once(pairing, server.target) for _ in range(3)]
        assert [link["messages_sent"] for link in sent if isinstance(link, dict)] == [1, 2, 3]
        assert len(server.server.paths()) == 1


@pytest.mark.usefixtures("kept_long")
@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_channels_with_other_options_or_at_one_time_share_none(pairing: Pairing) -> None:
    limit = [("grpc.max_receive_message_length", 1000)]
    with local("tensorwire") as server:
        call_once(pairing, server.target)
        call_once(pairing, server.target, options=limit)
        assert len(server.server.paths()) == 2
        with pairing.channel(server.target) as one, pairing.channel(server.target) as other:
            for channel in (one, other):
                assert channel.unary_unary(path("echo"))(b"x") == b"x"
            assert len(server.server.paths()) == 3


@pytest.mark.usefixtures("kept_long")
@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_closing_ends_calls_in_progress_and_their_link(pairing: Pairing) -> None:
    with local("tensorwire") as server:
        channel = pairing.channel(server.target)
        call = channel.unary_unary(path("wait")).future(b"it")
        server.service.diary.read("it started")
        assert channel.stats()["link"]["calls"] == 1
        channel.close()
        assert call.code() is grpc.StatusCode.CANCELLED
        assert server.service.diary.read("it") == "active=False"
        until_links(server, 0)


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_nobody_takes_it(pairing: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "KEEP_SECONDS", 0.01)
    with local("tensorwire") as server:
        call_once(pairing, server.target)
        until_links(server, 0)
        call_once(pairing, server.target)


@pytest.mark.usefixtures("kept_long")
@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_only_so_many_are_kept(pairing: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "MOST", 2)
    with local("tensorwire") as server:
        channels = [pairing.channel(server.target) for _ in range(4)]
        for channel in channels:
            assert channel.unary_unary(path("echo"))(b"x") == b"x"
        for channel in channels:
            channel.close()
        until_links(server, 2)


@pytest.mark.usefixtures("kept_long")
@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_a_link_that_died_is_not_taken(pairing: Pairing) -> None:
    with local("tensorwire") as server:
        call_once(pairing, server.target)
        server.server.stop(None)
        limit = monotonic() + LIMIT_SECONDS
        while any(kept.left.link.alive for kept in idle._idle.get()._kept):
            assert monotonic() < limit
        with (
            local("tensorwire", address=server.target),
            pairing.channel(server.target) as channel,
        ):
            echo = channel.unary_unary(path("echo"))
            assert echo(b"x", wait_for_ready=True, timeout=LIMIT_SECONDS) == b"x"


def threads() -> list[str]:
    """Those of channels that this process has."""
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name in ("tensorwire-open", "tensorwire-idle")]


@pytest.mark.usefixtures("kept_long")
@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_the_thread_that_opened_a_link_closes_it(pairing: Pairing) -> None:
    with local("tensorwire") as server:
        call_once(pairing, server.target)
        assert threads() == ["tensorwire-open"]
        idle.clear()
        assert threads() == []
        until_links(server, 0)


@pytest.mark.usefixtures("kept_long")
@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_that_thread_keeps_no_channel_alive(pairing: Pairing) -> None:
    with local("tensorwire") as server:
        channel = pairing.channel(server.target)
        assert channel.unary_unary(path("echo"))(b"x") == b"x"
        assert len(server.server.paths()) == 1
        del channel
        until_links(server, 0)
