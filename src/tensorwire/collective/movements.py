# SPDX-License-Identifier: Apache-2.0
"""Operations of a group that move arrays as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, overload

import numpy as np

from tensorwire.collective import coalescing, trees
from tensorwire.collective.arrays import (
    TYPES,
    Array,
    apart,
    check_rows,
    check_shape,
    check_writable,
    place_for,
    put_back,
    room,
    rooted,
    row_bytes,
    runs,
    shares_of,
    type_of,
)
from tensorwire.collective.calls import (
    ALL_GATHER,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    GATHER,
    SCATTER,
)
from tensorwire.collective.communicator import Communicator
from tensorwire.collective.work import Work

T = TypeVar("T")


class Movements(Communicator):
    @overload
    def broadcast(
        self,
        array: T,
        root: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T: ...
    @overload
    def broadcast(
        self,
        array: T,
        root: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def broadcast(
        self,
        array: Any,
        root: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The root's array, into those of all. Returns ``array``."""
        if not isinstance(array, np.ndarray):
            call, gives = f"broadcast(root {root})", self.rank == root
            give = self._broadcasting(root, timeout)
            return self._of_tree(call, array, None, give, gives, not gives, "", timeout, async_op)
        kind = type_of(array)
        if self.rank != root:
            check_writable(array, "array")
        elif not array.flags.writeable:
            array = array.copy()  # the core asks for memory that may be written

        def run() -> Any:
            dense = np.ascontiguousarray(array) if array.ndim else array
            self._calls.run(BROADCAST, None, dense, array.size, kind, timeout, root=root)
            if self.rank != root:
                put_back(dense, array)
            return array

        return self._calls.begin(run, async_op)

    @overload
    def all_gather(
        self,
        array: Array,
        *,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Array: ...
    @overload
    def all_gather(
        self,
        array: Array,
        *,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[Array]: ...
    @overload
    def all_gather(
        self,
        array: T,
        *,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T: ...
    @overload
    def all_gather(
        self,
        array: T,
        *,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def all_gather(
        self,
        array: Any,
        *,
        rows: Sequence[int] | None = None,
        out: Array | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The arrays of all ranks, of one shape and type: an array with a first axis of ``size``,
        in the order of ranks. With ``rows``, which says how many each rank gives, an array of all
        rows."""
        if not isinstance(array, np.ndarray):
            gather = partial(self._gathering, rows=rows, out=None, root=None, timeout=timeout)
            return self._of_each("all_gather", array, out, gather, timeout, async_op)
        return self._calls.begin(self._gathering(array, rows, out, None, timeout), async_op)

    @overload
    def gather(
        self,
        array: Array,
        *,
        root: int = ...,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Array | None: ...
    @overload
    def gather(
        self,
        array: Array,
        *,
        root: int = ...,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[Array | None]: ...
    @overload
    def gather(
        self,
        array: T,
        *,
        root: int = ...,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T | None: ...
    @overload
    def gather(
        self,
        array: T,
        *,
        root: int = ...,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T | None]: ...
    def gather(
        self,
        array: Any,
        *,
        root: int = 0,
        rows: Sequence[int] | None = None,
        out: Array | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """As :meth:`all_gather` on the root; None elsewhere."""
        if not isinstance(array, np.ndarray):
            call = f"gather(root {root})"
            gather = partial(self._gathering, rows=rows, out=None, root=root, timeout=timeout)
            return self._of_each(call, array, out, gather, timeout, async_op)
        return self._calls.begin(self._gathering(array, rows, out, root, timeout), async_op)

    @overload
    def scatter(
        self,
        out: T,
        array: Any = ...,
        *,
        root: int = ...,
        rows: Sequence[int] | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T: ...
    @overload
    def scatter(
        self,
        out: T,
        array: Any = ...,
        *,
        root: int = ...,
        rows: Sequence[int] | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def scatter(
        self,
        out: Any,
        array: Any = None,
        *,
        root: int = 0,
        rows: Sequence[int] | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Of the root's ``array``, whose first axis has ``size`` elements, the one of this rank,
        into ``out``. With ``rows``, which says how many each rank gets, the array has all of them.
        Returns ``out``."""
        if not isinstance(out, np.ndarray):
            scatter = partial(self._scattering, root=root, rows=rows, timeout=timeout)
            run = trees.scatter(self, out, array, root, self._gathers(timeout), scatter)
            return self._calls.begin(run, async_op)
        return self._calls.begin(self._scattering(out, array, root, rows, timeout), async_op)

    @overload
    def all_to_all(
        self,
        array: T,
        gives: Sequence[int] | None = ...,
        takes: Sequence[int] | None = ...,
        *,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T: ...
    @overload
    def all_to_all(
        self,
        array: T,
        gives: Sequence[int] | None = ...,
        takes: Sequence[int] | None = ...,
        *,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def all_to_all(
        self,
        array: Any,
        gives: Sequence[int] | None = None,
        takes: Sequence[int] | None = None,
        *,
        out: Array | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Rows of ``array`` for each rank, in order, for rows from each rank. ``gives`` and
        ``takes`` say how many; without them all ranks give the same number."""
        if not isinstance(array, np.ndarray):
            exchange = partial(
                self._exchanging, gives=gives, takes=takes, out=None, timeout=timeout
            )
            return self._of_each("all_to_all", array, out, exchange, timeout, async_op)
        return self._calls.begin(self._exchanging(array, gives, takes, out, timeout), async_op)

    @overload
    def broadcast_many(
        self,
        arrays: Sequence[Array],
        root: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> list[Array]: ...
    @overload
    def broadcast_many(
        self,
        arrays: Sequence[Array],
        root: int = ...,
        *,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[list[Array]]: ...
    def broadcast_many(
        self,
        arrays: Sequence[Array],
        root: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> list[Array] | Work[list[Array]]:
        """:meth:`broadcast` of each array, as :meth:`all_reduce_many` has it."""
        many = list(arrays)
        coalescing.check(many)
        broadcast = self._broadcasting(root, timeout)

        def run() -> list[Array]:
            coalescing.in_place(many, broadcast, together=True)
            return many

        return self._calls.begin(run, async_op)

    @overload
    def all_gather_many(
        self,
        arrays: Sequence[Array],
        *,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> list[Array]: ...
    @overload
    def all_gather_many(
        self,
        arrays: Sequence[Array],
        *,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[list[Array]]: ...
    def all_gather_many(
        self,
        arrays: Sequence[Array],
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> list[Array] | Work[list[Array]]:
        """:meth:`all_gather` of each array: small ones of one type go as one. The ranks give as
        many arrays of the same shapes and types. ``timeout`` is for each operation that they make
        up."""
        many = list(arrays)
        kinds = coalescing.kinds(many)

        def gather(row: Array) -> Array:
            rows = np.empty((self.size, row.size), row.dtype)
            self._calls.run(ALL_GATHER, row, rows, row.size, kinds[row.dtype], timeout)
            return rows

        def run() -> list[Array]:
            found = coalescing.by_rows([each.reshape(1, -1) for each in many], gather, True)
            return [
                rows.reshape(self.size, *each.shape) for rows, each in zip(found, many, strict=True)
            ]

        return self._calls.begin(run, async_op)

    @overload
    def barrier(self, *, timeout: float | None = ..., async_op: Literal[False] = ...) -> None: ...
    @overload
    def barrier(self, *, timeout: float | None = ..., async_op: Literal[True]) -> Work[None]: ...
    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work[None] | None:
        """Returns, or the Work ends, once all ranks have called it."""

        def run() -> None:
            self._calls.run(BARRIER, None, None, 0, TYPES["uint8"], timeout)

        return self._calls.begin(run, async_op)

    def _broadcasting(self, root: int, timeout: float | None) -> Callable[[Array], None]:
        def broadcast(array: Array) -> None:
            dense = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            self._calls.run(BROADCAST, None, dense, array.size, type_of(array), timeout, root=root)
            put_back(dense, array)

        return broadcast

    def _gathering(
        self,
        array: Array,
        rows: Sequence[int] | None,
        out: Array | None,
        root: int | None,
        timeout: float | None,
    ) -> Callable[[], Array | None]:
        """A gather to the root; None: to all."""
        kind = type_of(array)
        if rows is not None:
            check_rows(rows, array, self.rank, self.size, "array")
        what, at = (ALL_GATHER, 0) if root is None else (GATHER, root)

        def give() -> None:
            dense = np.ascontiguousarray(array)
            if rows is None:
                self._calls.run(what, dense, None, array.size, kind, timeout, root=at)
            else:
                gives = rooted((0, dense.nbytes), at, self.size)
                self._calls.exchange(what, dense, gives, None, None, kind, timeout, root=at)

        if root is not None and self.rank != root:
            return give
        shape = (self.size, *array.shape) if rows is None else (sum(rows), *array.shape[1:])
        to = place_for(shape, array.dtype, out)

        def run() -> Array:
            into = room(to)
            if rows is None:
                given = apart(array, into, (array, into[self.rank : self.rank + 1]))
                self._calls.run(what, given, into, array.size, kind, timeout, root=at)
            else:
                given = apart(array, into)
                mine = (0, given.nbytes)
                gives = [mine] * self.size if root is None else rooted(mine, at, self.size)
                takes = runs(rows, row_bytes(array))
                self._calls.exchange(what, given, gives, into, takes, kind, timeout, root=at)
            put_back(into, to)
            return to

        return run

    def _scattering(
        self,
        out: Array,
        array: Array | None,
        root: int,
        rows: Sequence[int] | None,
        timeout: float | None,
    ) -> Callable[[], Array]:
        kind = type_of(out)
        check_writable(out, "out")
        if rows is not None:
            check_rows(rows, out, self.rank, self.size, "out")
        if self.rank == root:
            if array is None:
                raise ValueError("the root of a scatter gives an array")
            shape = (self.size, *out.shape) if rows is None else (sum(rows), *out.shape[1:])
            check_shape(array, shape, out.dtype, "array")

        def run() -> Array:
            into = room(out)
            given = None
            if self.rank == root:
                assert array is not None
                own = array[root : root + 1] if rows is None else None
                given = apart(array, into, None if own is None else (own, into))
            if rows is None:
                self._calls.run(SCATTER, given, into, out.size, kind, timeout, root=root)
            else:
                gives = None if given is None else runs(rows, row_bytes(out))
                takes = rooted((0, into.nbytes), root, self.size)
                self._calls.exchange(SCATTER, given, gives, into, takes, kind, timeout, root=root)
            put_back(into, out)
            return out

        return run

    def _exchanging(
        self,
        array: Array,
        gives: Sequence[int] | None,
        takes: Sequence[int] | None,
        out: Array | None,
        timeout: float | None,
    ) -> Callable[[], Array]:
        kind = type_of(array)
        given = shares_of(array, gives, self.size, "gives")
        taken = given if takes is None and gives is None else takes
        if taken is None or len(taken) != self.size or min(taken) < 0:
            raise ValueError(f"takes needs {self.size} numbers of rows")
        shape = (sum(taken), *array.shape[1:])
        row, to = row_bytes(array), place_for(shape, array.dtype, out)

        def run() -> Array:
            into = room(to)
            dense = apart(array, into)
            self._calls.exchange(
                ALL_TO_ALL, dense, runs(given, row), into, runs(taken, row), kind, timeout
            )
            put_back(into, to)
            return to

        return run
