# SPDX-License-Identifier: Apache-2.0
"""Who comes to a bench from other hosts: secrets, strangers, and conversations by their names."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.bench.harness import control
from tensorwire.bench.harness.listener import Hello, Listener, StrangerError, connect

HOST, SECRET = "127.0.0.1", b"a secret of both ends"
LIMIT_SECONDS = 30.0


@pytest.fixture
def opened() -> Iterator[Listener]:
    with Listener(HOST, 0, SECRET) as opened:
        yield opened


def taken(opened: Listener, rank: int, number: int) -> control.Control:
    found = opened.take(rank, number, LIMIT_SECONDS, lambda: None)
    assert found is not None
    return found[0]


def test_conversations_are_taken_by_their_names(opened: Listener) -> None:
    second = connect(HOST, opened.port, SECRET, Hello(2, 1, {"pid": 7}))
    first = connect(HOST, opened.port, SECRET, Hello(1, 1, {}))
    for mine, other in zip(
        [taken(opened, 1, 1), taken(opened, 2, 1)], (first, second), strict=True
    ):
        mine.send({"said": True})
        assert other.receive() == {"said": True}
        mine.close()
        assert other.receive() == {}
        other.close()
    assert opened.take(1, 1, 0, lambda: None) is None, "it was taken"


def test_who_has_another_secret_does_not_come_in(opened: Listener) -> None:
    with pytest.raises(StrangerError, match="the secrets differ"):
        connect(HOST, opened.port, b"another", Hello(1, 1, {}))
    assert opened.take(1, 1, 0, lambda: None) is None


def test_who_comes_learns_that_it_is_another_listener() -> None:
    """One that lets everybody in, and does not know the secret."""
    with socket.create_server((HOST, 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(os.urandom(64))
                connection.recv(64)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StrangerError, match="another secret"):
            connect(HOST, listener.getsockname()[1], SECRET, Hello(1, 1, {}))
        thread.join(LIMIT_SECONDS)


def test_silent_strangers_keep_nobody_from_coming(opened: Listener) -> None:
    silent = [socket.create_connection((HOST, opened.port)) for _ in range(20)]
    connect(HOST, opened.port, SECRET, Hello(1, 1, {})).close()
    taken(opened, 1, 1).close()
    for stranger in silent:
        stranger.close()


@given(sent=st.binary(min_size=64, max_size=200))
def test_what_strangers_say_is_not_read_as_messages(sent: bytes) -> None:
    with Listener(HOST, 0, SECRET) as opened:
        with socket.create_connection((HOST, opened.port)) as stranger:
            stranger.settimeout(LIMIT_SECONDS)
            assert len(stranger.recv(64)) == 32
            stranger.sendall(sent)
            with suppress(ConnectionResetError):  # where it has not read all of it
                assert stranger.recv(1) == b""
        assert not opened._come


def test_what_nobody_wants_is_closed(opened: Listener) -> None:
    early = connect(HOST, opened.port, SECRET, Hello(1, 5, {}))
    connect(HOST, opened.port, SECRET, Hello(1, 6, {})).close()
    taken(opened, 1, 6).close()
    opened.forget(5)
    assert early.receive() == {}
    late = connect(HOST, opened.port, SECRET, Hello(2, 5, {}))
    assert late.receive() == {}
    for each in (early, late):
        each.close()


def test_who_waits_looks_after_others(opened: Listener) -> None:
    def check() -> None:
        raise ValueError("somebody is lost")

    with pytest.raises(ValueError, match="somebody is lost"):
        opened.take(1, 1, LIMIT_SECONDS, check)


def test_long_messages_are_refused(monkeypatch: pytest.MonkeyPatch, opened: Listener) -> None:
    monkeypatch.setattr(control, "MOST_BYTES", 100)
    other = connect(HOST, opened.port, SECRET, Hello(1, 1, {}))
    mine = taken(opened, 1, 1)
    other.send({"long": "x" * 100})
    with pytest.raises(control.AgentError, match="more than 100 bytes"):
        mine.receive()
    other.close()
    mine.close()
