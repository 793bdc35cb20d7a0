# SPDX-License-Identifier: Apache-2.0
"""A parameter server and its clients, each a process that runs this module.

Pull answers with all parameters, Push carries one gradient for each of them and applies it. The
service is the same for both libraries; what differs is how arrays become messages, and that is the
whole change that a user makes:

* grpcio takes bytes: the arrays are joined before each send and cut apart after each receive;
* tensorwire takes the list of arrays. Each version of the parameters, and the gradients, are born
  in the arena and published, so that they travel without a copy.

Arguments: ``server`` or ``client``, ``grpcio`` or ``tensorwire``, the model, the unix socket of
the process that started this one.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import grpc
import numpy as np

from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.harness.work import Array, view
from tensorwire.bench.inventories import load
from tensorwire.bench.suites.rpc.messages import OPTIONS

SERVICE = "tensorwire.bench.Parameters"
WORKERS = 4
GRADIENT = 1.0
"""Of every element, so that a parameter's value tells how many pushes were applied."""

Arrays = Sequence[Array]


class Joined:
    """Arrays over grpcio, whose messages are bytes."""

    library = "grpcio"
    in_place = True
    """Whether an update writes to the version that pulls read."""

    def __init__(self, elements: Sequence[int]) -> None:
        self.bounds = [0, *np.cumsum(elements).tolist()]
        self.serialize: Callable[[Arrays], Any] = self.join
        self.deserialize: Callable[[Any], Arrays] = self.cut

    def join(self, arrays: Arrays) -> bytes:
        return b"".join(array.data for array in arrays)

    def cut(self, message: bytes) -> Arrays:
        whole = view(message)
        return [whole[begin:end] for begin, end in zip(self.bounds, self.bounds[1:], strict=False)]

    def born(self, arrays: Iterable[Array]) -> Arrays:
        return list(arrays)

    def applied(self, parameters: Arrays, gradients: Arrays) -> Arrays:
        """The next version of the parameters: in place, as nobody else reads these."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            np.add(parameter, gradient, out=parameter)
        return parameters

    def empty(self, elements: int) -> Array:
        """Memory for an array that is to be ``born``."""
        return np.empty(elements, np.float32)

    def server(self, workers: int = WORKERS) -> grpc.Server:
        return grpc.server(ThreadPoolExecutor(workers), options=OPTIONS)

    def channel(self, address: str) -> AbstractContextManager[grpc.Channel]:
        channel: AbstractContextManager[grpc.Channel] = grpc.insecure_channel(
            address, options=OPTIONS
        )
        return channel

    def travelled(self, channel: grpc.Channel) -> tuple[str, int | None]:
        """The path taken, and how many bytes the library itself has copied (None: unknown)."""
        return "grpc", None


class Segments(Joined):
    """Arrays over tensorwire, whose messages are lists of arrays."""

    library = "tensorwire"
    in_place = False

    def __init__(self, elements: Sequence[int]) -> None:
        import tensorwire
        from tensorwire import rpc

        super().__init__(elements)
        self.tensorwire = tensorwire
        self.serialize = tuple
        self.deserialize = rpc.segments(self.views)

    def views(self, buffers: Sequence[Any]) -> Arrays:
        # Stock gRPC, where a call may end up, joins what was sent.
        if len(buffers) < len(self.bounds) - 1:
            return self.cut(buffers[0])
        return [view(buffer) for buffer in buffers]

    def born(self, arrays: Iterable[Array]) -> Arrays:
        return [self.tensorwire.publish(array) for array in arrays]

    def applied(self, parameters: Arrays, gradients: Arrays) -> Arrays:
        """The next version of the parameters: new arrays, for clients may read the old ones."""
        fresh = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            result = self.tensorwire.empty_like(parameter, timeout=None)
            np.add(parameter, gradient, out=result)
            fresh.append(self.tensorwire.publish(result))
        return fresh

    def empty(self, elements: int) -> Array:
        found: Array = self.tensorwire.empty(elements, np.float32, timeout=None)
        return found

    def server(self, workers: int = WORKERS) -> grpc.Server:
        return self.tensorwire.server(ThreadPoolExecutor(workers), options=OPTIONS)

    def channel(self, address: str) -> AbstractContextManager[grpc.Channel]:
        return self.tensorwire.insecure_channel(address, options=OPTIONS)

    def travelled(self, channel: Any) -> tuple[str, int | None]:
        link = channel.stats()["link"]
        return channel.path().transport, link["copied_bytes"] if link else None


LIBRARIES: dict[str, type[Joined]] = {kind.library: kind for kind in (Joined, Segments)}


class Parameters:
    """The service. Pulls see whole versions: an update in place is waited for."""

    def __init__(self, wire: Joined, elements: Sequence[int]) -> None:
        self.wire = wire
        self.lock = threading.Lock()
        self.current = wire.born(np.zeros(count, np.float32) for count in elements)

    def pull(self, request: bytes, context: grpc.ServicerContext) -> Any:
        with self.lock if self.wire.in_place else nullcontext():
            return self.wire.serialize(self.current)

    def push(self, gradients: Arrays, context: grpc.ServicerContext) -> bytes:
        with self.lock:
            self.current = self.wire.applied(self.current, gradients)
        return b""

    def handlers(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Pull": unary(self.pull),
                "Push": unary(self.push, request_deserializer=self.wire.deserialize),
            },
        )


def serve(control: Control, wire: Joined, elements: Sequence[int]) -> None:
    server = wire.server()
    server.add_generic_rpc_handlers((Parameters(wire, elements).handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    control.send({"role": "server", "pid": os.getpid(), "address": f"127.0.0.1:{port}"})
    control.receive()  # returns when the starter hangs up
    server.stop(None).wait()


def train(control: Control, wire: Joined, elements: Sequence[int]) -> None:
    """Pulls and pushes for as long as asked, and reports seconds and counts; then, asked again,
    the smallest and the largest of all parameters."""
    control.send({"role": "client", "pid": os.getpid()})
    message = control.receive()
    gradients = wire.born(np.full(count, GRADIENT, np.float32) for count in elements)
    with wire.channel(message["address"]) as channel:
        pull: grpc.UnaryUnaryMultiCallable[bytes, Arrays] = channel.unary_unary(
            f"/{SERVICE}/Pull", response_deserializer=wire.deserialize
        )
        push: grpc.UnaryUnaryMultiCallable[Arrays, bytes] = channel.unary_unary(
            f"/{SERVICE}/Push", request_serializer=wire.serialize
        )
        pull(b"")
        control.send({"path": wire.travelled(channel)[0]})
        if not (message := control.receive()):
            return
        copied_before = wire.travelled(channel)[1]
        pulls, pushes = [], []
        begin = now = time.perf_counter()
        while now < begin + message["seconds"]:
            pull(b"")
            between = time.perf_counter()
            push(gradients)
            after = time.perf_counter()
            pulls.append(between - now)
            pushes.append(after - between)
            now = after
        path, copied = wire.travelled(channel)
        control.send(
            {
                "steps": len(pulls),
                "seconds": now - begin,
                "pull_s": statistics.median(pulls),
                "push_s": statistics.median(pushes),
                "path": path,
                "copied_bytes": None if copied is None else copied - (copied_before or 0),
            }
        )
        if not control.receive():
            return
        final = pull(b"")
        control.send(
            {
                "minimum": float(min(array.min() for array in final)),
                "maximum": float(max(array.max() for array in final)),
            }
        )
        control.receive()


def main(arguments: list[str]) -> None:
    role, library, model, path = arguments
    with conversation(path) as control:
        elements = [tensor.elements for tensor in load(model)]
        wire = LIBRARIES[library](elements)
        (serve if role == "server" else train)(control, wire, elements)


if __name__ == "__main__":
    main(sys.argv[1:])
