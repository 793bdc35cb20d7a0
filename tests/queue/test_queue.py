# SPDX-License-Identifier: Apache-2.0
"""Queues by threads of one process, over a link and without one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from tests.queue.conftest import LIMIT, Served, until

import tensorwire
from tensorwire import queue
from tensorwire.queue import items, wire
from tensorwire.queue.serving import STREAMS_OF_A_PEER

End = Any  # Queue and QueueClient have the same methods


@pytest.fixture(params=["served", "connected"])
def ends(request: pytest.FixtureRequest, serve: Any) -> Iterator[Callable[..., tuple[Served, End]]]:
    """A queue, and an end of it to be tested: the queue's own or a client's."""
    clients = []

    def made(*arguments: Any, **options: Any) -> tuple[Served, End]:
        served: Served = serve(*arguments, **options)
        if request.param == "served":
            return served, served.own
        clients.append(served.connect())
        return served, clients[-1]

    yield made
    for client in clients:
        with suppress(queue.QueueError):
            client.close(drain=False)


def settle(end: End) -> None:
    if isinstance(end, queue.QueueClient):
        end.flush(LIMIT)


def test_objects_come_out_in_order(ends: Any) -> None:
    _, end = ends(capacity=100)
    objects = [{"a": np.arange(n), "b": [n, (n, str(n), b"x")]} for n in range(20)]
    for obj in objects:
        end.put(obj)
    for n in range(20):
        found = end.get(LIMIT)
        assert found["a"].tolist() == list(range(n))
        assert not found["a"].flags.writeable
        assert found["b"] == objects[n]["b"]
    settle(end)


def test_large_arrays_come_out_as_they_went_in(ends: Any) -> None:
    _, end = ends()
    array = np.random.default_rng(1).integers(0, 255, 3 << 20).astype(np.uint8)
    end.put(array)
    before = array.copy()
    array[:] = 0
    assert np.array_equal(end.get(LIMIT), before)


def test_small_arrays_of_a_burst_may_be_changed_afterwards(ends: Any) -> None:
    _, end = ends(capacity=300)
    array = np.zeros(100)
    for n in range(300):
        array[:] = n
        end.put({"a": array} if n % 3 == 0 else array)
    settle(end)
    for n in range(300):
        found = end.get(LIMIT)
        assert (found["a"] if n % 3 == 0 else found).tolist() == [n] * 100


def test_a_batch(ends: Any) -> None:
    _, end = ends(capacity=1000)
    end.put_batch(range(300))
    settle(end)
    found = end.get_batch(1000, LIMIT)
    while len(found) < 300:
        found += end.get_batch(1000, LIMIT)
    assert found == list(range(300))
    with pytest.raises(ValueError, match="at least one item"):
        end.get_batch(0)


@pytest.mark.parametrize("most", [64 / 2, float("nan"), True, "3", None])
def test_a_batch_of_no_whole_number_harms_nobody(ends: Any, most: Any) -> None:
    served, end = ends()
    with pytest.raises(TypeError, match="whole number"):
        end.get_batch(most, 0)
    served.own.put(1)
    assert end.get_batch(np.int64(3), LIMIT) == [1]
    assert served.own.stats().waiting_consumers == 0


def test_a_full_queue(ends: Any) -> None:
    served, end = ends(capacity=2)
    end.put(1)
    end.put(2)
    settle(end)  # what the server has not settled yet has a client refuse by itself
    for timeout in (0, 0.02):
        with pytest.raises(queue.FullError, match="no room within") as caught:
            end.put(3, timeout)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert isinstance(caught.value, TimeoutError)
    assert served.own.stats().refused == 2
    assert [end.get(LIMIT), end.get(LIMIT)] == [1, 2]
    end.put(4, 0)
    assert end.get(0) == 4


def test_a_batch_of_which_the_queue_takes_a_part(ends: Any) -> None:
    served, end = ends(capacity=3)
    with pytest.raises(queue.FullError) as caught:
        end.put_batch(range(5), 0.02)
    assert caught.value.accepted == 3
    assert served.own.get_batch(5, LIMIT) == [0, 1, 2]


def test_bytes_are_bounded_too(ends: Any) -> None:
    served, end = ends(capacity=100, capacity_bytes=10_000)
    end.put(np.zeros(8_000, np.uint8))
    with pytest.raises(queue.FullError):
        end.put(np.zeros(8_000, np.uint8), 0.02)
    end.put(np.zeros(1_000, np.uint8), 0)
    with pytest.raises(queue.TooLargeError, match="never fits") as caught:
        end.put(np.zeros(10_000, np.uint8))
    assert isinstance(caught.value, ValueError)
    settle(end)
    assert served.own.stats().items == 2


def test_an_empty_queue(ends: Any) -> None:
    served, end = ends()
    for timeout in (0, 0.02):
        with pytest.raises(queue.EmptyError, match="no item within"):
            end.get(timeout)
    served.own.put(1)
    assert end.get(0) == 1
    served.own.put(2)
    assert served.own.get(0) == 2, "what was not waited for any more was not kept for it"


def test_what_waits_is_woken(ends: Any, pool: ThreadPoolExecutor) -> None:
    served, end = ends(capacity=1)
    got = pool.submit(end.get)
    until(lambda: served.own.stats().waiting_consumers == 1)
    served.own.put(1)
    assert got.result(LIMIT) == 1
    end.put(2)
    put = pool.submit(end.put, 3)
    until(lambda: served.own.stats().waiting_producers == 1)
    assert [served.own.get(LIMIT), served.own.get(LIMIT)] == [2, 3]
    put.result(LIMIT)


def test_what_cannot_travel(ends: Any) -> None:
    _, end = ends()
    with pytest.raises(TypeError, match=r"obj\['a'\]"):
        end.put({"a": object()})


def test_what_comes_before_an_object_that_cannot_travel_is_put(ends: Any) -> None:
    served, end = ends()

    def fails() -> Iterator[object]:
        yield 3
        raise KeyError

    with pytest.raises(TypeError):
        end.put_batch([1, 2, object(), 9])
    with pytest.raises(KeyError):
        end.put_batch(fails())
    settle(end)
    assert served.own.get_batch(9, LIMIT) == [1, 2, 3]


def test_objects_of_a_batch_may_be_made_in_the_same_memory(ends: Any) -> None:
    served, end = ends(capacity=9)
    array = np.zeros(items.SMALL, np.uint16)  # large enough to travel out of its own memory

    def made() -> Iterator[object]:
        for n in range(4):
            array[:] = n
            yield n
            yield array

    end.put_batch(made())
    settle(end)
    found = [served.own.get(LIMIT) for _ in range(8)]
    assert found[::2] == [0, 1, 2, 3]
    assert [each.tolist() for each in found[1::2]] == [[n] * items.SMALL for n in range(4)]


@pytest.mark.parametrize("drain", [True, False])
def test_a_queue_that_is_closed(ends: Any, pool: ThreadPoolExecutor, drain: bool) -> None:
    served, end = ends(capacity=2)
    end.put(1)
    end.put(2)
    put = pool.submit(end.put, 3)
    until(lambda: served.own.stats().waiting_producers == 1)
    served.own.close(drain)
    with pytest.raises(queue.ClosedError, match="closed") as caught:
        put.result(LIMIT)
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(queue.ClosedError):
        end.put(4)
    if drain:
        assert [end.get(LIMIT), end.get(LIMIT)] == [1, 2]
    for _ in range(2):
        with pytest.raises(queue.ClosedError):
            end.get(LIMIT)
    assert served.own.stats().discarded == (0 if drain else 2)


def test_who_waits_for_an_item_is_woken_by_the_end(ends: Any, pool: ThreadPoolExecutor) -> None:
    served, end = ends()
    got = pool.submit(end.get)
    until(lambda: served.own.stats().waiting_consumers == 1)
    served.own.close()
    with pytest.raises(queue.ClosedError):
        got.result(LIMIT)


def test_threads_share_an_end(ends: Any, pool: ThreadPoolExecutor) -> None:
    served, end = ends(capacity=3)

    def put(start: int) -> None:
        for n in range(start, start + 25):
            end.put(n)

    def get() -> list[int]:
        return [end.get(LIMIT) for _ in range(25)]

    puts = [pool.submit(put, 100 * n) for n in range(4)]
    gets = [pool.submit(get) for _ in range(4)]
    found = [n for each in gets for n in each.result(LIMIT)]
    for each in puts:
        each.result(LIMIT)
    assert sorted(found) == [100 * n + k for n in range(4) for k in range(25)]
    settle(end)
    assert served.own.stats().items == 0


def test_producers_that_wait_take_turns(serve: Any, pool: ThreadPoolExecutor) -> None:
    served = serve(capacity=1)
    served.own.put("first")
    clients = [served.connect() for _ in range(3)]
    puts: list[Future[None]] = []
    for n, client in enumerate(clients):
        puts.append(pool.submit(client.put, n))
        until(lambda n=n: served.own.stats().waiting_producers == n + 1)  # type: ignore[misc]
    assert served.own.get(LIMIT) == "first"
    assert [served.own.get(LIMIT) for _ in range(3)] == [0, 1, 2]
    for put, client in zip(puts, clients, strict=True):
        put.result(LIMIT)
        client.close()


def test_consumers_that_wait_take_turns_and_a_slow_one_stops_nobody(
    serve: Any, pool: ThreadPoolExecutor
) -> None:
    served = serve()
    slow, quick = served.connect(), served.connect()
    served.own.put(0)
    assert slow.get(LIMIT) == 0  # and then it is busy with that
    gets = []
    for n in range(3):
        gets.append(pool.submit(quick.get))
        until(lambda n=n: served.own.stats().waiting_consumers >= 1)  # type: ignore[misc]
    for n in range(1, 4):
        served.own.put(n)
    assert sorted(got.result(LIMIT) for got in gets) == [1, 2, 3]
    slow.close()
    quick.close()


def test_prefetched_items_go_back_when_the_client_leaves(serve: Any) -> None:
    served = serve(capacity=20)
    served.own.put_batch(range(10))
    client = served.connect(prefetch=4)
    assert client.get(LIMIT) == 0
    until(lambda: served.own.stats().handed >= 4)
    client.close()
    until(lambda: served.own.stats().handed == 0)
    stats = served.own.stats()
    assert (stats.delivered, stats.lost, stats.items) == (1, 0, 9)
    assert served.own.get_batch(20) == list(range(1, 10))


@pytest.mark.parametrize("drain", [True, False])
def test_what_was_prefetched_is_delivered_after_the_end(serve: Any, drain: bool) -> None:
    served = serve(capacity=20)
    served.own.put_batch(range(4))
    with served.connect(prefetch=4) as client:
        assert client.get(LIMIT) == 0
        until(lambda: served.own.stats().items == 0)
        served.own.close(drain)
        assert [client.get(LIMIT) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(queue.ClosedError):
            client.get(LIMIT)
    stats = served.own.stats()
    assert (stats.delivered, stats.lost, stats.handed, stats.discarded) == (4, 0, 0, 0)


def test_a_stream_that_is_cut_loses_what_it_had(serve: Any) -> None:
    served = serve(capacity=20)
    served.own.put_batch(range(10))
    client = served.connect(prefetch=4)
    assert client.get(LIMIT) == 0
    until(lambda: served.own.stats().handed >= 4)
    client._consuming._talk.cancel()
    until(lambda: served.own.stats().lost > 0)
    stats = served.own.stats()
    assert stats.items + stats.lost + stats.delivered == 10
    assert stats.handed == 0


def test_an_end_that_is_closed(serve: Any) -> None:
    served = serve()
    with served.connect() as client:
        client.put(1)
    for use in (lambda: client.put(2), client.get):
        with pytest.raises(queue.ClosedError, match="this end of it is closed"):
            use()
    client.close()
    assert served.own.get(LIMIT) == 1
    with pytest.raises(KeyError), served.connect():
        raise KeyError
    with pytest.raises(KeyError), served.own:
        raise KeyError
    assert served.own.stats().closed


@pytest.mark.parametrize("end", ["put", "get"])
def test_who_comes_while_an_end_is_closed_harms_no_link(serve: Any, end: str) -> None:
    served = serve()
    with tensorwire.insecure_channel(served.target) as channel:
        client = queue.connect(channel, served.name)
        client.put(1)
        assert client.get(LIMIT) == 1
        used: Any = client._producing if end == "put" else client._consuming
        item = items.encoded(2, served.name, 1000)
        arguments = ([item], LIMIT) if end == "put" else (1, LIMIT, client._decoded)
        end_send = used._talk.end_send

        def use_then() -> None:
            """As a thread that began before this one said that the end is closed."""
            end_send()
            with pytest.raises(queue.ClosedError):
                getattr(used, end)(*arguments)

        used._talk.end_send = use_then
        client.close()
        with queue.connect(channel, served.name) as other:
            other.put(3)
            assert other.get(LIMIT) == 3


def test_a_small_burst_does_not_wait_for_more(serve: Any) -> None:
    served = serve(capacity=1000)
    with served.connect() as client:
        for n in range(70):
            client.put(n)
        assert [served.own.get(LIMIT) for _ in range(70)] == list(range(70))


def test_a_channel_stays_open(serve: Any) -> None:
    served = serve()
    with tensorwire.insecure_channel(served.target) as channel:
        with queue.connect(channel, served.name) as client:
            client.put(1)
            assert served.name in repr(client)
            assert client.stats().accepted <= 1
        with queue.connect(channel, served.name) as client:
            assert client.get(LIMIT) == 1
    assert "0 items" in repr(served.own)


def test_no_such_queue(serve: Any) -> None:
    served = serve()
    with pytest.raises(queue.NoQueueError, match="no queue 'other'"):
        queue.connect(served.target, "other")


@pytest.mark.parametrize("timeout", [20.0, None])
def test_a_link_that_takes_long(
    serve: Any, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    served = serve()
    with tensorwire.insecure_channel(served.target) as channel:
        peer = channel.peer
        looks: list[None] = []

        def later() -> Any:
            looks.append(None)
            return peer() if len(looks) > 2 else None

        monkeypatch.setattr(channel, "peer", later)
        with queue.connect(channel, served.name, timeout=timeout) as client:
            assert client.stats().items == 0
        assert len(looks) == 3
    with tensorwire.insecure_channel(served.target) as channel:
        monkeypatch.setattr(channel, "peer", lambda: None)
        with pytest.raises(queue.ServerLostError, match="there is none"):
            queue.connect(channel, served.name, timeout=0.01)


def test_no_link() -> None:
    server = tensorwire.server(ThreadPoolExecutor(1), transport="grpc")
    queue.serve(server, "q", capacity=1, capacity_bytes=100)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(queue.ServerLostError, match="over a link of tensorwire only"):
        queue.connect(f"127.0.0.1:{port}", "q")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream("/tensorwire.queue.q/Put")(iter(()), timeout=LIMIT)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    server.stop(None)


def test_arguments_that_are_wrong(server: Any) -> None:
    for options in ({"capacity": 0}, {"capacity_bytes": 0}, {"name": "a/b"}, {"framework": "?"}):
        arguments: Any = {"name": "q", "capacity": 1, "capacity_bytes": 1, **options}
        with pytest.raises(ValueError, match=r"queue|framework"):
            queue.serve(server[0], **arguments)
    with pytest.raises(TypeError, match="a server of tensorwire"):
        queue.serve(grpc, "q", capacity=1, capacity_bytes=1)  # type: ignore[arg-type]
    queue.serve(server[0], "q", capacity=1, capacity_bytes=1).close()
    with pytest.raises(ValueError, match="has had a queue 'q'"):
        queue.serve(server[0], "q", capacity=1, capacity_bytes=1)
    with pytest.raises(ValueError, match="prefetch"):
        queue.connect(server[1], "q", prefetch=-1)


@pytest.mark.parametrize("number", [256e6, True, "9", None])
@pytest.mark.parametrize("what", ["capacity", "capacity_bytes", "prefetch"])
def test_numbers_that_are_not_whole_are_refused(serve: Any, what: str, number: Any) -> None:
    """Else they break each peer that reads them."""
    use = serve().connect if what == "prefetch" else serve
    with pytest.raises(TypeError, match=f"{what} is a whole number"):
        use(**{what: number})


def test_numbers_that_are_too_large_are_refused(serve: Any) -> None:
    for what in ("capacity", "capacity_bytes"):
        with pytest.raises(ValueError, match=f"{what} is 1 to"):
            serve(**{what: 1 << 63})
    served = serve(capacity=np.int64(3), capacity_bytes=np.uint32(1000))
    with served.connect(prefetch=np.int8(1)) as client:
        client.put(1)
        assert client.get(LIMIT) == 1


def test_a_timeout_is_a_number(ends: Any) -> None:
    served, end = ends(capacity=1)
    with pytest.raises(ValueError, match="timeout"):
        end.get(float("nan"))
    end.put(1)
    settle(end)
    with pytest.raises(ValueError, match="timeout"):
        end.put(2, float("nan"))
    with pytest.raises(ValueError, match="timeout"):
        queue.connect(served.target, served.name, timeout=float("nan"))
    with pytest.raises(TypeError):
        end.put(2, "1")
    assert end.get(np.float32(LIMIT)) == 1
    with pytest.raises(queue.EmptyError):
        end.get(-1)


def test_a_peer_has_a_budget_of_streams(serve: Any) -> None:
    served = serve()
    with tensorwire.insecure_channel(served.target) as channel:
        clients = [queue.connect(channel, served.name) for _ in range(STREAMS_OF_A_PEER + 1)]
        *those, last = clients
        for putting, getting in zip(those[::2], those[1::2], strict=True):
            putting.put(1)
            assert getting.get(LIMIT) == 1
        with pytest.raises(queue.BudgetError, match="let it share a client"):
            last.put(2)
        with served.connect() as other:  # of another link
            other.put(3)
        for client in clients:
            client.close()


def test_who_only_asks_and_takes_nothing_is_cut_off(serve: Any) -> None:
    served = serve(capacity=10, capacity_bytes=1000)
    with tensorwire.insecure_channel(served.target) as channel:
        peer = channel.peer()
        assert peer
        call = peer.duplex(f"/tensorwire.queue.{served.name}/Get")
        inbox: Any = deque()
        for number in range(1, 20):
            served.own.put(np.zeros(700, np.uint8), LIMIT)
            call.send([wire.encode(wire.Ask(number, 1, 0))], LIMIT, deque())
            until(lambda: served.own.stats().items == 0 or served.own.stats().lost > 0)
            if served.own.stats().lost:
                break
        assert number <= 8
        while None not in inbox:
            assert call.receive_to(inbox, LIMIT)
        error = call.outcome(LIMIT)
        assert error
        assert "takes nothing" in error.details()


def test_much_is_not_fetched_ahead(serve: Any) -> None:
    served = serve(capacity=4, capacity_bytes=4000)
    with served.connect(prefetch=100) as client:
        served.own.put_batch([np.zeros(700, np.uint8)] * 4)
        assert client.get(LIMIT).size == 700
        with pytest.raises(queue.FullError):
            served.own.put_batch([np.zeros(700, np.uint8)] * 20, 0.05)
        stats = served.own.stats()
        assert stats.items == 4
        assert stats.handed <= 12
        for _ in range(stats.accepted - 1):
            assert client.get(LIMIT).size == 700


def test_waits_end_at_their_deadline_though_the_server_is_silent(
    serve: Any, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    """A server that does not even answer that something was withdrawn."""
    served = serve(capacity=1)
    going = threading.Event()

    def silent(*_: object, **__: object) -> bytes:
        assert going.wait(LIMIT)
        raise queue.ServerLostError("silent")

    with served.connect() as client:
        client.put(1)
        client.flush(LIMIT)
        monkeypatch.setattr(client, "_take_back", silent)
        put = pool.submit(client.put, 2, 0.01)
        until(lambda: served.own.stats().waiting_producers == 1)
        with pytest.raises(FutureTimeout):
            put.result(0)
        going.set()
        with pytest.raises(queue.ServerLostError, match="silent"):
            put.result(LIMIT)
        assert served.own.get_batch(2, LIMIT) == [1]
        assert served.own.get(LIMIT) == 2
