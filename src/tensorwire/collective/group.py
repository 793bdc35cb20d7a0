# SPDX-License-Identifier: Apache-2.0
"""A group of ranks, and its operations on arrays and trees of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast, overload

import numpy as np

from tensorwire import _core
from tensorwire.collective import coalescing, trees
from tensorwire.collective.arrays import (
    TYPES,
    Array,
    apart,
    check_rows,
    check_shape,
    check_writable,
    memory,
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
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    Calls,
    Op,
    number_of,
)
from tensorwire.collective.errors import translated
from tensorwire.collective.stores import FileStore, PrefixStore, RpcStore, Store
from tensorwire.collective.work import Work
from tensorwire.log import LOGGER

T = TypeVar("T")
"""An array, of any framework, or a tree of them."""


@dataclass(frozen=True)
class Origin:
    """Where a group comes from: the store of the first one of its line, how many times it has been
    made anew since, and the address that was given for this rank."""

    store: Store
    epoch: int
    host: str | None

    def meeting(self) -> Store:
        """Where the ranks of the group find each other."""
        return PrefixStore(f"epoch-{self.epoch}", self.store) if self.epoch else self.store


class Group:
    """Ranks that call the same operations in the same order, each from a process of its own.

    Arrays are those of NumPy, PyTorch, TensorFlow or JAX in the memory of this host, or dicts,
    lists and tuples of them, nested, which are the same on all ranks. What NumPy and PyTorch have,
    and variables of TensorFlow, are written in place; of the others results are new. Elements are
    any of: float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 to int64 uint8 to uint64
    bool. Arrays may have any strides: what is not C-contiguous goes by a
    copy. An ``out`` that shares memory with the input is written as if it did not. Floats of 16 and
    8 bits are added up in float32. Results have the same bits on all ranks, and the same from run
    to run.

    Each operation takes ``timeout``, seconds; None: that of the group. One that fails raises a
    :class:`~tensorwire.collective.GroupError` and ends the group for all ranks: leave it, and join
    another one. With ``async_op=True`` it returns a :class:`~tensorwire.collective.Work` at once;
    until that has ended its arrays belong to it. ValueError and TypeError are for arguments that
    are wrong by themselves: nothing has happened.

    Thread-safe; threads take turns, in an order that has to be the same on all ranks.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        host: str | None = None,
        timeout: float | None = 1800.0,
        origin: Origin | None = None,
    ) -> None:
        """Returns once all ranks have come. See :func:`join`. ``origin``: of one that is made
        anew."""
        with translated():
            self._group = _core.Group(store, rank, size, host or "", timeout)
        self.rank: Final = rank
        """Of this process: 0 to ``size`` - 1."""
        self.size: Final = size
        """How many ranks there are."""
        self.fabric: Final = self._group.fabric
        """How data moves, for people: ``shared memory``, ``messages`` where no two ranks have
        any in common, or ``shared memory and messages``; empty where there is one rank."""
        self.tuned, why_not = self._group.tuned
        """Whether the table of ``tensorwire tune`` decides which ways operations go."""
        if why_not:
            LOGGER.warning("%s", why_not)
        self.origin: Final = origin or Origin(store, 0, host)
        self._splitting = threading.Lock()  # guards what follows
        self._splits = 0
        self._calls = Calls(self._group, rank, size, timeout)

    @property
    def timeout(self) -> float | None:
        """Of each operation that gives none, in seconds; None: no limit."""
        return self._calls.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._calls.timeout = seconds

    def __enter__(self) -> Group:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:  # the others would wait for what this rank does no more
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def close(self) -> None:
        """Leaves the group, once what has been begun has ended. A rank that still needs something
        of this one gets :class:`~tensorwire.collective.RankLostError`."""
        self._calls.close()
        self._group.leave()

    def gone(self, rank: int) -> bool:
        """Whether the process of a rank is known to be gone, or has left the group; also once the
        group has failed."""
        return self._group.gone(rank)

    def abort(self, why: str) -> None:
        """Ends the group for all ranks, from any thread: operations raise GroupError with
        ``why``."""
        self._group.abort(why)

    # ---- operations ----

    @overload
    def all_reduce(
        self,
        array: T,
        op: Op = ...,
        *,
        factor: float = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T: ...
    @overload
    def all_reduce(
        self,
        array: T,
        op: Op = ...,
        *,
        factor: float = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def all_reduce(
        self,
        array: Any,
        op: Op = "sum",
        *,
        factor: float = 1.0,
        out: Array | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The elements of all ranks' arrays, reduced, into ``out``, or in place. The arrays have
        the same shape and type on all ranks. Returns ``out``, or ``array``.

        ``factor``: of this rank, by which its array is multiplied before it is added; of floats,
        for "sum" and "average". "adasum", of floats of 16 bits and more, takes arrays as vectors:
        what two of them have in common counts once (S. Maleki et al., "Scaling distributed training
        with adaptive summation", MLSys 2021)."""
        if not isinstance(array, np.ndarray):
            call = f"all_reduce({op})"
            reduce = self._reducing(ALL_REDUCE, op, factor, 0, timeout)
            return self._of_tree(call, array, out, reduce, True, True, op, timeout, async_op)
        into = array if out is None else out
        check_shape(into, array.shape, array.dtype, "out")
        return self._reduction(ALL_REDUCE, array, into, op, factor, 0, timeout, async_op)

    @overload
    def reduce(
        self,
        array: T,
        op: Op = ...,
        *,
        root: int = ...,
        factor: float = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T: ...
    @overload
    def reduce(
        self,
        array: T,
        op: Op = ...,
        *,
        root: int = ...,
        factor: float = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def reduce(
        self,
        array: Any,
        op: Op = "sum",
        *,
        root: int = 0,
        factor: float = 1.0,
        out: Array | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """As :meth:`all_reduce`, on the root alone; other ranks' arrays stay as they are."""
        if not isinstance(array, np.ndarray):
            call, gets = f"reduce({op}, root {root})", self.rank == root
            reduce = self._reducing(REDUCE, op, factor, root, timeout)
            return self._of_tree(call, array, out, reduce, True, gets, op, timeout, async_op)
        into = array if out is None else out
        check_shape(into, array.shape, array.dtype, "out")
        return self._reduction(REDUCE, array, into, op, factor, root, timeout, async_op)

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
    ) -> Array: ...
    @overload
    def all_gather(
        self,
        array: T,
        *,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
    ) -> T: ...
    def all_gather(
        self,
        array: Any,
        *,
        rows: Sequence[int] | None = None,
        out: Array | None = None,
        timeout: float | None = None,
    ) -> Any:
        """The arrays of all ranks, of one shape and type: an array with a first axis of ``size``,
        in the order of ranks. With ``rows``, which says how many each rank gives, an array of all
        rows."""
        if not isinstance(array, np.ndarray):
            return self._of_each(
                "all_gather",
                array,
                out,
                lambda each: self.all_gather(each, rows=rows, timeout=timeout),
            )
        return self._gathering(ALL_GATHER, array, rows, out, 0, timeout)

    @overload
    def gather(
        self,
        array: Array,
        *,
        root: int = ...,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
    ) -> Array | None: ...
    @overload
    def gather(
        self,
        array: T,
        *,
        root: int = ...,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
    ) -> T | None: ...
    def gather(
        self,
        array: Any,
        *,
        root: int = 0,
        rows: Sequence[int] | None = None,
        out: Array | None = None,
        timeout: float | None = None,
    ) -> Any:
        """As :meth:`all_gather` on the root; None elsewhere."""
        if not isinstance(array, np.ndarray):
            return self._of_each(
                f"gather(root {root})",
                array,
                out,
                lambda each: self.gather(each, root=root, rows=rows, timeout=timeout),
            )
        if self.rank == root:
            return self._gathering(GATHER, array, rows, out, root, timeout)
        kind = type_of(array)

        def run() -> None:
            dense = np.ascontiguousarray(array)
            if rows is None:
                self._calls.run(GATHER, dense, None, array.size, kind, timeout, root=root)
            else:
                gives = rooted((0, dense.nbytes), root, self.size)
                self._calls.exchange(GATHER, dense, gives, None, None, kind, timeout, root=root)

        if rows is not None:
            check_rows(rows, array, self.rank, self.size, "array")
        self._calls.in_turn(run)
        return None

    def scatter(
        self,
        out: T,
        array: Any = None,
        *,
        root: int = 0,
        rows: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> T:
        """Of the root's ``array``, whose first axis has ``size`` elements, the one of this rank,
        into ``out``. With ``rows``, which says how many each rank gets, the array has all of them.
        Returns ``out``."""
        if not isinstance(out, np.ndarray):
            return trees.scatter(
                self,
                out,
                array,
                root,
                lambda into, each: self.scatter(into, each, root=root, rows=rows, timeout=timeout),
            )
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

        return cast("T", self._calls.in_turn(run))

    def reduce_scatter(
        self,
        array: T,
        op: Op = "sum",
        *,
        factor: float = 1.0,
        rows: Sequence[int] | None = None,
        out: Array | None = None,
        timeout: float | None = None,
    ) -> T:
        """Of the reduction of all ranks' arrays, whose first axis is a multiple of ``size``, the
        share of this rank: rows rank * n to (rank + 1) * n of ``size`` * n. With ``rows``, which
        says how many each rank gets, in order, they may differ. ``factor`` is as in
        :meth:`all_reduce`; "adasum" takes each share as a vector."""
        if not isinstance(array, np.ndarray):
            return self._of_each(
                f"reduce_scatter({op})",
                array,
                out,
                lambda each: self.reduce_scatter(
                    each, op, factor=factor, rows=rows, timeout=timeout
                ),
            )
        kind, reduction = type_of(array), number_of(op)
        shares = shares_of(array, rows, self.size, "rows")
        start = sum(shares[: self.rank])
        shape = (shares[self.rank], *array.shape[1:])
        if out is None:
            out = np.empty(shape, array.dtype)
        check_shape(out, shape, array.dtype, "out")
        check_writable(out, "out")
        to = out

        def run() -> Array:
            into = room(to)
            given = apart(array, into, (array[start : start + shape[0]], into))
            if rows is None:
                self._calls.run(
                    REDUCE_SCATTER, given, into, to.size, kind, timeout, op=reduction,
                    factor=factor,
                )  # fmt: skip
            else:
                gives = runs(shares, row_bytes(array))
                self._calls.exchange(
                    REDUCE_SCATTER, given, gives, into, None, kind, timeout, op=reduction,
                    factor=factor,
                )  # fmt: skip
            put_back(into, to)
            return to

        return cast("T", self._calls.in_turn(run))

    def all_to_all(
        self,
        array: T,
        gives: Sequence[int] | None = None,
        takes: Sequence[int] | None = None,
        *,
        out: Array | None = None,
        timeout: float | None = None,
    ) -> T:
        """Rows of ``array`` for each rank, in order, for rows from each rank. ``gives`` and
        ``takes`` say how many; without them all ranks give the same number."""
        if not isinstance(array, np.ndarray):
            return self._of_each(
                "all_to_all",
                array,
                out,
                lambda each: self.all_to_all(each, gives, takes, timeout=timeout),
            )
        kind = type_of(array)
        given = shares_of(array, gives, self.size, "gives")
        taken = given if takes is None and gives is None else takes
        if taken is None or len(taken) != self.size or min(taken) < 0:
            raise ValueError(f"takes needs {self.size} numbers of rows")
        shape = (sum(taken), *array.shape[1:])
        if out is None:
            out = np.empty(shape, array.dtype)
        check_shape(out, shape, array.dtype, "out")
        check_writable(out, "out")
        row, to = row_bytes(array), out

        def run() -> Array:
            into = room(to)
            dense = apart(array, into)
            self._calls.exchange(
                ALL_TO_ALL, dense, runs(given, row), into, runs(taken, row), kind, timeout
            )
            put_back(into, to)
            return to

        return cast("T", self._calls.in_turn(run))

    # ---- many arrays at once ----

    @overload
    def all_reduce_many(
        self,
        arrays: Sequence[Array],
        op: Op = ...,
        *,
        factor: float = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> list[Array]: ...
    @overload
    def all_reduce_many(
        self,
        arrays: Sequence[Array],
        op: Op = ...,
        *,
        factor: float = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[list[Array]]: ...
    def all_reduce_many(
        self,
        arrays: Sequence[Array],
        op: Op = "sum",
        *,
        factor: float = 1.0,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> list[Array] | Work[list[Array]]:
        """:meth:`all_reduce` of each array, in place: small ones of one type go as one. The ranks
        give as many arrays of the same shapes and types. Returns the arrays as a list, or a Work
        with it. ``timeout`` is for each operation that they make up."""
        many = list(arrays)
        coalescing.check(many)
        reduce = self._reducing(ALL_REDUCE, op, factor, 0, timeout)

        def run() -> list[Array]:
            coalescing.in_place(many, reduce, together=op != "adasum")  # that is of each array
            return many

        return self._calls.begin(run, async_op)

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

    def barrier(self, *, timeout: float | None = None) -> None:
        """Returns once all ranks have called it."""
        self._calls.in_turn(
            lambda: self._calls.run(BARRIER, None, None, 0, TYPES["uint8"], timeout)
        )

    def send(self, array: Any, rank: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """An array to another rank, which receives it by its tag. Takes no turns with the other
        operations."""
        if not isinstance(array, np.ndarray):
            for leaf in trees.Tree(array).leaves:
                self.send(leaf.array, rank, tag, timeout=timeout)
            return
        with translated():
            self._group.send(
                rank, tag, memory(np.ascontiguousarray(array)), self._calls.limit(timeout)
            )

    def receive(self, out: T, rank: int, tag: int = 0, *, timeout: float | None = None) -> T:
        """The next array of that tag from another rank, into ``out``, which has its size."""
        if not isinstance(out, np.ndarray):
            return trees.received(out, lambda into: self.receive(into, rank, tag, timeout=timeout))
        check_writable(out, "out")
        into = room(out)
        with translated():
            self._group.receive(rank, tag, memory(into), self._calls.limit(timeout))
        put_back(into, out)
        return out

    def receive_any(self, out: Array, tag: int = 0, *, timeout: float | None = None) -> int:
        """The first array of that tag that any other rank has sent, into ``out``, which has its
        size. Returns that rank. Receives of the tag that begin meanwhile wait for this one."""
        check_writable(out, "out")
        into = room(out)
        with translated():
            sender = self._group.receive_any(tag, memory(into), self._calls.limit(timeout))
        put_back(into, out)
        return sender

    def split(self, color: int | None, key: int = 0) -> Group | None:
        """Groups of those ranks that give the same color, ordered by key and then by rank. All
        ranks call it; with None a rank gets no group."""
        with self._splitting:  # counted in the order in which the ranks meet
            colors = self.all_gather(
                np.array([color is not None, color or 0, key, self.rank], np.int64)
            )
            self._splits += 1
            split = self._splits
        if color is None:
            return None
        mine = [row for row in colors if row[0] and row[1] == color]
        mine.sort(key=lambda row: (row[2], row[3]))
        return Group(
            PrefixStore(f"split-{split}-{color}", self.origin.meeting()),
            next(i for i, row in enumerate(mine) if row[3] == self.rank),
            len(mine),
            host=self.origin.host,
            timeout=self.timeout,
        )

    def statistics(self) -> dict[str, dict[str, dict[str, int]]]:
        """How often each operation has gone which way, and the bytes that this rank gave or was
        given: ``{"all_reduce": {"ring": {"operations": 3, "bytes": 12_000_000}}}``."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for operation, way, operations, count in self._group.statistics():
            found.setdefault(operation, {})[way] = {"operations": operations, "bytes": count}
        return found

    # ---- how they run ----

    def _reducing(
        self, what: int, op: str, factor: float, root: int, timeout: float | None
    ) -> Callable[[Array], None]:
        """A reduction in place."""
        reduction = number_of(op)
        wanted = what == ALL_REDUCE or self.rank == root

        def reduce(array: Array) -> None:
            into = room(array) if wanted else None
            given = array if into is array else np.ascontiguousarray(array)
            self._calls.run(
                what, given, into, array.size, type_of(array), timeout, op=reduction,
                factor=factor, root=root,
            )  # fmt: skip
            if into is not None:
                put_back(into, array)

        return reduce

    def _broadcasting(self, root: int, timeout: float | None) -> Callable[[Array], None]:
        def broadcast(array: Array) -> None:
            dense = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            self._calls.run(BROADCAST, None, dense, array.size, type_of(array), timeout, root=root)
            put_back(dense, array)

        return broadcast

    def _of_tree(
        self,
        call: str,
        tree: Any,
        out: Any,
        operation: Callable[[Array], None],
        gives: bool,
        gets: bool,
        op: str,
        timeout: float | None,
        async_op: bool,
    ) -> Any:
        """An operation in place on an array of another framework, or on a tree. ``gives``: it needs
        what this rank has; ``gets``: this rank gets a result."""
        _check_no_out(out)
        taken = trees.Tree(tree)
        for leaf in taken.leaves:
            type_of(leaf.array)
            if gets:
                leaf.check_writable()

        def gather(array: Array) -> Array:
            all_ = np.empty((self.size, array.size), np.uint8)
            self._calls.run(ALL_GATHER, array, all_, array.size, TYPES["uint8"], timeout)
            return all_

        def run() -> Any:
            taken.agree(self, call, gather)
            arrays = [leaf.room(gives, gets) for leaf in taken.leaves]
            coalescing.in_place(arrays, operation, together=op != "adasum")
            return taken.after(arrays) if gets else tree

        return self._calls.begin(run, async_op)

    def _of_each(
        self, call: str, tree: T, out: Any, operation: Callable[[Array], Array | None]
    ) -> T:
        """As :meth:`_of_tree`, of operations whose results have other shapes."""
        _check_no_out(out)
        return trees.each(self, tree, call, operation)

    def _reduction(
        self,
        what: int,
        array: Array,
        into: Array,
        op: str,
        factor: float,
        root: int,
        timeout: float | None,
        async_op: bool,
    ) -> Array | Work[Array]:
        kind, reduction = type_of(array), number_of(op)
        wanted = what == ALL_REDUCE or self.rank == root
        if wanted:
            check_writable(into, "out")

        def run() -> Array:
            out = room(into) if wanted else None
            given = np.ascontiguousarray(array) if out is None else apart(array, out, (array, out))
            self._calls.run(
                what, given, out, array.size, kind, timeout, op=reduction, factor=factor, root=root
            )
            if out is not None:
                put_back(out, into)
            return into

        return self._calls.begin(run, async_op)

    def _gathering(
        self,
        what: int,
        array: Array,
        rows: Sequence[int] | None,
        out: Array | None,
        root: int,
        timeout: float | None,
    ) -> Array:
        kind = type_of(array)
        if rows is not None:
            check_rows(rows, array, self.rank, self.size, "array")
        shape = (self.size, *array.shape) if rows is None else (sum(rows), *array.shape[1:])
        if out is None:
            out = np.empty(shape, array.dtype)
        check_shape(out, shape, array.dtype, "out")
        check_writable(out, "out")
        to = out

        def run() -> Array:
            into = room(to)
            if rows is None:
                given = apart(array, into, (array, into[self.rank : self.rank + 1]))
                self._calls.run(what, given, into, array.size, kind, timeout, root=root)
            else:
                given = apart(array, into)
                mine = (0, given.nbytes)
                gives = [mine] * self.size if what == ALL_GATHER else rooted(mine, root, self.size)
                takes = runs(rows, row_bytes(array))
                self._calls.exchange(what, given, gives, into, takes, kind, timeout, root=root)
            put_back(into, to)
            return to

        return self._calls.in_turn(run)


def _check_no_out(out: object) -> None:
    if out is not None:
        raise TypeError("out is for arrays of NumPy: others get their results as new ones")


def join(
    store: Store | str | os.PathLike[str],
    rank: int,
    size: int,
    *,
    host: str | None = None,
    timeout: float | None = 1800.0,
) -> Group:
    """Joins a group: returns once all ranks have come.

    ``store``: where ranks find each other, fresh for each group: a :class:`Store`, a folder that
    all of them reach, or ``host:port`` of a server that has a :func:`store_service`. ``host``: the
    address at which ranks of other hosts reach this one; None: as TENSORWIRE_GROUP_HOST says, or
    127.0.0.1. ``timeout``: of joining, and of each operation that gives none, in seconds; None: no
    limit.

    Raises :class:`~tensorwire.collective.GroupError` when a rank does not come, or cannot be
    reached.
    """
    return Group(store_of(store), rank, size, host=host, timeout=timeout)


def store_of(given: Store | str | os.PathLike[str]) -> Store:
    if isinstance(given, str) and ":" in given and "/" not in given:
        return RpcStore(given)
    return FileStore(given) if isinstance(given, str | os.PathLike) else given
