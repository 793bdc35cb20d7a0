# SPDX-License-Identifier: Apache-2.0
"""Which boxes of global tensors this process holds, as PyTorch's DTensor and JAX's NamedSharding
have it. No framework is imported to find out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from tensorwire.weights.planning import Index, Shard


class Split(NamedTuple):
    """A placement that cuts one axis along one axis of a mesh. ``strided``: it cuts what the
    placements of later axes of the mesh have left (FSDP over tensor parallelism)."""

    axis: int
    strided: bool = False


def box_of(
    global_shape: Index,
    mesh: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Split | None],
) -> tuple[Index, Index]:
    """Start and shape of what the process at ``coordinate`` of a mesh holds; None: replicated.

    Each split gives all but the last processes ``ceil(extent / size)`` elements, as PyTorch has it.
    """
    start, shape = [0] * len(global_shape), list(global_shape)
    order = sorted(
        range(len(mesh)), key=lambda i: (placement := placements[i]) is not None and placement[1]
    )
    for number in order:
        placement = placements[number]
        if placement is None:
            continue
        extent = shape[placement.axis]
        each = -(-extent // mesh[number])
        low = min(each * coordinate[number], extent)
        start[placement.axis] += low
        shape[placement.axis] = min(each, extent - low)
    return tuple(start), tuple(shape)


def is_distributed_torch(tensor: object) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def shard_of_dtensor(tensor: Any, dtype: str) -> Shard:
    """TypeError for a placement that leaves no process with values of its own (Partial)."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise TypeError("a DTensor of a mesh that this process is not in")
    placements: list[Split | None] = []
    for placement in tensor.placements:
        if placement.is_partial():
            raise TypeError("a DTensor with a Partial placement: redistribute() it first")
        axis = getattr(placement, "dim", None)
        if axis is None:
            placements.append(None)
        else:
            strided = type(placement).__name__ == "_StridedShard"
            placements.append(Split(axis % tensor.ndim, strided))
    shape = tuple(tensor.shape)
    start, local = box_of(shape, tuple(mesh.shape), coordinate, placements)
    if tuple(tensor.to_local().shape) != local:
        raise TypeError(
            f"a DTensor with placements {tensor.placements} whose local shape is "
            f"{tuple(tensor.to_local().shape)}, not {local}: give its shard by name"
        )
    return Shard(start, local, shape, dtype)


def is_distributed_jax(tensor: object) -> bool:
    """Whether it is cut among devices, so that this process holds boxes of it."""
    module = sys.modules.get("jax")
    if module is None or not isinstance(tensor, getattr(module, "Array", ())):
        return False
    array: Any = tensor
    return len(array.sharding.device_set) > 1


def boxes_of_jax(array: Any) -> dict[tuple[Index, Index], list[Any]]:
    """Start and shape of each box on this process's devices, and the shards that hold it."""
    found: dict[tuple[Index, Index], list[Any]] = {}
    for shard in array.addressable_shards:
        ranges = [
            part.indices(extent)[:2] for part, extent in zip(shard.index, array.shape, strict=True)
        ]
        box = (tuple(low for low, _ in ranges), tuple(high - low for low, high in ranges))
        found.setdefault(box, []).append(shard)
    return found
