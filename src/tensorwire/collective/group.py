# SPDX-License-Identifier: Apache-2.0
"""A group of ranks, and its operations on arrays and trees of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from tensorwire import _core
from tensorwire.collective import trees
from tensorwire.collective.errors import translated
from tensorwire.collective.stores import FileStore, PrefixStore, RpcStore, Store
from tensorwire.collective.work import Line, Work
from tensorwire.log import LOGGER

Op = Literal["sum", "average", "product", "min", "max", "bit_and", "bit_or", "bit_xor"]
Array = npt.NDArray[Any]
T = TypeVar("T")
"""An array, of any framework, or a tree of them."""

_OPS: Final[dict[str, int]] = {
    "sum": 0,
    "average": 1,
    "product": 2,
    "min": 3,
    "max": 4,
    "bit_and": 5,
    "bit_or": 6,
    "bit_xor": 7,
}
# Names of NumPy's and ml_dtypes' types.
_TYPES: Final[dict[str, int]] = {
    "float64": 0,
    "float32": 1,
    "float16": 2,
    "bfloat16": 3,
    "float8_e4m3fn": 4,
    "float8_e5m2": 5,
    "int8": 6,
    "int16": 7,
    "int32": 8,
    "int64": 9,
    "uint8": 10,
    "uint16": 11,
    "uint32": 12,
    "uint64": 13,
    "bool": 14,
}
_UINT8: Final = _TYPES["uint8"]
(
    _BARRIER,
    _ALL_REDUCE,
    _REDUCE,
    _BROADCAST,
    _ALL_GATHER,
    _REDUCE_SCATTER,
    _ALL_TO_ALL,
    _GATHER,
    _SCATTER,
) = range(9)


def _type_of(array: Array) -> int:
    try:
        return _TYPES[array.dtype.name]
    except KeyError:
        raise TypeError(
            f"arrays of {array.dtype} have no collectives: {', '.join(_TYPES)} have"
        ) from None


def _op(name: str) -> int:
    try:
        return _OPS[name]
    except KeyError:
        raise ValueError(f"op {name!r} is none of {', '.join(_OPS)}") from None


def _bytes(array: Array) -> Any:
    """Its memory, as the core takes it."""
    return array.reshape(-1).view(np.uint8)


def _dense(array: Array) -> Array:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


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
    any of: float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int8
    to int64 uint8 to uint64 bool. What is not C-contiguous is copied for the operation. Floats of
    16 and 8 bits are added up in float32. Results have the same bits on all ranks, and the same
    from run to run.

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
        self.timeout = timeout
        """Of each operation that gives none, in seconds; None: no limit."""
        self.origin: Final = origin or Origin(store, 0, host)
        self._splitting = threading.Lock()  # guards what follows
        self._splits = 0
        self._line = Line(f"tensorwire rank {rank}")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:  # the others would wait for what this rank does no more
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def close(self) -> None:
        """Leaves the group, once what has been begun has ended. A rank that still needs something
        of this one gets :class:`~tensorwire.collective.RankLostError`."""
        self._line.close()
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
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def all_reduce(
        self,
        array: Any,
        op: Op = "sum",
        *,
        out: Array | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The elements of all ranks' arrays, reduced, into ``out``, or in place. The arrays have
        the same shape and type on all ranks. Returns ``out``, or ``array``."""
        if not isinstance(array, np.ndarray):
            return self._of_tree(_ALL_REDUCE, array, op, 0, out, timeout, async_op)
        into = array if out is None else out
        _check_like(into, array, "out")
        return self._reduction(_ALL_REDUCE, array, into, op, 0, timeout, async_op)

    @overload
    def reduce(
        self,
        array: T,
        op: Op = ...,
        *,
        root: int = ...,
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
        out: Array | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """As :meth:`all_reduce`, on the root alone; other ranks' arrays stay as they are."""
        if not isinstance(array, np.ndarray):
            return self._of_tree(_REDUCE, array, op, root, out, timeout, async_op)
        into = array if out is None else out
        _check_like(into, array, "out")
        return self._reduction(_REDUCE, array, into, op, root, timeout, async_op)

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
            return self._of_tree(_BROADCAST, array, "sum", root, None, timeout, async_op)
        kind = _type_of(array)
        if self.rank != root:
            _check_writable(array, "array")

        def run() -> Any:
            dense = _dense(array)
            self._run(_BROADCAST, None, dense, array.size, kind, 0, root, timeout)
            if dense is not array and self.rank != root:
                array[...] = dense
            return array

        if self.rank == root and not array.flags.writeable:
            array = array.copy()  # the core asks for memory that may be written
        return self._begin(run, async_op)

    @overload
    def all_gather(
        self, array: Array, *, out: Array | None = ..., timeout: float | None = ...
    ) -> Array: ...
    @overload
    def all_gather(
        self, array: T, *, out: Array | None = ..., timeout: float | None = ...
    ) -> T: ...
    def all_gather(
        self, array: Any, *, out: Array | None = None, timeout: float | None = None
    ) -> Any:
        """The arrays of all ranks, of one shape and type: an array with a first axis of ``size``,
        in the order of ranks."""
        if not isinstance(array, np.ndarray):
            return self._of_each(
                "all_gather", array, out, lambda each: self.all_gather(each, timeout=timeout)
            )
        return self._gathering(_ALL_GATHER, array, out, 0, timeout)

    @overload
    def gather(
        self,
        array: Array,
        *,
        root: int = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
    ) -> Array | None: ...
    @overload
    def gather(
        self, array: T, *, root: int = ..., out: Array | None = ..., timeout: float | None = ...
    ) -> T | None: ...
    def gather(
        self,
        array: Any,
        *,
        root: int = 0,
        out: Array | None = None,
        timeout: float | None = None,
    ) -> Any:
        """As :meth:`all_gather` on the root; None elsewhere."""
        if not isinstance(array, np.ndarray):
            return self._of_each(
                f"gather(root {root})",
                array,
                out,
                lambda each: self.gather(each, root=root, timeout=timeout),
            )
        if self.rank == root:
            return self._gathering(_GATHER, array, out, root, timeout)
        kind, dense = _type_of(array), _dense(array)
        self._in_turn(_GATHER, dense, None, array.size, kind, 0, root, timeout)
        return None

    def scatter(
        self, out: T, array: Any = None, *, root: int = 0, timeout: float | None = None
    ) -> T:
        """Of the root's ``array``, whose first axis has ``size`` elements, the one of this rank,
        into ``out``. Returns ``out``."""
        if not isinstance(out, np.ndarray):
            return trees.scatter(self, out, array, root, timeout)
        kind = _type_of(out)
        _check_dense(out, "out")
        given = None
        if self.rank == root:
            if array is None:
                raise ValueError("the root of a scatter gives an array")
            _check_shares(array, out, self.size, "array")
            given = _dense(array)
        self._in_turn(_SCATTER, given, out, out.size, kind, 0, root, timeout)
        return out

    def reduce_scatter(
        self,
        array: T,
        op: Op = "sum",
        *,
        out: Array | None = None,
        timeout: float | None = None,
    ) -> T:
        """Of the reduction of all ranks' arrays, whose first axis is a multiple of ``size``, the
        share of this rank: rows rank * n to (rank + 1) * n of ``size`` * n."""
        if not isinstance(array, np.ndarray):
            return self._of_each(
                f"reduce_scatter({op})",
                array,
                out,
                lambda each: self.reduce_scatter(each, op, timeout=timeout),
            )
        kind, reduction = _type_of(array), _op(op)
        if array.ndim == 0 or array.shape[0] % self.size != 0:
            raise ValueError(
                f"the first axis of {array.shape} cannot be shared by {self.size} ranks"
            )
        shape = (array.shape[0] // self.size, *array.shape[1:])
        if out is None:
            out = np.empty(shape, array.dtype)
        _check_shape(out, shape, array.dtype, "out")
        _check_dense(out, "out")
        self._in_turn(_REDUCE_SCATTER, _dense(array), out, out.size, kind, reduction, 0, timeout)
        return cast("T", out)

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
        kind = _type_of(array)
        if array.ndim == 0:
            raise ValueError("an array without axes has no rows to give")
        given = self._rows(array, gives, "gives")
        taken = given if takes is None and gives is None else takes
        if taken is None or len(taken) != self.size or min(taken) < 0:
            raise ValueError(f"takes needs {self.size} numbers of rows")
        shape = (sum(taken), *array.shape[1:])
        if out is None:
            out = np.empty(shape, array.dtype)
        _check_shape(out, shape, array.dtype, "out")
        _check_dense(out, "out")
        row = int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize
        dense, into = _dense(array), out

        def run() -> Array:
            with translated():
                self._group.all_to_all(
                    kind,
                    _bytes(dense),
                    _runs(given, row),
                    _bytes(into),
                    _runs(taken, row),
                    self._limit(timeout),
                )
            return into

        return cast("T", self._line.in_turn(run))

    def barrier(self, *, timeout: float | None = None) -> None:
        """Returns once all ranks have called it."""
        self._in_turn(_BARRIER, None, None, 0, _UINT8, 0, 0, timeout)

    def send(self, array: Any, rank: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """An array to another rank, which receives it by its tag. Takes no turns with the other
        operations."""
        if not isinstance(array, np.ndarray):
            for leaf in trees.Tree(array).leaves:
                self.send(leaf.array, rank, tag, timeout=timeout)
            return
        with translated():
            self._group.send(rank, tag, _bytes(_dense(array)), self._limit(timeout))

    def receive(self, out: T, rank: int, tag: int = 0, *, timeout: float | None = None) -> T:
        """The next array of that tag from another rank, into ``out``, which has its size."""
        if not isinstance(out, np.ndarray):
            return trees.received(out, lambda into: self.receive(into, rank, tag, timeout=timeout))
        _check_dense(out, "out")
        with translated():
            self._group.receive(rank, tag, _bytes(out), self._limit(timeout))
        return out

    def receive_any(self, out: Array, tag: int = 0, *, timeout: float | None = None) -> int:
        """The first array of that tag that any other rank has sent, into ``out``, which has its
        size. Returns that rank. Receives of the tag that begin meanwhile wait for this one."""
        _check_dense(out, "out")
        with translated():
            return self._group.receive_any(tag, _bytes(out), self._limit(timeout))

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

    def _limit(self, timeout: float | None) -> float | None:
        return self.timeout if timeout is None else timeout

    def _run(
        self,
        what: int,
        given: Array | None,
        out: Array | None,
        count: int,
        kind: int,
        op: int,
        root: int,
        timeout: float | None,
    ) -> None:
        with translated():
            self._group.run(
                what,
                None if given is None else _bytes(given),
                None if out is None else _bytes(out),
                count,
                kind,
                op,
                root,
                self._limit(timeout),
            )

    def _in_turn(
        self,
        what: int,
        given: Array | None,
        out: Array | None,
        count: int,
        kind: int,
        op: int,
        root: int,
        timeout: float | None,
    ) -> None:
        self._line.in_turn(lambda: self._run(what, given, out, count, kind, op, root, timeout))

    def _begin(self, run: Callable[[], Array], async_op: bool) -> Array | Work[Array]:
        return self._line.begin(run) if async_op else self._line.in_turn(run)

    def _of_tree(
        self,
        what: int,
        tree: Any,
        op: str,
        root: int,
        out: Any,
        timeout: float | None,
        async_op: bool,
    ) -> Any:
        """Of an array of another framework, or of a tree."""
        if out is not None:
            raise TypeError("out is for arrays of NumPy: others get their results as new ones")
        name, gives, gets = {
            _ALL_REDUCE: (f"all_reduce({op})", True, True),
            _REDUCE: (f"reduce({op}, root {root})", True, self.rank == root),
            _BROADCAST: (f"broadcast(root {root})", self.rank == root, self.rank != root),
        }[what]
        reduction, taken = _op(op), trees.Tree(tree)
        for leaf in taken.leaves:
            _type_of(leaf.array)
            if gets:
                leaf.check_writable()

        def operation(array: Array) -> None:
            given = None if what == _BROADCAST else array
            into = array if gets or what == _BROADCAST else None
            self._run(what, given, into, array.size, _type_of(array), reduction, root, timeout)

        def gather(array: Array) -> Array:
            all_ = np.empty((self.size, array.size), np.uint8)
            self._run(_ALL_GATHER, array, all_, array.size, _UINT8, 0, 0, timeout)
            return all_

        def run() -> Any:
            taken.agree(self, name, gather)
            return trees.coalesced(taken, operation, gives, gets)

        return self._begin(run, async_op)

    def _of_each(
        self, name: str, tree: T, out: Any, operation: Callable[[Array], Array | None]
    ) -> T:
        """As :meth:`_of_tree`, of operations whose results have other shapes."""
        if out is not None:
            raise TypeError("out is for arrays of NumPy: others get their results as new ones")
        return trees.each(self, tree, name, operation)

    def _reduction(
        self,
        what: int,
        array: Array,
        into: Array,
        op: str,
        root: int,
        timeout: float | None,
        async_op: bool,
    ) -> Array | Work[Array]:
        kind, reduction = _type_of(array), _op(op)
        wanted = what == _ALL_REDUCE or self.rank == root
        if wanted:
            _check_writable(into, "out")

        def run() -> Array:
            given = _dense(array)
            out: Array | None = None
            if wanted:
                out = into if into.flags.c_contiguous else np.empty(into.shape, into.dtype)
            self._run(what, given, out, array.size, kind, reduction, root, timeout)
            if out is not None and out is not into:
                into[...] = out
            return into

        return self._begin(run, async_op)

    def _gathering(
        self, what: int, array: Array, out: Array | None, root: int, timeout: float | None
    ) -> Array:
        kind = _type_of(array)
        shape = (self.size, *array.shape)
        if out is None:
            out = np.empty(shape, array.dtype)
        _check_shape(out, shape, array.dtype, "out")
        _check_dense(out, "out")
        self._in_turn(what, _dense(array), out, array.size, kind, 0, root, timeout)
        return out

    def _rows(self, array: Array, gives: Sequence[int] | None, name: str) -> Sequence[int]:
        if gives is None:
            if array.shape[0] % self.size != 0:
                raise ValueError(
                    f"the first axis of {array.shape} cannot be shared by {self.size} ranks"
                )
            return [array.shape[0] // self.size] * self.size
        if len(gives) != self.size or min(gives) < 0 or sum(gives) != array.shape[0]:
            raise ValueError(
                f"{name} needs {self.size} numbers of rows that add up to {array.shape[0]}"
            )
        return gives


def _runs(rows: Sequence[int], row: int) -> list[tuple[int, int]]:
    runs, at = [], 0
    for count in rows:
        runs.append((at, count * row))
        at += count * row
    return runs


def _check_writable(array: Array, name: str) -> None:
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")


def _check_dense(array: Array, name: str) -> None:
    _check_writable(array, name)
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not C-contiguous")


def _check_shape(array: Array, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}, not {dtype} of shape {shape}"
        )


def _check_like(array: Array, other: Array, name: str) -> None:
    if array is not other:
        _check_shape(array, other.shape, other.dtype, name)


def _check_shares(array: Array, share: Array, ranks: int, name: str) -> None:
    _check_shape(array, (ranks, *share.shape), share.dtype, name)


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
