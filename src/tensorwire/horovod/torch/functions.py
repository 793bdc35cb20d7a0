# SPDX-License-Identifier: Apache-2.0
"""State of one rank for all of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import torch
from tensorwire.horovod import process, trees
from tensorwire.horovod.process import ProcessSet, global_process_set
from tensorwire.horovod.torch import in_place
from tensorwire.horovod.torch.operations import (
    allgather_async,
    broadcast_,
    broadcast_async_,
    finished,
    synchronize,
)


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """In place. ``params``: a state_dict(), named_parameters(), or a list of tensors."""
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, torch.Tensor) or not hasattr(params, "__iter__"):
        raise ValueError(f"broadcast_parameters takes a dict or a list, not {type(params)}")
    else:
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    handles = [
        broadcast_async_(tensor, root_rank, name)
        for name, tensor in named
        if isinstance(tensor, torch.Tensor)
    ]
    finished(partial(synchronize, handle) for handle in handles)


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """The root's state, whether or not an optimizer has made a step."""
    state = broadcast_object(optimizer.state_dict(), root_rank, "optimizer_state")
    if process.rank() != root_rank:
        with in_place.kept(optimizer):
            optimizer.load_state_dict(state)


def _marked(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided:
            raise TypeError(f"a tensor of {leaf.layout}: send to_dense() of it")
        if leaf.is_meta:
            raise TypeError("a tensor on meta has no values")
        dense = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if leaf.dtype is torch.bfloat16:
            return trees.Marked("bfloat16", dense.view(torch.int16).numpy())
        return trees.Marked("tensor", dense.numpy())
    return leaf


def _restored(mark: str, array: Any) -> Any:
    if mark == "bfloat16":
        return torch.from_numpy(array).view(torch.bfloat16)
    return torch.from_numpy(array) if mark == "tensor" else array


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object: of numbers, text, bytes, None, tensors and arrays, in lists, tuples, sets
    and dicts. TypeError, on all ranks, says what in it cannot travel."""
    name = name or "object"
    data, wrong = b"", None
    if process.rank() == root_rank:
        try:
            data = trees.encode(obj, _marked)
        except TypeError as error:
            wrong = error
            data = str(error).encode()
    # The others are told: they would wait for ever.
    head = torch.tensor([len(data), wrong is not None], dtype=torch.int64)
    broadcast_(head, root_rank, f"{name}.size", process_set)
    length, failed = head.tolist()
    payload = torch.zeros(length, dtype=torch.uint8)
    if process.rank() == root_rank and length:
        payload = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    broadcast_(payload, root_rank, f"{name}.data", process_set)
    if wrong is not None:
        raise wrong
    received = payload.numpy().tobytes()
    if failed:
        raise TypeError(f"of rank {root_rank}: {received.decode()}")
    return obj if process.rank() == root_rank else trees.decode(received, _restored)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Objects of all ranks, in their order, as :func:`broadcast_object` takes them."""
    name = name or "objects"
    try:
        data, failed = trees.encode(obj, _marked), 0
    except TypeError as error:
        data, failed = str(error).encode(), 1
    head = torch.tensor([[len(data), failed]], dtype=torch.int64)
    heads = synchronize(allgather_async(head, f"{name}.size", process_set)).tolist()
    payload = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    everything = synchronize(allgather_async(payload, f"{name}.data", process_set)).numpy()
    found, at = [], 0
    for rank, (length, bad) in enumerate(heads):
        part = everything[at : at + length].tobytes()
        at += length
        if bad:
            raise TypeError(f"of rank {rank}: {part.decode()}")
        found.append(trees.decode(part, _restored))
    return found
