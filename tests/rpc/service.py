# SPDX-License-Identifier: Apache-2.0
"""Hand-written handlers that show each feature of a call; messages are plain bytes."""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import grpc

NAME = "test.Raw"
LIMIT_SECONDS = 20.0  # for whatever waits: longer than anything takes, shorter than a test may


def path(method: str) -> str:
    return f"/{NAME}/{method}"


class Diary:
    """What handlers observed, for tests to ask: ``Await`` waits for an entry."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: dict[str, list[str]] = defaultdict(list)

    def write(self, key: str, entry: str) -> None:
        with self._changed:
            self._entries[key].append(entry)
            self._changed.notify_all()

    def has(self, key: str) -> bool:
        with self._changed:
            return bool(self._entries[key])

    def read(self, key: str) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: self._entries[key], LIMIT_SECONDS):
                raise TimeoutError(f"nothing about {key}")
            return self._entries[key][0]


class Service:
    """The methods; ``diary`` and ``gate`` connect calls of one server."""

    def __init__(self) -> None:
        self.diary = Diary()
        self.gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    # unary_unary

    def echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    def length(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return str(len(request)).encode()

    def zeros(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return bytes(int(request))

    def abort(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("why", "aborted"),))
        context.abort(grpc.StatusCode[metadata(context)["code"]], request.decode())

    def set_code(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details(request.decode())
        return b"not seen"

    def swallowed_abort(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            context.abort(grpc.StatusCode.DATA_LOSS, "swallowed")
        except Exception:
            return b"not seen"

    def fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        raise ValueError(request.decode())

    def fail_with_code(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
        raise ValueError(request.decode())

    def nothing(self, request: bytes, context: grpc.ServicerContext) -> Any:
        return None

    def metadata(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Sends what it got that begins with ``x-``: in the initial and in the trailing part."""
        mine = [(k, v) for k, v in context.invocation_metadata() if k.startswith("x-")]
        context.send_initial_metadata(tuple((f"initial-{k}", v) for k, v in mine))
        context.set_trailing_metadata(tuple((f"trailing-{k}", v) for k, v in mine))
        return b""

    def initial_twice(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.send_initial_metadata((("a", "1"),))
        try:
            context.send_initial_metadata((("b", "2"),))
        except ValueError:
            return b"refused"
        return b"permitted"

    def bad_initial(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.send_initial_metadata((("UPPER", "x"),))
        return b"not seen"

    def bad_trailing(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("UPPER", "x"),))
        context.set_code(grpc.StatusCode.NOT_FOUND)
        return b"not seen"

    def mended_trailing(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("UPPER", "x"),))
        context.set_trailing_metadata(((b"lower", b"x"), ("content-type", "x")))  # type: ignore[arg-type]
        return b"seen"

    def keys(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Those of the metadata, in their order."""
        return " ".join(str(key) for key, _ in context.invocation_metadata()).encode()

    def time_left(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return str(context.time_remaining()).encode()

    def about(self, request: bytes, context: Any) -> bytes:
        """The context's fields in one line."""
        assert context.is_active()
        assert context.peer_identities() is None
        assert context.peer_identity_key() is None
        context.set_compression(grpc.Compression.NoCompression)
        context.disable_next_message_compression()
        kind = context.auth_context()["transport_security_type"]
        return f"{context.code()!r} {context.details()!r} {kind} {context.peer()}".encode()

    def cancel_itself(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.cancel()
        return b"not seen"

    def wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Stays until the call is over at the client; then ``recall`` knows of it."""
        over = threading.Event()
        key = request.decode()
        assert context.add_callback(over.set)
        self.diary.write(f"{key} started", "")
        if over.wait(LIMIT_SECONDS):
            self.diary.write(key, f"active={context.is_active()}")
        return b"too late"

    def recall(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return self.diary.read(request.decode()).encode()

    def callback(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(lambda: self.diary.write(request.decode(), "called"))
        return request

    def pass_gate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.diary.write(f"{request.decode()} started", "")
        self.gates[request.decode()].wait(LIMIT_SECONDS)
        return b"passed"

    def large_at_gate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return self.pass_gate(request, context) * 500_000

    def open_gate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.gates[request.decode()].set()
        return b""

    # unary_stream

    def count(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for number in range(int(request)):
            yield str(number).encode()

    def burst(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return itertools.repeat(b"12345678", int(request))

    def count_and_fail(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from self.count(request, context)
        raise ValueError("after the last")

    def count_and_abort(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from self.count(request, context)
        context.abort(grpc.StatusCode.OUT_OF_RANGE, "no more")

    def three_and_tell(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """``recall`` knows once they have been sent."""
        context.add_callback(lambda: self.diary.write(request.decode(), "sent"))
        yield from self.count(b"3", context)

    def count_and_none(self, request: bytes, context: grpc.ServicerContext) -> Iterator[Any]:
        yield from self.count(request, context)
        context.set_trailing_metadata((("last", "yes"),))
        yield None
        yield b"not seen"

    def metadata_first(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.send_initial_metadata((("first", "yes"),))
        self.gates[request.decode()].wait(LIMIT_SECONDS)
        context.set_trailing_metadata((("last", "yes"),))
        yield b"1"

    def endless(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            while True:
                yield request
        finally:
            self.diary.write(request.decode(), f"closed active={context.is_active()}")

    # stream_unary

    def total(self, requests: Iterable[bytes], context: grpc.ServicerContext) -> bytes:
        return str(sum(map(int, requests))).encode()

    def first(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return next(requests)

    def listen(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Takes requests until the client is gone, of which the first one names the diary entry."""
        key = next(requests).decode()
        self.diary.write(f"{key} started", "")
        try:
            for _ in requests:
                pass
        except grpc.RpcError:
            self.diary.write(key, "RpcError")
            raise
        self.diary.write(key, "end of requests")
        return b""

    def cancel_while_reading(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> bytes:
        key = next(requests).decode()
        timer = threading.Timer(0.1, context.cancel)
        timer.start()
        try:
            for _ in requests:
                pass
        except grpc.RpcError:
            self.diary.write(key, "RpcError")
            raise
        finally:
            timer.join()
        return b""

    def drain(self, requests: Iterable[bytes], context: grpc.ServicerContext) -> bytes:
        return str(sum(1 for _ in requests)).encode()

    # stream_stream

    def chat(self, requests: Iterable[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from requests

    def chat_and_abort(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        yield next(requests)
        context.abort(grpc.StatusCode.ABORTED, "enough")

    # any arity

    def play(self, program: dict[str, Any], context: Any) -> Iterator[Any]:
        """Does what the client has written down: responses, then an end."""
        if "initial" in program:
            context.send_initial_metadata(pairs(program["initial"]))
        if "trailing" in program:
            context.set_trailing_metadata(pairs(program["trailing"]))
        if "code" in program:
            context.set_code(grpc.StatusCode[program["code"]])
        if "details" in program:
            context.set_details(program["details"])
        for number in range(program["messages"]):
            yield str(number).encode()
        end, (code, details) = program["end"], program["abort"]
        if end == "raise":
            raise ValueError(details)
        if end == "abort":
            context.abort(grpc.StatusCode[code], details)
        if end == "abort_with_status":
            context.abort_with_status(Ended(grpc.StatusCode[code], details, (("why", "so"),)))
        if end == "cancel":
            context.cancel()
        if end in ("none", "serializer"):
            yield None if end == "none" else b"bad"
            yield b"not seen"

    def play_unary(self, request: bytes, context: Any) -> Any:
        responses = [b"nothing", *self.play(json.loads(request), context)]
        return next((r for r in responses if r in (None, b"bad")), responses[-1])

    def play_stream(self, request: bytes, context: Any) -> Iterator[Any]:
        return self.play(json.loads(request), context)

    def handlers(self) -> grpc.GenericRpcHandler:
        makers: dict[Callable[..., Any], list[Callable[..., Any]]] = {
            grpc.unary_unary_rpc_method_handler: [
                self.echo,
                self.length,
                self.zeros,
                self.abort,
                self.set_code,
                self.swallowed_abort,
                self.fail,
                self.fail_with_code,
                self.nothing,
                self.metadata,
                self.initial_twice,
                self.bad_initial,
                self.bad_trailing,
                self.mended_trailing,
                self.keys,
                self.time_left,
                self.about,
                self.cancel_itself,
                self.wait,
                self.recall,
                self.callback,
                self.pass_gate,
                self.large_at_gate,
                self.open_gate,
            ],
            grpc.unary_stream_rpc_method_handler: [
                self.count,
                self.burst,
                self.count_and_fail,
                self.count_and_abort,
                self.count_and_none,
                self.three_and_tell,
                self.metadata_first,
                self.endless,
            ],
            grpc.stream_unary_rpc_method_handler: [
                self.total,
                self.first,
                self.listen,
                self.drain,
                self.cancel_while_reading,
            ],
            grpc.stream_stream_rpc_method_handler: [self.chat, self.chat_and_abort],
        }
        table = {b.__name__: make(b) for make, behaviors in makers.items() for b in behaviors}
        table["bad_request"] = grpc.unary_unary_rpc_method_handler(
            self.echo, request_deserializer=refuse
        )
        table["bad_response"] = grpc.unary_unary_rpc_method_handler(
            self.echo, response_serializer=refuse
        )
        table["bad_requests"] = grpc.stream_unary_rpc_method_handler(
            self.total, request_deserializer=refuse
        )
        table["bad_responses"] = grpc.unary_stream_rpc_method_handler(
            self.count, response_serializer=refuse
        )
        for arity in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            behavior = self.play_stream if arity.endswith("stream") else self.play_unary
            table[f"play_{arity}"] = getattr(grpc, f"{arity}_rpc_method_handler")(
                read_first(behavior) if arity.startswith("stream") else behavior,
                response_serializer=refuse_bad,
            )
        return grpc.method_handlers_generic_handler(NAME, table)


class Ended(NamedTuple):
    """A grpc.Status."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: Any


def pairs(written: list[Any]) -> Any:
    return tuple((k, v.encode("latin-1") if k.endswith("-bin") else v) for k, v in written)


def read_first(behavior: Callable[[bytes, Any], Any]) -> Callable[[Iterator[bytes], Any], Any]:
    """For a stream of requests, of which the first counts."""

    def read(requests: Iterator[bytes], context: Any) -> Any:
        first = next(requests)
        for _ in requests:
            pass
        return behavior(first, context)

    return read


def refuse_bad(response: bytes) -> bytes:
    return refuse(response) if response == b"bad" else response


def refuse(_: object) -> Any:
    raise ValueError("a transform that fails")


def metadata(context: grpc.ServicerContext) -> dict[str, Any]:
    return dict(context.invocation_metadata())
