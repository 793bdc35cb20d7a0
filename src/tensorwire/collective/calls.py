# SPDX-License-Identifier: Apache-2.0
"""Operations as the core takes them, in the order of a group."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Literal, TypeVar

from tensorwire import _core
from tensorwire.collective.arrays import Array, Runs
from tensorwire.collective.errors import TRANSLATED
from tensorwire.collective.work import Line, Lines, Work

T = TypeVar("T")
Op = Literal["sum", "average", "product", "min", "max", "bit_and", "bit_or", "bit_xor", "adasum"]

OPS: Final[dict[str, int]] = {
    "sum": 0,
    "average": 1,
    "product": 2,
    "min": 3,
    "max": 4,
    "bit_and": 5,
    "bit_or": 6,
    "bit_xor": 7,
    "adasum": 8,
}
(
    BARRIER,
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
) = range(9)


def number_of(name: str) -> int:
    try:
        return OPS[name]
    except KeyError:
        raise ValueError(f"op {name!r} is none of {', '.join(OPS)}") from None


class Calls:
    def __init__(self, group: _core.Group, rank: int, size: int, timeout: float | None) -> None:
        self._group = group
        self._size = size
        self.timeout = timeout
        self._line = Line(f"tensorwire rank {rank}")
        self._messages = Lines(f"tensorwire messages of rank {rank}")

    def close(self) -> None:
        """Waits for what has been begun."""
        self._line.close()
        self._messages.close()

    def limit(self, timeout: float | None) -> float | None:
        return self.timeout if timeout is None else timeout

    def run(
        self,
        what: int,
        given: Array | None,
        out: Array | None,
        count: int,
        kind: int,
        timeout: float | None,
        *,
        op: int = 0,
        factor: float = 1.0,
        root: int = 0,
    ) -> None:
        with TRANSLATED:
            self._group.run(
                what,
                given,
                out,
                count,
                kind,
                op,
                factor,
                root,
                self.limit(timeout),
            )

    def exchange(
        self,
        what: int,
        given: Array | None,
        gives: Runs | None,
        out: Array | None,
        takes: Runs | None,
        kind: int,
        timeout: float | None,
        *,
        op: int = 0,
        factor: float = 1.0,
        root: int = 0,
    ) -> None:
        nothing = [(0, 0)] * self._size
        with TRANSLATED:
            self._group.exchange(
                what,
                given,
                gives or nothing,
                out,
                takes or nothing,
                kind,
                op,
                factor,
                root,
                self.limit(timeout),
            )

    def begin(self, run: Callable[[], T], async_op: bool) -> T | Work[T]:
        return self._line.begin(run) if async_op else self._line.in_turn(run)

    def begin_message(self, stream: Hashable, run: Callable[[], T], async_op: bool) -> T | Work[T]:
        """Beside operations, and beside messages of other streams. ``stream``: whose messages stay
        in their order."""
        lines = self._messages
        return lines.begin(stream, run) if async_op else lines.in_turn(stream, run)

    def nothing_before(self, stream: Hashable) -> bool:
        """Whether all messages of a stream that were begun have ended."""
        return self._messages.idle(stream)
