# SPDX-License-Identifier: Apache-2.0
"""tensorwire.service: calls between a class and its proxy, with stock gRPC at any of the ends."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent import futures
from functools import partial
from typing import Annotated, Any

import grpc
import numpy as np
import pytest

import tensorwire
from tensorwire import service, tensors
from tensorwire.service import ServiceError
from tensorwire.service.messages import encoder_for
from tensorwire.tensors import DecodeError, TensorSpec

Points = Annotated[np.ndarray, TensorSpec(shape=(None, 3), dtype="float32")]


class Base:
    def inherited(self) -> str:
        """From the base."""
        return "inherited"


@service.define
class Sample(Base):
    def __init__(self) -> None:
        self.closed = threading.Event()
        self.started = threading.Event()

    def echo(self, value: Any, *rest: Any, key: Any = "default", **more: Any) -> Any:
        return {"value": value, "rest": rest, "key": key, "more": more}

    def nothing(self) -> None:
        pass

    def centre(self, points: Points, weights: Points | None = None) -> np.ndarray[Any, Any]:
        assert weights is None or weights.dtype == np.float32
        mean: np.ndarray[Any, Any] = points.mean(axis=0)
        return mean

    def nested(
        self,
        table: dict[str, list[Points]],
        pair: tuple[int, Points] = (0, np.zeros((0, 3), "f4")),
        *many: Points,
        **named: Points,
    ) -> int:
        return len(table) + len(many) + len(named)

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    def endless(self) -> Generator[int, None, None]:
        try:
            while True:
                self.started.set()
                yield 0
        finally:
            self.closed.set()

    def total(self, start: float, values: Iterator[Points], scale: float = 1.0) -> float:
        return start + scale * sum(float(v.sum()) for v in values)

    def running(self, values: Iterator[Points]) -> Iterator[float]:
        total = 0.0
        for value in values:
            total += float(value.sum())
            yield total

    def ignore(self, values: Iterator[int]) -> str:
        return "done"

    def drain(self, values: Iterator[Any]) -> int:
        return len(list(values))

    def is_lent(self, value: Any) -> bool:
        """Whether the array lies in the caller's own memory."""
        while isinstance(value, np.ndarray):
            value = value.base
        return bool(getattr(value.obj, "leased", False))

    def raises(self, text: str) -> None:
        raise KeyError(text)

    def raises_late(self) -> Iterator[int]:
        yield 1
        raise RuntimeError("after the first")

    def refuses(self) -> None:
        raise ServiceError(grpc.StatusCode.NOT_FOUND, "no such thing")

    def aborts(self) -> None:
        service.context().abort(grpc.StatusCode.DATA_LOSS, "gone")

    def who(self) -> Iterator[dict[str, Any]]:
        for _ in range(2):
            call = service.context()
            metadata = dict(call.invocation_metadata())
            yield {"tag": metadata.get("tag"), "left": call.time_remaining()}

    def unsendable(self) -> Any:
        return {"a": [object()]}

    def wrong_result(self) -> Points:
        return np.zeros((2, 2), "f4")

    def wrong_results(self) -> Iterator[Points]:
        yield np.zeros((2, 3), "f4")
        yield np.zeros((2, 2), "f4")

    def wait_for(self, seconds: float) -> bool:
        return threading.Event().wait(seconds)

    @property
    def hidden_property(self) -> int:
        return 1

    @staticmethod
    def hidden_static() -> int:
        return 1

    def _hidden(self) -> int:
        return 1


class Bench:
    """An instance behind a server, a channel to it, and a client."""

    def __init__(self, channels: Any, servers: Any) -> None:
        self.instance = Sample()
        self.server = servers.server(futures.ThreadPoolExecutor(4))
        service.add_to_server(self.instance, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = channels.insecure_channel(f"127.0.0.1:{self.port}")
        self.client = service.client(Sample, self.channel, timeout=20)

    def raw(self, method: str, request: bytes) -> Any:
        """A call with any bytes as its request."""
        call: Any = self.channel.unary_unary(f"/Sample/{method}")
        return tensors.loads(call(request, timeout=20))

    def close(self) -> None:
        self.channel.close()
        self.server.stop(None).wait()


@pytest.fixture(
    scope="module",
    params=[(c, s) for c in (tensorwire, grpc) for s in (tensorwire, grpc)],
    ids=lambda ends: f"{ends[0].__name__}-to-{ends[1].__name__}",
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(*request.param)
    yield made
    made.close()


@pytest.fixture
def client(bench: Bench) -> Sample:
    return bench.client


def points(*rows: Any) -> np.ndarray[Any, Any]:
    return np.array(rows, np.float32).reshape(-1, 3)


def failing(code: grpc.StatusCode, call: Callable[[], Any]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    assert error.code() is code
    return str(error.details())


# -------------------------------------------------------------------------------------- the call


def test_arguments_arrive_as_in_a_local_call(client: Sample) -> None:
    x = np.arange(3)
    nothing: Any = client.nothing
    assert nothing() is None
    result = client.echo({"x": [x, None]}, 1, (2,), key="k", other=b"o")
    assert np.array_equal(result.pop("value")["x"][0], x)
    assert result == {"rest": (1, (2,)), "key": "k", "more": {"other": b"o"}}
    assert client.echo(value=1) == {"value": 1, "rest": (), "key": "default", "more": {}}
    assert client.inherited() == "inherited"


def test_interceptors_around_a_channel_do_not_join_segments() -> None:
    class Pass(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            return continuation(details, request)

    with (
        tensorwire.insecure_channel("127.0.0.1:1") as channel,
        grpc.insecure_channel("127.0.0.1:1") as stock,
    ):
        assert encoder_for(grpc.intercept_channel(channel, Pass(), Pass())) is tensors.dumps
        assert encoder_for(grpc.intercept_channel(stock, Pass())) is not tensors.dumps


def test_calls_to_a_peer_do_not_join_segments() -> None:
    """The one that a channel knows, and the one that has called."""
    bench = Bench(tensorwire, tensorwire)
    try:
        assert bench.client.inherited() == "inherited"
        called = bench.channel.peer()
        published = tensorwire.publish(np.zeros(1 << 20, np.uint8))
        for peer in (called, *bench.server.peers()):
            assert encoder_for(peer) is tensors.dumps
        assert service.client(Sample, called, timeout=20).is_lent(published)
    finally:
        bench.close()


def test_tensors_are_checked_and_come_back(client: Sample) -> None:
    result = client.centre(points([1, 2, 3], [3, 4, 5]))
    assert result.tolist() == [2, 3, 4]
    assert not result.flags.writeable
    assert client.centre(points([1, 2, 3]), None).tolist() == [1, 2, 3]
    assert client.nested({"a": [points()]}, (1, points()), points(), z=points()) == 3


def test_streams(client: Sample) -> None:
    assert list(client.count(5)) == [0, 1, 2, 3, 4]
    assert list(client.count(0)) == []
    many = [points([i, i, i]) for i in range(4)]
    assert client.total(1.0, iter(many), scale=2) == 37
    assert client.total(1.0, iter([])) == 1
    assert list(client.running(iter(many))) == [0, 3, 9, 18]
    assert client.ignore(iter(range(10))) == "done"


def test_published_tensors_are_lent(bench: Bench) -> None:
    ordinary = np.zeros(1 << 20, np.uint8)
    published = tensorwire.publish(ordinary)
    both_ends = isinstance(bench.channel, tensorwire.Channel) and isinstance(
        bench.server, tensorwire.Server
    )
    assert bench.client.is_lent(published) is both_ends
    assert bench.client.echo(published)["value"].nbytes == 1 << 20


def test_streams_are_not_gathered(client: Sample) -> None:
    """Each item is answered before the next is made."""
    answered = threading.Semaphore(1)

    def items() -> Iterator[np.ndarray[Any, Any]]:
        for i in range(3):
            assert answered.acquire(timeout=20)
            yield points([i, 0, 0])

    seen = []
    for total in client.running(items()):
        seen.append(total)
        answered.release()
    assert seen == [0, 1, 3]


def test_a_sequence_can_be_streamed(client: Sample) -> None:
    assert client.ignore([1, 2]) == "done"  # type: ignore[arg-type]


def test_closing_a_streamed_reply_ends_the_method(bench: Bench) -> None:
    replies = bench.client.endless()
    assert next(replies) == 0
    assert bench.instance.started.is_set()
    replies.close()
    assert bench.instance.closed.wait(20)


class Keeps(grpc.UnaryStreamClientInterceptor):
    """Keeps calls, which therefore do not end for want of references."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        self.calls.append(continuation(details, request))
        return self.calls[-1]


@pytest.mark.parametrize("dropped", [False, True])
def test_a_streamed_reply_that_was_never_advanced_ends_the_method(
    bench: Bench, dropped: bool
) -> None:
    bench.instance.started.clear()
    bench.instance.closed.clear()
    keeps = Keeps()
    channel = grpc.intercept_channel(bench.channel, keeps)
    replies: Any = service.client(Sample, channel, timeout=60).endless()
    assert bench.instance.started.wait(20)
    if dropped:
        del replies
    else:
        replies.close()
        assert list(replies) == []
        replies.close()
    assert bench.instance.closed.wait(20)
    assert [call.code() for call in keeps.calls] == [grpc.StatusCode.CANCELLED]


def test_a_streamed_reply_is_at_its_end_after_an_error(client: Sample) -> None:
    late = client.raises_late()
    assert next(late) == 1
    failing(grpc.StatusCode.UNKNOWN, lambda: next(late))
    assert list(late) == []


def test_proxy_has_the_signatures(client: Sample) -> None:
    for name in ("echo", "centre", "nested", "total", "count"):
        expected = str(inspect.signature(getattr(Sample(), name)))
        assert str(inspect.signature(getattr(client, name))) == expected
    assert client.inherited.__doc__ == "From the base."
    assert client.echo.__name__ == "echo"
    for name in ("hidden_property", "hidden_static", "_hidden"):
        assert not hasattr(client, name)


def test_options(bench: Bench) -> None:
    client = service.with_options(bench.client, timeout=30.0, metadata=[("tag", "blue")])
    for call in client.who():
        assert call["tag"] == "blue"
        assert 20 < call["left"] < 40
    assert [call["tag"] for call in bench.client.who()] == [None, None]
    late = service.with_options(client, timeout=0.05)
    failing(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: late.wait_for(20.0))
    with pytest.raises(TypeError, match="colour"):
        service.with_options(client, colour="red")
    with pytest.raises(TypeError, match=r"a Sample was not made by service\.client"):
        service.with_options(Sample(), timeout=1)
    with pytest.raises(LookupError):
        service.context()


# ----------------------------------------------------------------------- errors at the client


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.echo(), TypeError, r"^echo\(\): missing a required argument: 'value'"),
        (lambda c: c.count(1, 2), TypeError, r"^count\(\): too many positional"),
        (lambda c: c.count(m=1), TypeError, r"^count\(\): missing a required argument"),
        (lambda c: c.count(1, m=1), TypeError, r"^count\(\): got an unexpected keyword"),
        (lambda c: c.echo({1, 2}), TypeError, r"^obj\['value'\]: a builtins\.set is neither"),
        (lambda c: c.ignore(3), TypeError, "int.* object is not iterable"),
        (lambda c: c.centre(np.zeros((2, 3))), ValueError,
         r"^/Sample/centre: argument points: expected .* float32\[\*, 3\], got float64\[2, 3\]$"),
        (lambda c: c.centre([1]), ValueError, r"points: expected a tensor .*, got a list"),
        (lambda c: c.centre(points(), points()[:, :2]), ValueError,
         r"argument weights: .* got float32\[0, 2\]"),
        (lambda c: c.nested({"a": [points(), 1]}), ValueError,
         r"argument table\['a'\]\[1\]: expected .*, got a int"),
        (lambda c: c.nested([points()]), ValueError, "argument table: expected a dict, got a list"),
        (lambda c: c.nested({"a": {}}), ValueError, r"table\['a'\]: expected a list or tuple, got"),
        (lambda c: c.nested({}, (1,)), ValueError, r"argument pair: expected 2 items, got \(1,\)"),
        (lambda c: c.nested({}, (1, 2)), ValueError, r"argument pair\[1\]: expected a tensor"),
        (lambda c: c.nested({}, (1, points()), 3), ValueError, r"argument many\[0\]: expected"),
        (lambda c: c.nested({}, z=3), ValueError, r"argument named\['z'\]: expected a tensor"),
        (lambda c: c.total(0.0, iter([points(), np.zeros(3)])), ValueError,
         r"^/Sample/total: argument values\[1\]: expected a tensor .* got float64\[3\]"),
        (lambda c: list(c.running(iter([points(), 1]))), ValueError, r"argument values\[1\]"),
        (lambda c: c.total(0.0, iter([points(), {1}])), ValueError, r"values\[1\]: .* got a set"),
        (lambda c: c.drain(iter([1, {2}])), TypeError, "obj: a builtins.set is neither"),
    ],
)  # fmt: skip
def test_bad_arguments(client: Sample, call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(client)


def test_bad_arguments_are_refused_before_anything_is_sent() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as nowhere:
        client = service.client(Sample, nowhere)
        with pytest.raises(TypeError, match=r"count\(\): missing"):
            client.count()  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="argument points"):
            client.centre(np.zeros(3))
        failing(grpc.StatusCode.UNAVAILABLE, client.nothing)


def test_an_error_of_the_streamed_iterator_reaches_the_caller(client: Sample) -> None:
    def items() -> Iterator[np.ndarray[Any, Any]]:
        yield points()
        raise OSError("disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        client.total(0.0, items())
    with pytest.raises(OSError, match="disk is gone"):
        list(client.running(items()))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_whatever_leaves_the_streamed_iterator_reaches_the_caller(
    client: Sample, kind: type[BaseException]
) -> None:
    def items() -> Iterator[np.ndarray[Any, Any]]:
        yield points()
        raise kind("left")

    with pytest.raises(kind, match="left"):
        client.total(0.0, items())
    with pytest.raises(kind, match="left"):
        list(client.running(items()))
    with pytest.raises(kind, match="left"):
        service.future(client.total, 0.0, items()).result(20)


def test_replies_are_checked() -> None:
    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        return replies.pop()

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield tensors.join(tensors.dumps(points()))
        yield tensors.join(tensors.dumps(1))

    replies = [b"garbage", tensors.join(tensors.dumps(np.zeros((1, 2), "f4")))]
    handlers: dict[str, Any] = {
        "wrong_result": grpc.unary_unary_rpc_method_handler(handler),
        "wrong_results": grpc.unary_stream_rpc_method_handler(stream),
    }
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Sample", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = service.client(Sample, channel, timeout=20)
        with pytest.raises(DecodeError, match=r"^reply of /Sample/wrong_result: reply: expected a"):
            client.wrong_result()
        with pytest.raises(
            DecodeError, match=r"^reply of /Sample/wrong_result: 7 bytes are too few"
        ):
            client.wrong_result()
        found = client.wrong_results()
        assert next(found).shape == (0, 3)
        with pytest.raises(DecodeError, match=r"^reply of /Sample/wrong_results: reply: expected"):
            next(found)
    server.stop(None).wait()


# ----------------------------------------------------------------------- errors at the server


@pytest.mark.parametrize(
    ("method", "request_", "reason"),
    [
        ("count", b"", r"/Sample/count: 0 bytes are too few"),
        ("count", b"x" * 100, r"/Sample/count: no tensor message"),
        ("count", [3], r"/Sample/count: arguments are a dict by name, not a list"),
        ("count", {}, r"/Sample/count: missing a required argument: 'n'"),
        ("count", {"n": 1, "m": 2}, r"/Sample/count: no parameter 'm'"),
        ("count", {1: 1}, r"/Sample/count: no parameter 1"),
        ("count", {"x" * 1000: 1}, r"/Sample/count: no parameter 'x{1,80}"),
        ("echo", {"value": 1, "rest": 5}, "argument rest: expected a tuple"),
        ("echo", {"value": 1, "more": [1]}, "argument more: expected a dict by name"),
        ("echo", {"value": 1, "more": {1: 2}}, "argument more: expected a dict by name"),
        ("echo", {"value": 1, "more": {"value": 2}}, "multiple values for argument 'value'"),
        ("echo", {"rest": (1,)}, "missing a required argument: 'value'"),
        ("centre", {"points": np.zeros((2, 4), "f4")},
         r"/Sample/centre: argument points: expected .* float32\[\*, 3\], got float32\[2, 4\]"),
        ("centre", {"points": 1}, r"argument points: expected a tensor .*, got a int"),
        ("nested", {"table": {"a": [1]}}, r"argument table\['a'\]\[0\]: expected a tensor"),
        ("nested", {"table": {}, "many": (1,)}, r"argument many\[0\]: expected a tensor"),
        ("total", {"start": 0.0, "values": 3}, r"no parameter 'values'"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_by_name(
    bench: Bench, method: str, request_: Any, reason: str
) -> None:
    data = request_ if isinstance(request_, bytes) else tensors.join(tensors.dumps(request_))
    details = failing(grpc.StatusCode.INVALID_ARGUMENT, lambda: bench.raw(method, data))
    assert re.search(reason, details)
    assert bench.client.inherited() == "inherited"


def test_bad_items_of_a_stream_are_refused_by_name(bench: Bench) -> None:
    def encode(obj: object) -> bytes:
        return tensors.join(tensors.dumps(obj))

    call: Any = bench.channel.stream_unary("/Sample/total")
    for messages, reason in (
        ([], "/Sample/total: the stream ended before the arguments"),
        ([{"start": 0.0}, np.zeros(1)], "/Sample/total: argument values[0]: expected a tensor"),
        ([{"start": 0.0}, points(), b"x"], "/Sample/total: argument values[1]: expected a tensor"),
    ):
        sent = partial(call, iter([encode(message) for message in messages]), timeout=20)
        details = failing(grpc.StatusCode.INVALID_ARGUMENT, sent)
        assert details.startswith(reason)
    details = failing(
        grpc.StatusCode.INVALID_ARGUMENT,
        lambda: call(iter([encode({"start": 0.0}), b"junk"]), timeout=20),
    )
    assert details == "/Sample/total: 4 bytes are too few for the header of a tensor message"


def test_what_a_method_raises_ends_its_call_only(
    client: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "tensorwire.service"):
        details = failing(grpc.StatusCode.UNKNOWN, lambda: client.raises("no such key"))
    assert details == "KeyError: 'no such key'"
    assert "/Sample/raises raised" in caplog.text
    assert (
        failing(grpc.StatusCode.UNKNOWN, lambda: client.raises("x" * 100_000))[:11] == "KeyError: '"
    )
    assert failing(grpc.StatusCode.NOT_FOUND, client.refuses) == "no such thing"
    assert failing(grpc.StatusCode.DATA_LOSS, client.aborts) == "gone"
    late = client.raises_late()
    assert next(late) == 1
    details = failing(grpc.StatusCode.UNKNOWN, lambda: next(late))
    assert details == "RuntimeError: after the first"
    assert client.inherited() == "inherited"


def test_results_that_cannot_travel(client: Sample) -> None:
    details = failing(grpc.StatusCode.INTERNAL, client.unsendable)
    assert details.startswith("result of /Sample/unsendable: obj['a'][0]: a builtins.object is")
    details = failing(grpc.StatusCode.INTERNAL, client.wrong_result)
    assert details.startswith("result of /Sample/wrong_result: reply: expected a tensor float32[*")
    found = client.wrong_results()
    assert next(found).shape == (2, 3)
    assert "wrong_results: reply: expected" in failing(
        grpc.StatusCode.INTERNAL, lambda: next(found)
    )


# ------------------------------------------------------------------------------------- define


def test_an_interface_and_its_implementation() -> None:
    @service.define(name="example.Interface")
    class Interface:
        def one(self, x: int) -> int:
            raise NotImplementedError

        def many(self, x: int) -> Iterator[int]:
            raise NotImplementedError

    class Implementation(Interface):
        def one(self, x: int) -> int:
            return x + 1

        def many(self, x: int) -> Iterator[int]:
            return iter(range(x))

        def unlisted(self) -> None: ...

    server = grpc.server(futures.ThreadPoolExecutor(1))
    service.add_to_server(Implementation(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = service.client(Interface, channel, timeout=20)
        assert client.one(1) == 2
        assert list(client.many(2)) == [0, 1]
        assert not hasattr(client, "unlisted")
        call: Any = channel.unary_unary("/example.Interface/unlisted")
        failing(grpc.StatusCode.UNIMPLEMENTED, lambda: call(b"", timeout=20))
    server.stop(None).wait()


def test_futures(bench: Bench) -> None:
    client = bench.client
    begun = [service.future(client.echo, n) for n in range(5)]
    assert [future.result(20)["value"] for future in begun] == list(range(5))
    assert all(future.done() and not future.cancelled() for future in begun)
    seen = threading.Event()
    begun[0].add_done_callback(lambda future: seen.set() if future is begun[0] else None)
    assert seen.wait(20)
    total = service.future(client.total, 1.0, iter([points([1, 2, 3])]), scale=2.0)
    assert total.result(20) == 13
    slow = service.future(client.wait_for, 20.0)
    with pytest.raises(grpc.FutureTimeoutError):
        slow.result(0.01)
    assert slow.cancel()
    assert slow.cancelled()
    with pytest.raises(grpc.FutureCancelledError):
        slow.result(20)


def test_futures_of_what_fails(client: Sample) -> None:
    with pytest.raises(TypeError, match=r"^echo\(\): missing a required argument"):
        service.future(client.echo)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="argument points: expected a tensor"):
        service.future(client.centre, np.zeros(3))
    with pytest.raises(TypeError, match=r"^count\(\) streams its reply: call it"):
        service.future(client.count, 3)
    for other in (Sample().count, len):
        with pytest.raises(TypeError, match=r"is no method of a service\.client"):
            service.future(other, [3])  # type: ignore[arg-type]

    def items() -> Iterator[Any]:
        yield points()
        raise OSError("disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        service.future(client.total, 0.0, items()).result(20)
