# SPDX-License-Identifier: Apache-2.0
"""Messages of a plan: made of a stage's results, and taken apart into those of another one."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tensorwire import arrays, tensors
from tensorwire.graph.edge import Edge
from tensorwire.graph.links import FIRST
from tensorwire.graph.plan import ALIGNMENT, PlanError, Transfer
from tensorwire.graph.program import Program
from tensorwire.rpc import Peer
from tensorwire.rpc.client.peer import Posted
from tensorwire.tensors import dtypes, frameworks
from tensorwire.tensors.wire import TensorHead

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def tag_of(transfer: Transfer) -> int:
    return FIRST + transfer.number


class _Memory(NamedTuple):
    array: Bytes
    ordinary: bool
    """The arena had no room for it."""


class Inbox:
    """What one message of each step comes into: memory that is there before it, for ``depth``
    steps. Memory that somebody still looks at is not received into again: other memory takes its
    place, of the arena where that has room. Of what nobody looks at any more, as much as for
    ``depth`` steps is kept."""

    def __init__(self, peer: Peer, transfer: Transfer, depth: int, program: Program) -> None:
        self._peer = peer
        self._transfer = transfer
        self._depth = depth
        self._program = program
        self._posted: deque[tuple[Posted, _Memory | None]] = deque()
        self._taken: list[tuple[_Memory, weakref.ref[Any]]] = []
        for _ in range(depth):
            self.post()

    def post(self) -> None:
        """Asks for one more message. Raises CallError."""
        nbytes = self._transfer.nbytes
        memory = None if nbytes is None else self._memory(nbytes)
        into = None if memory is None else memory.array.data
        self._posted.append((self._peer.post(tag_of(self._transfer), into), memory))

    def take(self, timeout: float | None) -> dict[str, Any] | None:
        """The values of the next message by their names; None after ``timeout`` seconds. Raises
        CallError, and PlanError for a message that is not as planned."""
        posted, memory = self._posted[0]
        found = posted.wait(timeout)
        if found is None:
            return None
        self._posted.popleft()
        if memory is None:
            assert isinstance(found, list)
            return self._described(found)
        assert isinstance(found, int)
        if found != self._transfer.nbytes:
            raise PlanError(f"{self._names()}: {found} bytes came, {self._transfer.nbytes} planned")
        # Views of views belong to this array, as its own base is none.
        root: Bytes = np.frombuffer(memory.array.data, np.uint8)
        self._taken.append((memory, weakref.ref(root)))
        return {
            edge.name: self._value(edge, root[offset : offset + (edge.nbytes or 0)])
            for edge, offset in zip(self._transfer.edges, self._transfer.offsets, strict=True)
        }

    def _memory(self, nbytes: int) -> _Memory:
        # Each is asked once: another thread may let go of it meanwhile.
        used: list[tuple[_Memory, weakref.ref[Any]]] = []
        free: list[tuple[_Memory, weakref.ref[Any]]] = []
        for each in self._taken:
            (free if each[1]() is None else used).append(each)
        if free:
            free.sort(key=lambda each: each[0].ordinary)
            self._taken = used + free[1 : 1 + self._depth]
            return free[0][0]
        try:
            return _Memory(arrays.empty(max(nbytes, 1), np.uint8), ordinary=False)
        except arrays.ArenaFullError:  # as much is looked at as nobody could plan
            plain = np.empty(nbytes + ALIGNMENT, np.uint8)
            start = -plain.ctypes.data % ALIGNMENT
            return _Memory(plain[start : start + max(nbytes, 1)], ordinary=True)

    def _value(self, edge: Edge, memory: Bytes) -> Any:
        assert edge.shape is not None
        shape = tuple(extent or 0 for extent in edge.shape)
        if self._program.values[edge.name].scalar:
            return memory.view(dtypes.own(edge.dtype)).reshape(shape).item()
        head = TensorHead(edge.dtype, shape, memory.nbytes, edge.order, frameworks.NUMPY)
        value, _ = frameworks.from_memory(head, memory.data, self._program.framework)
        return value

    def _described(self, segments: list[Any]) -> dict[str, Any]:
        (edge,) = self._transfer.edges
        try:
            value = tensors.loads(segments, framework=self._program.framework)
            check(edge, value)
        except (tensors.DecodeError, TypeError) as error:
            raise PlanError(f"{self._names()}: {error}") from None
        return {edge.name: value}

    def _names(self) -> str:
        return ", ".join(edge.name for edge in self._transfer.edges)


class Outbox:
    """What makes one message of each step."""

    def __init__(self, peer: Peer, transfer: Transfer) -> None:
        self._peer = peer
        self._transfer = transfer
        self._gathered: Bytes | None = None
        if len(transfer.edges) > 1:
            self._gathered = np.zeros(transfer.nbytes or 0, np.uint8)

    def send(self, values: Mapping[str, Any], timeout: float | None) -> None:
        """Returns once the values may be changed. Raises CallError, and PlanError for a value that
        is not as planned."""
        edges = self._transfer.edges
        found = [check(edge, values[edge.name]) for edge in edges]
        message: Any
        if self._transfer.nbytes is None:
            message = tensors.dumps(values[edges[0].name])
        elif self._gathered is None:
            message = frameworks.raw(_in_order(edges[0], found[0]))
        else:
            for edge, array, offset in zip(edges, found, self._transfer.offsets, strict=True):
                flat = _in_order(edge, array).reshape(-1).view(np.uint8)
                self._gathered[offset : offset + flat.nbytes] = flat
            message = self._gathered.data
        self._peer.send(tag_of(self._transfer), message, timeout)


def check(edge: Edge, value: Any) -> np.ndarray[Any, Any]:
    """A value as an array. PlanError: it is not what the edge says."""
    if isinstance(value, bool | int | float):
        return _of_number(edge, value)
    try:
        host = frameworks.as_host(value)
    except TypeError as error:
        raise PlanError(f"{edge.name} cannot travel: {error}") from None
    if host is None:
        raise PlanError(f"{edge.name} is a {type(value).__name__}, and no tensor")
    spec = tensors.TensorSpec(edge.shape)
    wrong = spec.objection(host.dtype, host.array.shape)
    if not wrong and host.dtype != edge.dtype:
        wrong = f"expected dtype {edge.dtype}, got {host.dtype}"
    if wrong:
        raise PlanError(f"{edge.name} is not as planned: {wrong}")
    return host.array


def _of_number(edge: Edge, value: float) -> np.ndarray[Any, Any]:
    """A number of Python's. NumPy would cut it off, or repeat it, to make it fit."""
    dtype = dtypes.own(edge.dtype)
    if isinstance(value, bool):
        fits = dtype.kind == "b"
    elif isinstance(value, int) and dtype.kind in "iu":
        fits = np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    else:
        fits = dtype.kind == "f"
    if edge.shape != () or not fits:
        raise PlanError(
            f"{edge.name} is not as planned: expected {edge.dtype} of shape {edge.shape}, got the "
            f"{type(value).__name__} {value}"
        )
    return np.asarray(value, dtype)


def _in_order(edge: Edge, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array with its axes in the order of the edge, C-contiguous."""
    ordered = array if edge.order is None else array.transpose(edge.order)
    # Of an array without axes NumPy would make one with an axis.
    return ordered if ordered.flags.c_contiguous else np.ascontiguousarray(ordered)
