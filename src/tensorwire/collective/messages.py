# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks of a group, which take no turns with its operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, Literal, TypeVar, overload

import numpy as np

from tensorwire import _core
from tensorwire.collective import trees
from tensorwire.collective.arrays import Array, check_writable, put_back, room
from tensorwire.collective.communicator import Communicator
from tensorwire.collective.errors import TRANSLATED
from tensorwire.collective.work import Work

T = TypeVar("T")

_AT_ONCE: Final = 4096
"""Bytes up to which a message is copied when it is begun."""


class Messages(Communicator):
    @overload
    def send(
        self,
        array: Any,
        rank: int,
        tag: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def send(
        self,
        array: Any,
        rank: int,
        tag: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[None]: ...
    def send(
        self,
        array: Any,
        rank: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Work[None] | None:
        """An array to another rank, which receives it by its tag. Messages of one rank and tag stay
        in their order; others, and operations, go on beside them. RuntimeError where messages of
        512 ranks and tags have been begun by ``async_op`` and none has ended."""
        if isinstance(array, np.ndarray):
            leaves = [array]
        else:
            leaves = [leaf.array for leaf in trees.Tree(array).leaves]

        def run() -> None:
            for leaf in leaves:
                with TRANSLATED:
                    self._group.send(
                        rank, tag, np.ascontiguousarray(leaf), self._calls.limit(timeout)
                    )

        stream = ("to", rank, tag)
        if async_op and len(leaves) == 1 and leaves[0].nbytes <= _AT_ONCE:
            work = self._begun_at_once(leaves[0], rank, tag, stream)
            if work is not None:
                return work
        return self._calls.begin_message(stream, run, async_op)

    def _begun_at_once(
        self, leaf: Array, rank: int, tag: int, stream: Hashable
    ) -> Work[None] | None:
        """Without a thread, where nothing is to be waited for. What goes wrong is told by whoever
        tries it again."""
        if not self._calls.nothing_before(stream):
            return None
        try:
            self._group.send(rank, tag, np.ascontiguousarray(leaf), 0.0)
        except _core.StatusError:
            return None
        work: Work[None] = Work()
        work.end(None)
        return work

    @overload
    def receive(
        self,
        out: T,
        rank: int,
        tag: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T: ...
    @overload
    def receive(
        self,
        out: T,
        rank: int,
        tag: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def receive(
        self,
        out: Any,
        rank: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The next array of that tag from another rank, into ``out``, which has its size. Returns
        ``out``. RuntimeError as :meth:`send`."""

        def receive(each: Array) -> None:
            into = room(each)
            with TRANSLATED:
                self._group.receive(rank, tag, into, self._calls.limit(timeout))
            put_back(into, each)

        run: Callable[[], Any]
        if isinstance(out, np.ndarray):
            check_writable(out, "out")

            def run() -> Array:
                receive(out)
                return out
        else:
            run = trees.received(out, receive)
        return self._calls.begin_message(("from", rank, tag), run, async_op)

    @overload
    def receive_any(
        self,
        out: Array,
        tag: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> int: ...
    @overload
    def receive_any(
        self,
        out: Array,
        tag: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[int]: ...
    def receive_any(
        self,
        out: Array,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> int | Work[int]:
        """The first array of that tag that any other rank has sent, into ``out``, which has its
        size. Returns that rank. Receives of the tag that begin meanwhile wait for this one.
        RuntimeError as :meth:`send`."""
        check_writable(out, "out")

        def run() -> int:
            into = room(out)
            with TRANSLATED:
                sender = self._group.receive_any(tag, into, self._calls.limit(timeout))
            put_back(into, out)
            return sender

        return self._calls.begin_message(("from any", tag), run, async_op)
