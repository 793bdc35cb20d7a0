# SPDX-License-Identifier: Apache-2.0
"""Streams in either direction over every pairing."""

from __future__ import annotations

import contextvars
import gc
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tests.rpc.pairings import DATA_PLANE, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path, refuse


def numbers(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def recall(channel: Any, key: str) -> bytes:
    entry: bytes = channel.unary_unary(path("recall"))(key.encode())
    return entry


def error_of(responses: Any) -> Any:
    """Of an iterator, or of a function."""
    with pytest.raises(grpc.RpcError) as caught:
        responses() if callable(responses) else list(responses)
    return caught.value


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_responses(channel: Any, count: int) -> None:
    stream = channel.unary_stream(path("count"))(str(count).encode())
    kind: Any = grpc.Call
    assert isinstance(stream, kind)
    assert list(stream) == numbers(count)
    assert stream.code() is grpc.StatusCode.OK
    assert not stream.is_active()
    with pytest.raises(StopIteration):
        next(stream)


def test_large_responses(channel: Any) -> None:
    size = 300_000
    stream = channel.stream_stream(path("chat"))(bytes([n]) * size for n in range(20))
    assert [(len(m), m[0], m[-1]) for m in stream] == [(size, n, n) for n in range(20)]


def test_requests(channel: Any) -> None:
    method = channel.stream_unary(path("total"))
    assert method(iter(numbers(1000))) == b"499500"
    assert method(iter(())) == b"0"
    response, ended = method.with_call(iter(numbers(3)))
    assert response == b"3"
    assert ended.code() is grpc.StatusCode.OK
    assert method.future(iter(numbers(4))).result(LIMIT_SECONDS) == b"6"


VARIABLE = contextvars.ContextVar[str]("VARIABLE")


def test_requests_run_in_the_context_of_the_caller(channel: Any) -> None:
    def requests() -> Iterator[bytes]:
        yield VARIABLE.get().encode()
        VARIABLE.set("of the iterator")

    def call() -> None:
        VARIABLE.set("7")
        assert channel.stream_unary(path("total"))(requests()) == b"7"
        assert list(channel.stream_stream(path("chat"))(requests())) == [b"7"]
        assert VARIABLE.get() == "7"

    contextvars.copy_context().run(call)


def test_requests_that_only_know_the_next_one(channel: Any) -> None:
    class Two:
        left = 2

        def __next__(self) -> bytes:
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return b"1"

    assert channel.stream_unary(path("total"))(Two()) == b"2"


@pytest.mark.parametrize("requests", [[b"1", b"2"], (b"1", b"2"), {b"1": 0, b"2": 0}])
def test_iterables_as_requests(channel: Any, pairing: Pairing, requests: Any) -> None:
    """grpcio wants an iterator. A channel of ours takes any iterable, on every way."""
    method = channel.stream_unary(path("total"))
    if pairing.client == "stock":
        assert error_of(lambda: method(requests)).code() is grpc.StatusCode.UNKNOWN
    else:
        assert method(requests) == b"3"


@pytest.mark.parametrize("requests", [5, None])
def test_requests_that_are_none(channel: Any, requests: Any) -> None:
    error = error_of(lambda: channel.stream_unary(path("total"))(requests))
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details() == "Exception iterating requests!"


def test_serializers(channel: Any) -> None:
    method = channel.stream_stream(
        path("chat"), request_serializer=str.encode, response_deserializer=bytes.decode
    )
    assert list(method(iter(["a", "b"]))) == ["a", "b"]


def test_response_before_the_requests_end(channel: Any) -> None:
    """The request iterator never ends by itself."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield b"the first"
        over.wait(LIMIT_SECONDS)

    try:
        assert channel.stream_unary(path("first"))(requests()) == b"the first"
    finally:
        over.set()


def test_ping_pong(channel: Any) -> None:
    questions: queue.Queue[bytes | None] = queue.Queue()
    stream = channel.stream_stream(path("chat"))(iter(questions.get, None))
    for number in numbers(100):
        questions.put(number)
        assert next(stream) == number
    questions.put(None)
    assert list(stream) == []
    assert stream.code() is grpc.StatusCode.OK


def test_handler_that_raises_between_responses(channel: Any) -> None:
    stream = channel.unary_stream(path("count_and_fail"))(b"3")
    assert list(itertools.islice(stream, 3)) == numbers(3)
    error = error_of(stream)
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details() == "Exception iterating responses: after the last"


def test_abort_between_responses(channel: Any) -> None:
    stream = channel.unary_stream(path("count_and_abort"))(b"2")
    assert list(itertools.islice(stream, 2)) == numbers(2)
    error = error_of(stream)
    assert error.code() is grpc.StatusCode.OUT_OF_RANGE
    assert error.details() == "no more"
    assert stream.code() is grpc.StatusCode.OUT_OF_RANGE


def test_none_ends_the_responses(channel: Any) -> None:
    stream = channel.unary_stream(path("count_and_none"))(b"2")
    assert list(stream) == numbers(2)
    assert stream.code() is grpc.StatusCode.OK
    assert ("last", "yes") in stream.trailing_metadata()


def test_abort_while_requests_come(channel: Any) -> None:
    stream = channel.stream_stream(path("chat_and_abort"))(itertools.repeat(b"x"))
    assert next(stream) == b"x"
    assert error_of(stream).code() is grpc.StatusCode.ABORTED


def test_unknown_method(channel: Any) -> None:
    for call in (
        channel.unary_stream(path("nowhere"))(b"x"),
        channel.stream_stream(path("nowhere"))(iter([b"x"])),
    ):
        assert error_of(call).code() is grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.RpcError) as caught:
        channel.stream_unary(path("nowhere"))(iter([b"x"]))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_metadata_before_the_first_response(channel: Any, key: str) -> None:
    stream = channel.unary_stream(path("metadata_first"))(key.encode())
    assert ("first", "yes") in stream.initial_metadata()
    assert stream.is_active()
    channel.unary_unary(path("open_gate"))(key.encode())
    assert list(stream) == [b"1"]
    assert ("last", "yes") in stream.trailing_metadata()


def test_cancel_responses(channel: Any, key: str) -> None:
    stream = channel.unary_stream(path("endless"))(key.encode())
    assert next(stream) == key.encode()
    assert stream.cancel()
    assert stream.cancelled()
    error = error_of(stream)
    assert error.code() is grpc.StatusCode.CANCELLED
    assert error.details() == "Locally cancelled by application!"
    assert recall(channel, key) == b"closed active=False"


def unread(channel: Any, key: str, **options: Any) -> Any:
    """A stream whose responses and status have come, but for what the server says of it later."""
    stream = channel.unary_stream(path("three_and_tell"))(key.encode(), **options)
    assert recall(channel, key) == b"sent"
    return stream


def test_stream_lasts_until_it_is_read(channel: Any, key: str) -> None:
    stream = unread(channel, key)
    done = threading.Event()
    stream.add_done_callback(lambda _: done.set())
    for number in numbers(3):
        assert stream.is_active()
        assert stream.running()
        assert not stream.done()
        assert not done.is_set()
        assert next(stream) == number
    assert list(stream) == []
    assert done.wait(LIMIT_SECONDS)
    assert stream.done()
    assert not stream.cancel()


def test_cancel_drops_what_was_not_read(channel: Any, key: str) -> None:
    stream = unread(channel, key)
    assert next(stream) == b"0"
    assert stream.cancel()
    assert stream.cancelled()
    assert error_of(stream).code() is grpc.StatusCode.CANCELLED
    assert error_of(stream).code() is grpc.StatusCode.CANCELLED
    assert stream.code() is grpc.StatusCode.CANCELLED


def test_deadline_drops_what_was_not_read(channel: Any, key: str) -> None:
    stream = unread(channel, key, timeout=0.4)
    done = threading.Event()
    stream.add_done_callback(lambda _: done.set())
    assert done.wait(LIMIT_SECONDS)
    assert error_of(stream).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not stream.cancelled()


def test_close_drops_what_was_not_read(pairing: Pairing, processes: Any, key: str) -> None:
    with pairing.channel(processes[pairing.server]) as channel:
        stream = unread(channel, key)
    assert error_of(stream).code() is grpc.StatusCode.CANCELLED


def test_dropped_stream_cancels_its_call(channel: Any, key: str) -> None:
    stream = channel.unary_stream(path("endless"))(key.encode())
    assert next(stream) == key.encode()
    del stream
    gc.collect()
    assert recall(channel, key) == b"closed active=False"


def test_deadline_of_a_stream(channel: Any, key: str) -> None:
    stream = channel.unary_stream(path("endless"))(key.encode(), timeout=0.3)
    assert error_of(stream).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert recall(channel, key) == b"closed active=False"


def test_cancelled_requests_reach_the_handler(channel: Any, pairing: Pairing, key: str) -> None:
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield key.encode()
        over.wait(LIMIT_SECONDS)

    try:
        future = channel.stream_unary(path("listen")).future(requests())
        assert recall(channel, f"{key} started") == b""
        assert future.cancel()
        seen = recall(channel, key)
        # grpcio's iterator sometimes ends as if the requests had.
        assert seen == b"RpcError" or (pairing.transport == "grpc" and seen == b"end of requests")
    finally:
        over.set()


def test_cancel_from_another_thread(channel: Any, key: str) -> None:
    """A reader that waits for the next response is set free."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield key.encode()
        over.wait(LIMIT_SECONDS)

    stream = channel.stream_stream(path("chat"))(requests())
    assert next(stream) == key.encode()
    errors: queue.Queue[Any] = queue.Queue()

    def read() -> None:
        try:
            next(stream)
        except grpc.RpcError as error:
            errors.put(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert stream.cancel()
        assert errors.get(timeout=LIMIT_SECONDS).code() is grpc.StatusCode.CANCELLED
    finally:
        over.set()
        reader.join(LIMIT_SECONDS)


def test_server_cancels_while_it_reads(channel: Any, pairing: Pairing, key: str) -> None:
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield key.encode()
        over.wait(LIMIT_SECONDS)

    try:
        call = channel.stream_unary(path("cancel_while_reading")).future(requests())
        assert call.code() is grpc.StatusCode.CANCELLED
        if pairing.transport != "grpc":  # grpcio's iterator sometimes ends as if the requests had
            assert recall(channel, key) == b"RpcError"
    finally:
        over.set()


def handlers(**made: Any) -> tuple[grpc.GenericRpcHandler, ...]:
    return (grpc.method_handlers_generic_handler("test.Own", made),)


def test_the_end_of_another_call_is_an_error_of_the_handler(pairing: Pairing) -> None:
    held: queue.Queue[grpc.ServicerContext] = queue.Queue()
    over, gate, taken = threading.Event(), threading.Event(), threading.Semaphore(0)

    def hold(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(over.set)
        held.put(context)
        gate.wait(LIMIT_SECONDS)
        return b""

    def use(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        other = held.get(timeout=LIMIT_SECONDS)
        taken.release()
        yield b"held"
        over.wait(LIMIT_SECONDS)
        other.send_initial_metadata(())

    def use_once(request: bytes, context: grpc.ServicerContext) -> bytes:
        return b"".join(use(request, context))

    own = handlers(
        hold=grpc.unary_unary_rpc_method_handler(hold),
        use=grpc.unary_stream_rpc_method_handler(use),
        use_once=grpc.unary_unary_rpc_method_handler(use_once),
    )
    with local(pairing.server, handlers=own) as server, pairing.channel(server.target) as channel:
        try:
            held_call = channel.unary_unary("/test.Own/hold").future(b"")
            stream = channel.unary_stream("/test.Own/use")(b"", timeout=LIMIT_SECONDS)
            assert next(stream) == b"held"
            assert taken.acquire(timeout=LIMIT_SECONDS)
            assert held_call.cancel()
            error = error_of(stream)
            assert error.code() is grpc.StatusCode.UNKNOWN
            assert error.details().startswith("Exception iterating responses: ")
            over.clear()
            held_call = channel.unary_unary("/test.Own/hold").future(b"")
            used = channel.unary_unary("/test.Own/use_once").future(b"", timeout=LIMIT_SECONDS)
            assert taken.acquire(timeout=LIMIT_SECONDS)
            assert held_call.cancel()
            assert used.code() is grpc.StatusCode.UNKNOWN
            assert used.details().startswith("Exception calling application: ")
        finally:
            gate.set()


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_requests_of_another_call_that_ends(pairing: Pairing) -> None:
    """By gRPC their iterator sometimes ends as if the requests had."""
    held: queue.Queue[Iterator[bytes]] = queue.Queue()
    gate = threading.Event()

    def hold(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        held.put(requests)
        gate.wait(LIMIT_SECONDS)
        return b""

    def take(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from held.get(timeout=LIMIT_SECONDS)

    def requests() -> Iterator[bytes]:
        yield b"1"
        gate.wait(LIMIT_SECONDS)

    own = handlers(
        hold=grpc.stream_unary_rpc_method_handler(hold),
        take=grpc.unary_stream_rpc_method_handler(take),
    )
    with local(pairing.server, handlers=own) as server, pairing.channel(server.target) as channel:
        try:
            holding = channel.stream_unary("/test.Own/hold").future(requests())
            taken = channel.unary_stream("/test.Own/take")(b"", timeout=LIMIT_SECONDS)
            assert next(taken) == b"1"
            assert holding.cancel()
            assert error_of(taken).code() is grpc.StatusCode.UNKNOWN
        finally:
            gate.set()


def test_a_reader_of_requests_ends_with_the_handler(pairing: Pairing) -> None:
    """A thread that the handler has left behind, while the client's stream is still open."""
    ends: queue.Queue[object] = queue.Queue()
    gate = threading.Event()

    def read(requests: Iterator[bytes]) -> None:
        try:
            ends.put(list(requests))
        except BaseException as error:
            ends.put(error)

    def leave(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        threading.Thread(target=read, args=[requests], daemon=True).start()
        yield b"left"

    def leave_once(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return next(leave(requests, context))

    def refuse_all(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        leave_once(requests, context)
        context.abort(grpc.StatusCode.ABORTED, "enough")

    def requests() -> Iterator[bytes]:
        gate.wait(LIMIT_SECONDS)
        yield from ()

    own = handlers(
        leave=grpc.stream_stream_rpc_method_handler(leave),
        leave_once=grpc.stream_unary_rpc_method_handler(leave_once),
        refuse_all=grpc.stream_unary_rpc_method_handler(refuse_all),
    )
    with local(pairing.server, handlers=own) as server, pairing.channel(server.target) as channel:
        try:
            assert list(channel.stream_stream("/test.Own/leave")(requests())) == [b"left"]
            assert ends.get(timeout=LIMIT_SECONDS) == []
            assert channel.stream_unary("/test.Own/leave_once")(requests()) == b"left"
            assert ends.get(timeout=LIMIT_SECONDS) == []
            method = channel.stream_unary("/test.Own/refuse_all")
            assert error_of(lambda: method(requests())).code() is grpc.StatusCode.ABORTED
            assert ends.get(timeout=LIMIT_SECONDS) == []
        finally:
            gate.set()


def test_request_iterator_that_raises(channel: Any, caplog: pytest.LogCaptureFixture) -> None:
    def requests() -> Iterator[bytes]:
        yield b"1"
        raise ValueError("an iterator that fails")

    error = error_of(channel.stream_stream(path("chat"))(requests()))
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details() == "Exception iterating requests!"
    assert "an iterator that fails" in caplog.text


def test_bad_request_serializer(channel: Any, caplog: pytest.LogCaptureFixture) -> None:
    method = channel.stream_stream(path("chat"), request_serializer=refuse)
    error = error_of(method(iter([b"1"])))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "Exception serializing request!"
    assert "a transform that fails" in caplog.text


def test_bad_response_deserializer(channel: Any, caplog: pytest.LogCaptureFixture) -> None:
    stream = channel.unary_stream(path("count"), response_deserializer=refuse)(b"3")
    error = error_of(stream)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "Exception deserializing response!"
    assert stream.code() is grpc.StatusCode.INTERNAL
    assert "a transform that fails" in caplog.text


def test_bad_response_serializer_at_the_server(channel: Any) -> None:
    error = error_of(channel.unary_stream(path("bad_responses"))(b"3"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "Failed to serialize response!"


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str, indirect=True)
def test_bad_request_deserializer_at_the_server(channel: Any) -> None:
    """On the data plane only: a server of grpcio often cannot stop any more after this."""
    with pytest.raises(grpc.RpcError) as caught:
        channel.stream_unary(path("bad_requests"))(iter([b"1"]))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "Exception deserializing request!"


def test_stream_as_a_future(channel: Any) -> None:
    stream = channel.unary_stream(path("count"))(b"3")
    done = threading.Event()
    stream.add_done_callback(lambda _: done.set())
    assert list(stream) == numbers(3)
    assert done.wait(LIMIT_SECONDS)
    assert stream.done()
    assert stream.exception() is None


def test_slow_reader_gets_everything(channel: Any) -> None:
    """Flow control: the writer is far ahead of the reader, with more than any buffer takes."""
    size, count = 100_000, 200
    stream = channel.stream_stream(path("chat"))(bytes([n]) * size for n in range(count))
    first = next(stream)
    assert [first[0], *(message[0] for message in stream)] == list(range(count))


def test_two_streams_side_by_side(channel: Any) -> None:
    streams = [channel.unary_stream(path("count"))(b"500") for _ in range(2)]
    assert list(zip(*streams, strict=True)) == [(n, n) for n in numbers(500)]
