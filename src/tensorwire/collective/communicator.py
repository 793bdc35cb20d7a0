# SPDX-License-Identifier: Apache-2.0
"""What all operations of a group stand on: the core's group, turns, and trees of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

from tensorwire import _core
from tensorwire.collective import coalescing, trees
from tensorwire.collective.arrays import TYPES, Array, type_of
from tensorwire.collective.calls import ALL_GATHER, Calls
from tensorwire.collective.errors import FAILED_PRECONDITION

T = TypeVar("T")
"""An array, of any framework, or a tree of them."""


class Communicator:
    """One rank's end of a group."""

    def __init__(self, group: _core.Group, rank: int, size: int, timeout: float | None) -> None:
        self._group = group
        self.rank: Final = rank
        """Of this process: 0 to ``size`` - 1."""
        self.size: Final = size
        """How many ranks there are."""
        self._calls = Calls(group, rank, size, timeout)

    @property
    def timeout(self) -> float | None:
        """Of each operation that gives none, in seconds; None: no limit."""
        return self._calls.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._calls.timeout = seconds

    def abort(self, why: str) -> None:
        """Ends the group for all ranks, from any thread: operations raise GroupError with
        ``why``. Does nothing once this rank has left it."""
        try:
            self._group.abort(why)
        except _core.StatusError as error:
            if error.code != FAILED_PRECONDITION:
                raise

    def _gather_bytes(self, array: Array, timeout: float | None) -> Array:
        """All ranks' bytes, as many of each, a row of each. For whoever has the turn."""
        rows = np.empty((self.size, array.size), np.uint8)
        self._calls.run(ALL_GATHER, array, rows, array.size, TYPES["uint8"], timeout)
        return rows

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

        def run() -> Any:
            taken.agree(self, call, self._gathers(timeout))
            arrays = [leaf.room(gives, gets) for leaf in taken.leaves]
            coalescing.in_place(arrays, operation, together=op != "adasum")
            return taken.after(arrays) if gets else tree

        return self._calls.begin(run, async_op)

    def _of_each(
        self,
        call: str,
        tree: Any,
        out: Any,
        operation: Callable[[Array], Callable[[], Array | None]],
        timeout: float | None,
        async_op: bool,
    ) -> Any:
        """As :meth:`_of_tree`, of operations whose results have other shapes. ``operation`` checks
        an array, and returns what is to be done with it."""
        _check_no_out(out)
        run = trees.each(self, tree, call, self._gathers(timeout), operation)
        return self._calls.begin(run, async_op)

    def _gathers(self, timeout: float | None) -> trees.Gather:
        return lambda row: self._gather_bytes(row, timeout)


def _check_no_out(out: object) -> None:
    if out is not None:
        raise TypeError("out is for arrays of NumPy: others get their results as new ones")
