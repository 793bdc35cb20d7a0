# SPDX-License-Identifier: Apache-2.0
"""The service under torment, and calls of it whose every byte is checked.

A request is its CRC and then a body that no other request has; the server checks it and answers
with the same. Arrays come back with one added to each element.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, cast

import grpc
import numpy as np
from tests.torture.processes import Conversation

import tensorwire
from tensorwire import tensors

NAME: Final = "torture.Service"
TRANSPORTS: Final = ("shm", "tcp", "grpc")
CALL_SECONDS: Final = 20.0
"""Of a good call: it takes milliseconds, unless something is wrong."""
MIB: Final = 1 << 20
_HEAP_FIELDS: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)
_BLOCK: Final = random.Random(0).randbytes(1 << 16)
_ZEROS: Final = bytes(4 << 20)


class WrongBytesError(Exception):
    """The worst that can happen."""


def sealed(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "little") + body


def unsealed(message: bytes) -> bytes:
    if zlib.crc32(message[4:]) != int.from_bytes(message[:4], "little"):
        raise WrongBytesError(f"a message of {len(message)} bytes has changed on its way")
    return message[4:]


def body(rng: random.Random, size: int) -> bytes:
    """Bytes that nobody else sends, quickly made."""
    start = rng.randrange(len(_BLOCK) - 32)
    tail = (_BLOCK[start:] + _BLOCK * (size // len(_BLOCK) + 1))[: max(0, size - 16)]
    return rng.randbytes(min(size, 16)) + tail


def made(size: int, key: int) -> bytes:
    """The reply to ``Make``."""
    return body(random.Random(key), size)


# --------------------------------------------------------------------------------------- the server


def _echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    try:
        return sealed(unsealed(request))
    except WrongBytesError as error:
        context.abort(grpc.StatusCode.DATA_LOSS, str(error))


def _make(request: bytes, context: grpc.ServicerContext) -> bytes:
    size, key = map(int, request.split())
    return sealed(made(size, key))


def _fill(request: bytes, context: grpc.ServicerContext) -> Any:
    """A reply that costs the handler nothing: what it costs then is the runtime's."""
    return memoryview(_ZEROS)[: int(request)]


def _add(request: Any, context: grpc.ServicerContext) -> Any:
    return {"array": request["array"] + np.uint8(1)}


def _chat(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    for request in requests:
        yield _echo(request, context)


def _wait(request: bytes, context: grpc.ServicerContext) -> bytes:
    time.sleep(float(request))
    return request


def handlers() -> grpc.GenericRpcHandler:
    table: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
        "Make": grpc.unary_unary_rpc_method_handler(_make),
        "Fill": grpc.unary_unary_rpc_method_handler(_fill),
        "Add": grpc.unary_unary_rpc_method_handler(
            _add,
            request_deserializer=tensors.deserializer,
            response_serializer=cast("Any", tensors.serializer),
        ),
        "Chat": grpc.stream_stream_rpc_method_handler(_chat),
        "Wait": grpc.unary_unary_rpc_method_handler(_wait),
    }
    return grpc.method_handlers_generic_handler(NAME, table)


UNLIMITED: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


def serve(talk: Conversation, order: dict[str, Any]) -> None:
    """A server. Says its port, and then what it is asked, until the conversation ends."""
    # Received memory that is kept for reuse would hide what is lost.
    os.environ.setdefault("TENSORWIRE_POOL_BYTES", str(8 << 20))
    pool = ThreadPoolExecutor(order.get("workers", 8))
    server = tensorwire.server(pool, options=UNLIMITED)
    server.add_generic_rpc_handlers((handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    if order.get("until interrupted"):
        # A campaign in the background of a shell has inherited that it is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    talk.say(port)
    if order.get("until interrupted"):
        try:
            server.wait_for_termination()
        except KeyboardInterrupt:
            server.stop(0).wait()
        return
    facts: dict[str, Callable[[], Any]] = {
        "stats": server.stats,
        "arena": tensorwire.arena_stats,
        "heap": heap,
    }
    try:
        while True:
            asked = talk.hear(3600)
            if isinstance(asked, dict):
                limit(asked)
                talk.say(True)
            else:
                talk.say(facts[asked]())
    finally:
        server.stop(1).wait()


class _Mallinfo(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _HEAP_FIELDS]


def heap() -> dict[str, float]:
    """What glibc's allocator holds for this process, in MiB: got from the system in its arenas, got
    as mappings of single blocks, and of all that what the program uses."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Mallinfo
    found = ask()
    return {
        "arenas": found.arena / MIB,
        "mapped": found.hblkhd / MIB,
        "used": (found.uordblks + found.hblkhd) / MIB,
    }


def limit(limits: dict[str, int]) -> None:
    """Sets soft limits of this process by their names in ``resource``; -1: as much as may be."""
    for name, value in limits.items():
        which = getattr(resource, name)
        most = resource.getrlimit(which)[1]
        resource.setrlimit(which, (most if value < 0 else value, most))


# --------------------------------------------------------------------------------------- the client


def channel(target: str, transport: str) -> Any:
    return tensorwire.insecure_channel(target, transport=cast("Any", transport), options=UNLIMITED)


class Calls:
    """Checked calls on a channel. They raise grpc.RpcError, or WrongBytesError."""

    def __init__(self, channel: Any, seed: int) -> None:
        self.rng = random.Random(seed)
        self._echo = channel.unary_unary(f"/{NAME}/Echo")
        self._make = channel.unary_unary(f"/{NAME}/Make")
        self._add = channel.unary_unary(
            f"/{NAME}/Add",
            request_serializer=tensors.serializer,
            response_deserializer=tensors.deserializer,
        )
        self._chat = channel.stream_stream(f"/{NAME}/Chat")
        self._wait = channel.unary_unary(f"/{NAME}/Wait")

    def echo(self, size: int, timeout: float = CALL_SECONDS) -> None:
        sent = body(self.rng, size)
        _same(unsealed(self._echo(sealed(sent), timeout=timeout)), sent)

    def make(self, size: int, timeout: float = CALL_SECONDS) -> None:
        key = self.rng.getrandbits(32)
        got = self._make(f"{size} {key}".encode(), timeout=timeout)
        _same(unsealed(got), made(size, key))

    def add(self, size: int, timeout: float = CALL_SECONDS) -> Any:
        """The reply, which may be a view of the server's memory."""
        sent = np.frombuffer(body(self.rng, size), np.uint8)
        got = self._add({"array": sent}, timeout=timeout)["array"]
        if not np.array_equal(got, sent + np.uint8(1)):
            raise WrongBytesError(f"an array of {size} bytes has changed on its way")
        return got

    def chat(self, count: int, size: int, timeout: float = CALL_SECONDS) -> None:
        sent = [body(self.rng, size) for _ in range(count)]
        replies = self._chat((sealed(one) for one in sent), timeout=timeout)
        got = [unsealed(one) for one in replies]
        if got != sent:
            raise WrongBytesError(f"a stream of {count} messages has changed on its way")

    def give_up(self, size: int, rng: random.Random) -> None:
        """A call that is cancelled, or whose deadline passes, wherever it is."""
        future = self._make.future(f"{size} 1".encode(), timeout=rng.uniform(0.001, 0.02))
        if rng.random() < 0.5:
            future.cancel()
        with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError):
            _same(unsealed(future.result()), made(size, 1))

    def wait(self, seconds: float, timeout: float) -> None:
        self._wait(str(seconds).encode(), timeout=timeout)

    def any(self, timeout: float = CALL_SECONDS, largest: int = 1 << 20) -> None:
        """One call of any kind."""
        kind = self.rng.random()
        size = min(largest, int(2 ** self.rng.uniform(3, 20)))
        if kind < 0.4:
            self.echo(size, timeout)
        elif kind < 0.7:
            self.add(size, timeout)
        elif kind < 0.9:
            self.make(size, timeout)
        else:
            self.chat(self.rng.randrange(1, 6), min(size, 65536), timeout)


def _same(got: bytes, wanted: bytes) -> None:
    if got != wanted:
        raise WrongBytesError(f"{len(got)} bytes instead of the {len(wanted)} that were due")


def sentence(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError) and callable(getattr(error, "code", None)):
        return f"{error.code().name}: {str(error.details())[:160]}"
    return f"{type(error).__name__}: {error}"[:200]


def fault(do: Callable[[], object]) -> str:
    """What went wrong, empty if nothing did."""
    try:
        do()
    except Exception as error:
        return sentence(error)
    return ""
