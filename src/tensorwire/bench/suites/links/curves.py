# SPDX-License-Identifier: Apache-2.0
"""How long messages take on links that differ in their thresholds and in nothing else: one process
has all of them open to one server, and visits them in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
import numpy as np

import tensorwire
from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.measure import WARM_UP_SHARE, quantile, timed
from tensorwire.bench.harness.schedule import Course, Progress, rotated, tour
from tensorwire.bench.harness.tokens import proof
from tensorwire.bench.harness.work import Array, fill, payload
from tensorwire.bench.suites.links.service import DRAIN, TAKE, Server, answer, total
from tensorwire.rpc.options import THRESHOLDS

if TYPE_CHECKING:
    from tensorwire.rpc.choice import Transport

CALM: Final = 0.25
"""The quantile that counts: of the calls of a visit, and of the visits of a link. What else the
host does makes some of them several times as long, and none shorter."""
STREAM_BYTES: Final = 8 << 20
STREAM_MESSAGES: Final = (4, 256)
"""A stream has so many messages, at least and at most, and about so many bytes. To begin one and to
end it takes as long as some 30 small messages."""
CALL_SECONDS: Final = 10.0
"""A call that takes longer has failed."""


@dataclass(frozen=True)
class Shape:
    """Messages to measure. case: ``call``, or ``stream``, of which one message counts. origin:
    ``ordinary`` memory, or ``published`` in the arena. size: bytes of each segment."""

    case: str
    origin: str
    size: int
    segments: int = 1

    def __str__(self) -> str:
        return f"{self.case} of {self.segments} x {self.size} B, {self.origin}"


@dataclass(frozen=True)
class Fixed:
    """Thresholds of a link, in bytes."""

    coalesce: int
    eager: int
    chunk: int

    def options(self) -> list[tuple[str, int]]:
        return list(zip(THRESHOLDS, (self.coalesce, self.eager, self.chunk), strict=True))


Times = dict[tuple[Shape, Fixed], float]
"""Of a call or a message, in microseconds."""
Visits = dict[tuple[Shape, Fixed], list[float]]


@dataclass
class Curves(Course):
    times: Times = field(default_factory=dict)
    visits: Visits = field(default_factory=dict)
    """What the times are of: a figure of each round."""
    address: str = ""
    """The peer's, as gRPC writes it."""


def _memory(shape: Shape) -> tuple[Array, ...]:
    def one() -> Array:
        if shape.origin == "ordinary":
            return fill(np.empty(shape.size // 4, np.float32))
        return tensorwire.publish(fill(tensorwire.empty(shape.size // 4, np.float32)))

    return tuple(one() for _ in range(shape.segments))


class Link:
    """A channel whose link has ``fixed``. AgentError: that cannot be had, or a call has failed."""

    def __init__(self, server: Server, transport: str, fixed: Fixed) -> None:
        self.channel: Any = tensorwire.insecure_channel(
            server.address, fixed.options(), transport=cast("Transport", transport)
        )
        self._server = server
        self._metadata = proof(server.token)
        self._take = self.channel.unary_unary(TAKE)
        self._drain = self.channel.stream_unary(DRAIN)
        try:
            self.address = self._reach(transport)
        except BaseException:
            self.channel.close()
            raise

    def _reach(self, transport: str) -> str:
        """The peer's address, as gRPC writes it."""
        self._answered(self._take, (payload(8),))  # whose token makes the link
        path = self.channel.path()
        if path.transport != transport:
            raise AgentError(f"no link by {transport} to {self._server.address}: {path}")
        return str(path.peer)

    def _answered(self, method: Any, given: Any) -> bytes:
        try:
            return cast("bytes", method(given, timeout=CALL_SECONDS, metadata=self._metadata))
        except grpc.RpcError as error:
            call: Any = error  # the class that grpcio raises is a call, too
            raise AgentError(
                f"{self._server.address}: {call.code().name}: {call.details()}"
            ) from None

    def visit(self, shape: Shape, seconds: float) -> float:
        """Microseconds of a call or a message. AgentError: the answer was wrong."""
        message = _memory(shape)
        expected = total(message)
        count = 1
        call: Callable[[], bytes]
        if shape.case == "call":

            def call() -> bytes:
                return self._answered(self._take, message)

        else:
            least, most = STREAM_MESSAGES
            nbytes = shape.size * shape.segments
            count = max(least, min(most, STREAM_BYTES // nbytes))

            def call() -> bytes:
                return self._answered(self._drain, itertools.repeat(message, count))

        if call() != answer(expected * count):
            raise AgentError(f"a wrong sum came back: {shape}")
        timed(call, seconds * WARM_UP_SHARE)
        return quantile(sorted(timed(call, seconds)), CALM) / count / 1e3


Plan = Sequence[tuple[Shape, Sequence[Fixed]]]
"""What to measure: each shape on some links, which are compared."""


def measure(
    server: Server, transport: str, plan: Plan, rounds: int, seconds: float, progress: Progress
) -> Curves:
    """Visits all links of a shape one after the other, round after round. Raises AgentError. Ctrl-C
    raises KeyboardInterrupt."""
    curves = Curves()

    def turns() -> Iterator[tuple[Shape, Fixed]]:
        for shape, links in plan:
            for turn in range(rounds):
                for fixed in rotated(links, turn):
                    yield shape, fixed

    with _opened(server, transport, {fixed for _, links in plan for fixed in links}) as links:
        curves.address = next(iter(links.values())).address
        tour(
            turns(),
            sum(len(each) for _, each in plan) * rounds,
            lambda turn: f"{transport}: {turn[0]}",
            lambda turn: curves.visits.setdefault(turn, []).append(
                links[turn[1]].visit(turn[0], seconds)
            ),
            curves,
            progress,
        )
    if curves.interrupted:
        raise KeyboardInterrupt
    curves.times = {key: quantile(sorted(each), CALM) for key, each in curves.visits.items()}
    return curves


@contextmanager
def _opened(server: Server, transport: str, each: set[Fixed]) -> Iterator[Mapping[Fixed, Link]]:
    with ExitStack() as stack:
        links = {}
        for fixed in each:
            links[fixed] = Link(server, transport, fixed)
            stack.enter_context(links[fixed].channel)
        yield links
