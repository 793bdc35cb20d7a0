# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays of other frameworks than NumPy, and on trees of arrays: dicts, lists, tuples
and named tuples, nested. Before an operation ranks compare what their trees look like.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import numpy as np

from tensorwire.collective.arrays import Array
from tensorwire.collective.errors import ABORTED, DisagreementError, GroupError
from tensorwire.collective.leaves import Leaf
from tensorwire.tensors import MAX_DEPTH

if TYPE_CHECKING:
    from tensorwire.collective.communicator import Communicator

T = TypeVar("T")
Gather = Callable[[Array], Array]
"""Of bytes: all ranks' bytes, a row of each."""

_SUMMARY_BYTES: Final = 256


def mapped(tree: Any, visit: Callable[[Any, str], Any], path: str = "tree", depth: int = 0) -> Any:
    """The tree with ``visit(leaf, path)`` in place of each leaf. None stays. Keys of dicts are
    visited in an order that is the same on all ranks, whichever way a dict was filled."""
    if tree is None:
        return None
    if not isinstance(tree, Mapping | list | tuple):
        return visit(tree, path)
    if depth >= MAX_DEPTH:
        raise ValueError(f"{path[:80]}: nested deeper than {MAX_DEPTH} levels, or holding itself")
    if isinstance(tree, Mapping):
        keys = sorted(tree, key=lambda key: (type(key).__name__, repr(key)))
        done = {key: mapped(tree[key], visit, f"{path}[{key!r}]", depth + 1) for key in keys}
        made = copy.copy(tree) if isinstance(tree, dict) else dict(tree)
        made.update(done)
        return made
    items = [mapped(item, visit, f"{path}[{i}]", depth + 1) for i, item in enumerate(tree)]
    if isinstance(tree, list):
        return items
    return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)


class Tree(Generic[T]):
    """A tree, taken apart. TypeError and ValueError say which leaf is wrong."""

    def __init__(self, tree: T) -> None:
        self._tree = tree
        self._places: dict[int, int] = {}  # by identity: one that is there twice is one leaf
        self.leaves: list[Leaf] = []
        mapped(tree, self._add)

    def _add(self, tensor: Any, path: str) -> None:
        if id(tensor) not in self._places:
            self._places[id(tensor)] = len(self.leaves)
            self.leaves.append(Leaf(tensor, path))

    def rebuilt(self, results: Sequence[Any]) -> T:
        """With one result for each leaf, in their order."""
        made: T = mapped(self._tree, lambda leaf, _: results[self._places[id(leaf)]])
        return made

    def after(self, arrays: Sequence[Array]) -> T:
        """With these elements of each leaf, in its place or in a new one."""
        pairs = zip(self.leaves, arrays, strict=True)
        return self.rebuilt([leaf.changed(array) for leaf, array in pairs])

    def agree(self, group: Communicator, call: str, gather: Gather) -> None:
        """Raises DisagreementError, and ends the group, where ranks have called ``call`` with
        different trees."""
        if len(self.leaves) == 1 and self.leaves[0].tensor is self._tree:
            return  # one array: the operation itself compares it
        parts = [f"{leaf.path} {leaf.dtype}{list(leaf.array.shape)}" for leaf in self.leaves]
        text = f"{call} of {len(parts)} arrays: {', '.join(parts)}"
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8).copy()
        digests = gather(digest)
        if (digests == digests[0]).all():
            return
        summary = np.zeros(_SUMMARY_BYTES, np.uint8)
        start = np.frombuffer(text.encode()[:_SUMMARY_BYTES], np.uint8)
        summary[: start.size] = start
        try:
            summaries = gather(summary)
        except GroupError as error:  # another rank has told of it already
            raise DisagreementError(ABORTED, str(error)) from None
        said = [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in summaries]
        first = next(rank for rank, row in enumerate(digests) if (row != digests[0]).any())
        why = (
            "ranks called operations on different trees: rank 0 called "
            f"{said[0]}; rank {first} called {said[first]}"
        )
        group.abort(why)
        raise DisagreementError(ABORTED, why)


def each(
    group: Communicator,
    tree: T,
    call: str,
    gather: Gather,
    operation: Callable[[Array], Callable[[], Array | None]],
) -> Callable[[], T]:
    """What makes the tree of what ``operation`` makes of each leaf, in the leaf's framework; None
    where it makes nothing."""
    taken = Tree(tree)
    runs = [operation(leaf.array) for leaf in taken.leaves]

    def run() -> T:
        taken.agree(group, call, gather)
        results = [make() for make in runs]
        if results and results[0] is None:
            return cast("T", None)
        pairs = zip(taken.leaves, results, strict=True)
        return taken.rebuilt([leaf.made(result) for leaf, result in pairs if result is not None])

    return run


def scatter(
    group: Communicator,
    out: T,
    tree: Any,
    root: int,
    gather: Gather,
    operation: Callable[[Array, Any], Callable[[], Array]],
) -> Callable[[], T]:
    """What makes the tree ``out`` after a scatter into each leaf, of the root's leaves at the same
    places."""
    taken, given = Tree(out), Tree(tree if group.rank == root else None)
    paths = [[leaf.path for leaf in each.leaves] for each in (taken, given)]
    if group.rank == root and paths[0] != paths[1]:
        raise ValueError("the root's array is not a tree like out")
    shares: list[Any] = [leaf.array for leaf in given.leaves] or [None] * len(taken.leaves)
    rooms = _rooms(taken)
    runs = [operation(into, share) for into, share in zip(rooms, shares, strict=True)]

    def run() -> T:
        taken.agree(group, f"scatter(root {root})", gather)
        return taken.after([fill() for fill in runs])

    return run


def received(out: T, receive: Callable[[Array], None]) -> Callable[[], T]:
    """What makes the tree ``out`` after ``receive`` into each leaf."""
    taken = Tree(out)
    rooms = _rooms(taken)

    def run() -> T:
        for into in rooms:
            receive(into)
        return taken.after(rooms)

    return run


def _rooms(tree: Tree[Any]) -> list[Array]:
    """To be written by an operation that needs nothing of what is there."""
    for leaf in tree.leaves:
        leaf.check_writable()
    return [leaf.room(gives=False, gets=True) for leaf in tree.leaves]
