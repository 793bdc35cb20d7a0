# SPDX-License-Identifier: Apache-2.0
"""A tree of parameters as named tensors, each with the boxes that this process holds of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from tensorwire.collective.arrays import Array
from tensorwire.collective.leaves import Leaf
from tensorwire.collective.trees import mapped
from tensorwire.tensors import frameworks
from tensorwire.weights import layouts
from tensorwire.weights.planning import Layout, Shard

T = TypeVar("T")


class Parameter:
    """A tensor of the tree. ``pieces``: its boxes, as arrays over their memory."""

    def __init__(self, tensor: Any, path: str, shard: Shard | None) -> None:
        """TypeError for what is no tensor in the memory of this host, ValueError for a shard of
        another shape or dtype."""
        self.tensor = tensor
        self._devices: list[list[Any]] = []
        if shard is None and layouts.is_distributed_jax(tensor):
            boxes = layouts.boxes_of_jax(tensor)
            self._devices = [[each.device for each in shards] for shards in boxes.values()]
            self._leaves = [Leaf(shards[0].data, path) for shards in boxes.values()]
            self.shards = tuple(
                Shard(start, shape, tuple(tensor.shape), tensor.dtype.name)
                for start, shape in boxes
            )
            return
        if layouts.is_distributed_torch(tensor):
            leaf = Leaf(tensor.to_local(), path)
            shard = shard or layouts.shard_of_dtensor(tensor, leaf.dtype)
        else:
            leaf = Leaf(tensor, path)
            shard = shard or Shard.whole(leaf.array.shape, leaf.dtype)
        if (shard.shape, shard.dtype) != (leaf.array.shape, leaf.dtype):
            raise ValueError(
                f"{path}: a shard of {shard.dtype}{list(shard.shape)} for an array of "
                f"{leaf.dtype}{list(leaf.array.shape)}"
            )
        self._leaves = [leaf]
        self.shards = (shard,)

    @property
    def pieces(self) -> list[Array]:
        return [leaf.array for leaf in self._leaves]

    @property
    def in_place(self) -> bool:
        """Whether it is written where it is. Another one's values may come to lie elsewhere."""
        return not self._devices and self._leaves[0].in_place

    def check_writable(self) -> None:
        for leaf in self._leaves:
            leaf.check_writable()

    def rooms(self) -> list[Array]:
        """Arrays to write new values to: the pieces' own memory where it can be written, else
        copies of it. ``changed`` takes them."""
        return [leaf.room(gives=True, gets=True) for leaf in self._leaves]

    def memory(self, piece: int, box: Any) -> memoryview | None:
        """The bytes of a box of a piece, where the piece can be written and the box lies in one
        run; else None."""
        leaf = self._leaves[piece]
        if not self.in_place:
            return None
        part: Array = leaf.array[box]
        return frameworks.raw(part) if part.flags.c_contiguous else None

    def changed(self, rooms: Sequence[Array]) -> Any:
        """The tensor with what was written: itself, or a new one where its framework has no writing
        in place."""
        if self._devices:
            import jax

            shards = [
                jax.device_put(room, device)
                for room, devices in zip(rooms, self._devices, strict=True)
                for device in devices
            ]
            tensor = self.tensor
            return jax.make_array_from_single_device_arrays(tensor.shape, tensor.sharding, shards)
        changed = self._leaves[0].changed(rooms[0])
        return self.tensor if self.in_place else changed


class Parameters(Generic[T]):
    """A tree, taken apart. A tensor's name is its key in a flat dict, as a ``state_dict`` is one,
    else its path, as in ``['layers'][0]['kernel']``."""

    def __init__(self, tree: T, shards: Mapping[str, Shard] | None = None) -> None:
        self.tree = tree
        self._by_path: dict[str, Parameter] = {}
        self._named: dict[str, Parameter] = {}
        flat = isinstance(tree, Mapping) and not any(
            isinstance(item, Mapping | list | tuple) for item in tree.values()
        )
        keys = {f"tree[{key!r}]": str(key) for key in tree} if isinstance(tree, Mapping) else {}
        shards = dict(shards or {})

        def add(tensor: Any, path: str) -> None:
            name = keys[path] if flat else path.removeprefix("tree")
            if name in self._named:
                raise ValueError(f"two parameters are named {name!r}")
            found = Parameter(tensor, path, shards.pop(name, None))
            self._by_path[path] = self._named[name] = found

        mapped(tree, add)
        if not self._named:
            raise ValueError("there are no parameters")
        if shards:
            raise ValueError(f"a shard of {next(iter(shards))!r}, which is no parameter")
        self.layout: Layout = {name: found.shards for name, found in self._named.items()}

    def __getitem__(self, name: str) -> Parameter:
        return self._named[name]

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return iter(self._named.items())

    def after(self, changed: Mapping[str, Any]) -> T:
        """The tree with these tensors in place of those of the same names."""
        names = {id(found): name for name, found in self._named.items()}

        def visit(tensor: Any, path: str) -> Any:
            return changed.get(names[id(self._by_path[path])], tensor)

        made: T = mapped(self.tree, visit)
        return made


def same_bytes(one: Array, other: Array) -> bool:
    """Of two arrays of one shape and dtype, in C order. It ends at the first difference."""
    a, b = (array.reshape(-1).view(np.uint8) for array in (one, other))
    at, step = 0, 4096
    while at < a.size:
        if a[at : at + step].tobytes() != b[at : at + step].tobytes():
            return False
        at, step = at + step, 1 << 20
    return True
