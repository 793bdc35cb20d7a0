# SPDX-License-Identifier: Apache-2.0
"""Items that a client has, and gives back: after Ctrl-C, and where some of them are damaged."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from tests.queue.conftest import LIMIT, until

import tensorwire
from tensorwire import queue
from tensorwire.queue import wire
from tensorwire.queue.conversation import Conversation


def test_ctrl_c_once_a_question_has_left_leaves_it_open(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the same question goes twice, and the server waits with the second one at the end."""
    served = serve()
    client = served.connect()
    served.own.put(1)
    assert client.get(LIMIT) == 1
    talk = client._consuming._talk
    send = talk.send

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(talk, "send", send)
        send(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(talk, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.get(LIMIT)
    served.own.put(2)
    assert client.get(LIMIT) == 2
    client.close()
    until(lambda: served.own.stats().consumers == 0)
    stats = served.own.stats()
    assert (stats.delivered, stats.lost) == (2, 0)


@pytest.mark.parametrize("left", [True, False], ids=["it has left", "it has not"])
def test_ctrl_c_while_more_is_asked_for_loses_no_item(
    serve: Any, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    served = serve()
    for item in (1, 2, 3):
        served.own.put(item)
    client = served.connect(prefetch=3)
    send = Conversation.send
    questions: list[None] = []

    def interrupted(*arguments: Any) -> None:
        questions.append(None)
        if len(questions) != 2 or left:
            send(*arguments)
        if len(questions) == 2:  # by who has an item, and asks for the next ones
            raise KeyboardInterrupt

    monkeypatch.setattr(Conversation, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.get(LIMIT)
    for item in (4, 5):
        served.own.put(item)
    assert [client.get(LIMIT) for _ in range(5)] == [1, 2, 3, 4, 5]
    client.close()
    until(lambda: served.own.stats().consumers == 0)
    stats = served.own.stats()
    assert (stats.delivered, stats.lost, stats.items) == (5, 0, 0)


def test_a_damaged_item_ends_nothing(serve: Any) -> None:
    served = serve()
    with tensorwire.insecure_channel(served.target) as channel:
        peer = channel.peer()
        assert peer
        call = peer.duplex(f"/tensorwire.queue.{served.name}/Put")
        call.send([wire.encode(wire.Put((1,), 0, False)), b"no tensors"], LIMIT, deque())
        with pytest.raises(ValueError, match="tensor message"):
            served.own.get(LIMIT)
        served.own.put(1)
        assert served.own.get(LIMIT) == 1


@pytest.mark.parametrize("own", [True, False], ids=["own", "client"])
def test_a_damaged_item_takes_no_other_of_its_batch_with_it(serve: Any, own: bool) -> None:
    served = serve()
    with tensorwire.insecure_channel(served.target) as channel, served.connect() as client:
        end = served.own if own else client
        peer = channel.peer()
        assert peer
        call = peer.duplex(f"/tensorwire.queue.{served.name}/Put")
        served.own.put(1)
        call.send([wire.encode(wire.Put((1,), 0, False)), b"no tensors"], LIMIT, deque())
        until(lambda: served.own.stats().items == 2)
        served.own.put_batch([3, 4])
        assert end.get_batch(4, LIMIT) == [1]
        with pytest.raises(ValueError, match="tensor message"):
            end.get_batch(4, LIMIT)
        assert end.get_batch(4, LIMIT) == [3, 4]
    until(lambda: served.own.stats().delivered == 4)
    assert served.own.stats().handed == 0


def put_back(
    client: Any, most: int, pool: ThreadPoolExecutor, failure: type[BaseException], first: object
) -> list[Any]:
    """What a ``get_batch`` gives that fails at an item, while another thread takes the next one."""
    decoded = client._decoded
    got = []

    def fails(item: Any) -> Any:
        found = decoded(item)
        if found == first:
            client._decoded = decoded
            got.append(pool.submit(client.get, LIMIT).result(LIMIT))
            raise failure
        return found

    client._decoded = fails
    with suppress(failure):
        got += client.get_batch(most, LIMIT)
    assert client._decoded is decoded
    return got


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_items_put_back_behind_another_thread_s_are_taken_once(
    serve: Any, pool: ThreadPoolExecutor, failure: type[BaseException], prefetch: int
) -> None:
    served = serve(capacity=20)
    served.own.put_batch(range(1, 8))
    client = served.connect(prefetch=prefetch)
    got = put_back(client, 3, pool, failure, 2)
    assert got == ([4, 1] if failure is ValueError else [4])
    while sorted(got) != [1, 2, 3, 4]:
        got += client.get_batch(4 - len(got), LIMIT)
    client.close()
    until(lambda: served.own.stats().consumers == 0)
    stats = served.own.stats()
    assert (stats.delivered, stats.lost, stats.items) == (4, 0, 3)
    assert served.own.get_batch(10, LIMIT) == [5, 6, 7]


def test_items_put_back_twice_bring_no_other_thread_s_back(
    serve: Any, pool: ThreadPoolExecutor
) -> None:
    """The server hears a number only: what it counts may still be here, but is never doubled."""
    served = serve()
    served.own.put_batch(range(1, 5))
    client = served.connect()
    assert put_back(client, 2, pool, KeyboardInterrupt, 2) == [3]

    def interrupted(item: Any) -> Any:
        raise KeyboardInterrupt

    client._decoded = interrupted
    with pytest.raises(KeyboardInterrupt):
        client.get_batch(2, LIMIT)
    client.close()
    until(lambda: served.own.stats().consumers == 0)
    assert served.own.get_batch(4, LIMIT) == [4]


@pytest.mark.parametrize("end", ["put", "get"])
def test_ctrl_c_stays_one_though_nothing_can_be_taken_back(
    serve: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    served = serve(capacity=1)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    def lost(*_: object, **__: object) -> bytes:
        raise queue.ServerLostError("lost")

    with served.connect() as client:
        client.put(1)
        assert client.get(LIMIT) == 1
        client.put(2)
        client.flush(LIMIT)
        if end == "get":
            assert served.own.get(LIMIT) == 2
        used: Any = client._producing if end == "put" else client._consuming
        with monkeypatch.context() as patch:
            patch.setattr(used._talk, "until", interrupted)
            patch.setattr(client, "_take_back", lost)
            with pytest.raises(KeyboardInterrupt):
                client.put(3) if end == "put" else client.get()
        if end == "put":
            assert served.own.get(LIMIT) == 2
