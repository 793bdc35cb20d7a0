# SPDX-License-Identifier: Apache-2.0
"""Many transfers that are described once and started together, as often as one likes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tensorwire import _core
from tensorwire.remote import layout
from tensorwire.remote.errors import of_core
from tensorwire.remote.layout import Rows
from tensorwire.remote.local import Array, destination, source
from tensorwire.remote.operation import Operation
from tensorwire.remote.signals import SignalUpdate
from tensorwire.remote.tensor import RemoteTensor
from tensorwire.tensors import frameworks


class _Memory(NamedTuple):
    """An array that transfers begin or end in, and what moves there."""

    root: Array
    rows: list[Rows]


class Prepared:
    """A batch that was checked, merged and described. Thread-safe."""

    def __init__(
        self, peer: _core.Peer, batch: _core.Batch, regions: Iterable[int], signals: bool
    ) -> None:
        self._peer = peer
        self._batch = batch
        self._regions = tuple(regions)
        self._signals = signals

    @property
    def nbytes(self) -> int:
        """That each start moves."""
        return self._batch.nbytes

    @property
    def pieces(self) -> int:
        """Contiguous pieces that it consists of."""
        return self._batch.pieces

    def start(self, *, signal_value: int | None = None) -> Operation:
        """Begins all of its transfers: what is written is read from the arrays now, and what is
        read is in the arrays at the end. A batch that reads is not to be started again before.

        signal_value: another one for the batch's signal. Raises ValueError: it has none; and what
        ``RemoteTensor`` raises; then nothing of it was begun.
        """
        if signal_value is not None and not self._signals:
            raise ValueError("signal_value is for a batch with a signal, and this one raises none")
        start = partial(self._batch.start, value=signal_value)
        return Operation.begin(self._peer, start, self._regions)


class Batch:
    """Collects transfers between remote tensors of one device and arrays here. Arrays are those of
    NumPy, or tensors of other frameworks in host memory, in C order, and are kept as they are: what
    they hold when the batch is started is what is moved."""

    def __init__(self, peer: _core.Peer) -> None:
        """``Device.batch`` makes them."""
        self._peer = peer
        self._memories: dict[int, _Memory] = {}
        self._signal: tuple[int, int, int, bool] | None = None
        self._count = 0

    def read(self, tensor: RemoteTensor, out: Any) -> None:
        """All of ``tensor`` into ``out``. Errors as of ``RemoteTensor.start_read``."""
        into = self._local(out, tensor, tensor.shape, writes=False)
        self._add(into, tensor._layout.rows(_core.READ, tensor._region.number, 0))

    def write(self, tensor: RemoteTensor, value: Any) -> None:
        """All of ``value`` into ``tensor``. Errors as of ``RemoteTensor.start_write``, and
        ValueError where ``value`` is not in C order."""
        held = self._local(value, tensor, tensor.shape, writes=True)
        self._add(held, tensor._layout.rows(_core.WRITE, tensor._region.number, 0))

    def gather(self, tensor: RemoteTensor, rows: Any, out: Any) -> None:
        """``tensor[rows[i]]`` into ``out[i]``, for integers of any shape. IndexError."""
        self._rows(_core.READ, tensor, rows, out)

    def scatter(self, tensor: RemoteTensor, rows: Any, value: Any) -> None:
        """``value[i]`` into ``tensor[rows[i]]``. IndexError."""
        self._rows(_core.WRITE, tensor, rows, value)

    def signal(self, tensor: RemoteTensor, update: SignalUpdate) -> None:
        """Raises the signal of the tensor's memory once all that the batch writes is visible there.
        A batch has one, and then it only writes. PermissionDeniedError; ValueError: it has one."""
        self._check_device(tensor)
        if self._signal is not None:
            raise ValueError("a batch raises one signal")
        self._signal = tensor._region.update(update)

    def prepare(self) -> Prepared:
        """Describes it to the core. The arrays are kept as long as the result lives.

        Raises ValueError where two writes reach the same bytes of a peer, or two reads the same
        bytes here, or where it reads, and has a signal; NotFoundError, PermissionDeniedError,
        PeerLostError.
        """
        rows, addresses = self._together()
        _check_apart(rows, addresses)
        if self._signal is not None and (rows[:, layout.KIND] == _core.READ).any():
            raise ValueError("a batch with a signal only writes, and this one reads, too")
        memories = tuple(frameworks.raw(memory.root) for memory in self._memories.values())
        try:
            batch = self._peer.prepare(memories, rows.data, self._signal)
        except _core.StatusError as raised:
            raise of_core(raised, self._peer) from None
        regions = np.unique(rows[:, layout.REGION]).tolist()
        return Prepared(self._peer, batch, regions, self._signal is not None)

    def _together(self) -> tuple[Rows, Rows]:
        """As if the arrays lay end to end; and where each row begins in memory, as two arrays may
        be over the same."""
        every = [np.empty((0, layout.COLUMNS), np.uint64)]
        addresses = [np.empty(0, np.uint64)]
        begin = 0
        for memory in self._memories.values():
            rows = np.concatenate(memory.rows)
            addresses.append(rows[:, layout.LOCAL] + np.uint64(_address(memory.root)))
            rows[:, layout.LOCAL] += np.uint64(begin)
            every.append(rows)
            begin += memory.root.nbytes
        return np.concatenate(every), np.concatenate(addresses)

    # ------------------------------------------------------------------------------ its parts

    def _rows(self, kind: int, tensor: RemoteTensor, rows: Any, local: Any) -> None:
        wanted = np.asarray(rows)
        numbers = tensor._layout.picked(wanted)
        shape = (*wanted.shape, *tensor.shape[1:])
        array = self._local(local, tensor, shape, writes=kind == _core.WRITE)
        self._add(array, tensor._layout.picked_rows(kind, tensor._region.number, 0, numbers))

    def _local(
        self, given: Any, tensor: RemoteTensor, shape: tuple[int, ...], *, writes: bool
    ) -> Array:
        self._check_device(tensor)
        name = "value" if writes else "out"
        if type(given) is np.ndarray:
            array = given
        elif writes:
            array = source(given, tensor.dtype)
        else:
            array = destination(given, tensor.dtype)
        if array.dtype != tensor.dtype:
            raise TypeError(f"{name} is {array.dtype}, and the remote tensor {tensor.dtype}")
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}, not {shape}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not in C order")
        if not writes and not array.flags.writeable:
            raise ValueError("out is read-only")
        return array

    def _check_device(self, tensor: RemoteTensor) -> None:
        if tensor._region.peer != self._peer:
            raise ValueError("the tensor is of another device than the batch")

    def _add(self, array: Array, rows: Rows) -> None:
        if not len(rows):
            return
        self._count += len(rows)
        if self._count > layout.MAX_RUNS:
            raise ValueError(f"a batch has at most {layout.MAX_RUNS} runs")
        root = _root(array)
        memory = self._memories.setdefault(id(root), _Memory(root, []))
        rows[:, layout.LOCAL] += np.uint64(_address(array) - _address(root))
        memory.rows.append(rows)


def _root(array: Array) -> Array:
    """The array that owns the memory, so that parts of one array are described together."""
    while (
        type(array.base) is np.ndarray
        and array.base.flags.c_contiguous
        and (array.base.flags.writeable or not array.flags.writeable)
    ):
        array = array.base
    return array


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _check_apart(rows: Rows, addresses: Rows) -> None:
    """ValueError: two writes, or two reads, end in the same bytes. addresses: of the rows here."""
    writes = rows[rows[:, layout.KIND] == _core.WRITE]
    for region in np.unique(writes[:, layout.REGION]):
        own = writes[writes[:, layout.REGION] == region]
        columns = (layout.OFFSET, layout.LENGTH, layout.STRIDE, layout.COUNT)
        at = layout.first_overlap(*(own[:, each] for each in columns))
        if at is not None:
            raise ValueError(f"two writes of the batch reach byte {at} of the same memory")
    read = rows[:, layout.KIND] == _core.READ
    reads = rows[read]
    runs = (reads[:, each] for each in (layout.LENGTH, layout.LOCAL_STRIDE, layout.COUNT))
    if layout.first_overlap(addresses[read], *runs) is not None:
        raise ValueError("two reads of the batch end in the same memory of this process")
