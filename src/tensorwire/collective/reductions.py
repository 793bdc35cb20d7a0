# SPDX-License-Identifier: Apache-2.0
"""Operations of a group that add up, or reduce otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, overload

import numpy as np

from tensorwire.collective import coalescing
from tensorwire.collective.arrays import (
    Array,
    apart,
    check_shape,
    check_writable,
    place_for,
    put_back,
    room,
    row_bytes,
    runs,
    shares_of,
    type_of,
)
from tensorwire.collective.calls import ALL_REDUCE, REDUCE, REDUCE_SCATTER, Op, number_of
from tensorwire.collective.communicator import Communicator
from tensorwire.collective.work import Work

T = TypeVar("T")


class Reductions(Communicator):
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
    def reduce_scatter(
        self,
        array: T,
        op: Op = ...,
        *,
        factor: float = ...,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> T: ...
    @overload
    def reduce_scatter(
        self,
        array: T,
        op: Op = ...,
        *,
        factor: float = ...,
        rows: Sequence[int] | None = ...,
        out: Array | None = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[T]: ...
    def reduce_scatter(
        self,
        array: Any,
        op: Op = "sum",
        *,
        factor: float = 1.0,
        rows: Sequence[int] | None = None,
        out: Array | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Of the reduction of all ranks' arrays, whose first axis is a multiple of ``size``, the
        share of this rank: rows rank * n to (rank + 1) * n of ``size`` * n. With ``rows``, which
        says how many each rank gets, in order, they may differ. ``factor`` is as in
        :meth:`all_reduce`; "adasum" takes each share as a vector."""
        if not isinstance(array, np.ndarray):
            scatter = partial(
                self._reducing_shares, op=op, factor=factor, rows=rows, out=None, timeout=timeout
            )
            return self._of_each(f"reduce_scatter({op})", array, out, scatter, timeout, async_op)
        run = self._reducing_shares(array, op, factor, rows, out, timeout)
        return self._calls.begin(run, async_op)

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
    def reduce_scatter_many(
        self,
        arrays: Sequence[Array],
        op: Op = ...,
        *,
        factor: float = ...,
        timeout: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> list[Array]: ...
    @overload
    def reduce_scatter_many(
        self,
        arrays: Sequence[Array],
        op: Op = ...,
        *,
        factor: float = ...,
        timeout: float | None = ...,
        async_op: Literal[True],
    ) -> Work[list[Array]]: ...
    def reduce_scatter_many(
        self,
        arrays: Sequence[Array],
        op: Op = "sum",
        *,
        factor: float = 1.0,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> list[Array] | Work[list[Array]]:
        """:meth:`reduce_scatter` of each array, into equal shares: small ones of one type go as
        one. The ranks give as many arrays of the same shapes and types. ``timeout`` is for each
        operation that they make up."""
        many, reduction = list(arrays), number_of(op)
        kinds = coalescing.kinds(many)
        shares = [shares_of(array, None, self.size, "rows")[0] for array in many]

        def scatter(rows: Array) -> Array:
            out = np.empty((1, rows.shape[1]), rows.dtype)
            self._calls.run(
                REDUCE_SCATTER, rows, out, out.size, kinds[rows.dtype], timeout, op=reduction,
                factor=factor,
            )  # fmt: skip
            return out

        def run() -> list[Array]:
            rows = [each.reshape(self.size, -1) for each in many]
            found = coalescing.by_rows(rows, scatter, together=op != "adasum")  # that is of each
            return [
                row.reshape(share, *each.shape[1:])
                for row, share, each in zip(found, shares, many, strict=True)
            ]

        return self._calls.begin(run, async_op)

    def _reducing_shares(
        self,
        array: Array,
        op: str,
        factor: float,
        rows: Sequence[int] | None,
        out: Array | None,
        timeout: float | None,
    ) -> Callable[[], Array]:
        kind, reduction = type_of(array), number_of(op)
        shares = shares_of(array, rows, self.size, "rows")
        start = sum(shares[: self.rank])
        shape = (shares[self.rank], *array.shape[1:])
        to = place_for(shape, array.dtype, out)

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

        return run

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
