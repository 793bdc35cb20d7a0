# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of another process."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import starmap
from typing import Any, Final, SupportsIndex

import numpy as np

from tensorwire import _core
from tensorwire.remote.errors import of_core
from tensorwire.remote.handle import Handle, Rights
from tensorwire.remote.layout import Index, Layout, Rows
from tensorwire.remote.local import BUFFERS, Array, destination, memory, source
from tensorwire.remote.operation import Operation
from tensorwire.remote.path import Path
from tensorwire.remote.region import Region
from tensorwire.remote.signals import SignalUpdate
from tensorwire.tensors import frameworks
from tensorwire.tensors.frameworks import Framework

_WORD: Final = np.dtype(np.uint64)
_LARGEST: Final = (1 << 64) - 1
_NDARRAY: Final = np.ndarray
_NO_BUFFER: Final = (BufferError, ValueError)
"""What NumPy raises for arrays that are not as they are asked for."""


class RemoteTensor(AbstractContextManager["RemoteTensor"]):
    """A tensor, or a part of one, in the memory of a peer. It holds no elements: it says where they
    are. Thread-safe.

    All that moves elements raises NotFoundError when the owner has concealed the memory,
    PermissionDeniedError without the right to do it, PeerLostError when the link is gone, and
    DeadlineExceededError after ``timeout`` seconds (None: without a limit; what was begun goes on).
    A lost peer is noticed wherever one waits, so that nothing waits for ever. Wrong shapes, dtypes
    and indices raise ValueError, TypeError and IndexError before anything is sent.
    """

    __slots__ = ("_dense", "_layout", "_offset", "_plain", "_region", "dtype", "shape")

    def __init__(self, region: Region, layout: Layout, dtype: np.dtype[Any]) -> None:
        """``Device.open`` and ``Device.allocate`` make them."""
        self._region = region
        self._layout = layout
        self._dense = layout.is_dense
        self._offset = layout.offset
        # The dtype, if arrays of it can go to the core as they are.
        plain = self._dense and layout.nbytes and dtype.kind in BUFFERS
        self._plain = dtype if plain else None
        self.dtype = dtype
        self.shape = layout.shape

    # ----------------------------------------------------------------------------- what it is

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    @property
    def rights(self) -> Rights:
        """Of this process."""
        return self._region.rights

    @property
    def mapped(self) -> bool:
        """Whether this process accesses it, and raises its signal, by loads and stores, without any
        part of its owner."""
        return self._region.mapped

    def path(self) -> Path:
        """How it is reached, and why not better. Where ``Device.path`` says ``mapped``, a tensor
        that was not made to be accessed, or that could not be mapped, goes by ``frames``."""
        return self._region.path()

    @property
    def handle(self) -> Handle:
        """Names this part: another process opens it, if the owner lets it."""
        whole, layout = self._region.handle, self._layout
        return Handle(
            whole.instance, whole.number, layout.offset, layout.shape, layout.strides, whole.dtype
        )

    def __getitem__(self, index: Index | tuple[Index, ...]) -> RemoteTensor:
        """A part of it, as NumPy's basic indexing has it; moves nothing. IndexError, TypeError,
        ValueError (a step that is not positive)."""
        return RemoteTensor(self._region, self._layout.part(index), self.dtype)

    def __repr__(self) -> str:
        peer = self._region.peer
        return (
            f"<tensorwire.remote.RemoteTensor {self.dtype}{list(self.shape)} at "
            f"{peer.caller or peer.address}>"
        )

    # ---------------------------------------------------------------------------- whole reads

    def read(
        self,
        out: Any = None,
        *,
        framework: Framework = "numpy",
        timeout: float | None = None,
    ) -> Any:
        """Copies it here. The result is ``out``, or a new tensor of the ``framework``.

        out: an array of NumPy or a tensor of PyTorch in host memory, of this shape and dtype, with
        any strides. Elements that are written meanwhile are old or new, each aligned word of up to
        8 bytes one of them: bytes of one moment come of a ``Signal`` or a channel.

        Raises, beside what all do, ImportError where the framework is missing, and DecodeError
        where it lacks the dtype.
        """
        region = self._region
        given: Any = out
        if type(out) is _NDARRAY and out.dtype is self._plain and out.shape == self.shape:
            try:
                region.peer.read(region.number, self._offset, given, timeout)
                return out
            except _NO_BUFFER:
                pass  # not in C order, or read-only: the longer way tells
            except _core.StatusError as raised:
                raise of_core(raised, region.peer) from None
        return self._read(out, framework, timeout)

    def _read(self, out: Any, framework: Framework, timeout: float | None) -> Any:
        made = out is None
        if made:
            out = np.empty(self.shape, self.dtype)
        into = self._destination(out)
        dense = into if into.flags.c_contiguous else np.empty(self.shape, self.dtype)
        self._begin(_core.READ, dense, None).wait(timeout)
        if dense is not into:
            into[...] = dense
        return frameworks.of_array(out, framework) if made else out

    def write(
        self, value: Any, *, signal: SignalUpdate | None = None, timeout: float | None = None
    ) -> None:
        """Copies ``value`` there: a tensor of any framework in host memory, of this shape and
        dtype. On return it is there.

        signal: what happens to the signal of the memory once all bytes are visible there; not at
        all, if the write fails.
        """
        given: Any = value
        if type(value) is _NDARRAY and value.dtype is self._plain and value.shape == self.shape:
            try:
                self._write(given, signal, timeout)
                return
            except _NO_BUFFER:
                pass  # not in C order
        array = self._source(value)
        if not self._dense:
            self._batch(_core.WRITE, array, signal).wait(timeout)
        elif array.nbytes:
            self._write(memory(array), signal, timeout)
        elif signal is not None:
            self.signal(signal, timeout=timeout)

    def _write(self, given: Any, signal: SignalUpdate | None, timeout: float | None) -> None:
        """To a tensor without gaps."""
        region = self._region
        try:
            if signal is None:
                region.peer.write(region.number, self._offset, given, timeout)
            else:
                update = region.update(signal)
                region.peer.write_signal(region.number, self._offset, given, *update, timeout)
        except _core.StatusError as raised:
            raise of_core(raised, region.peer) from None

    def signal(self, update: SignalUpdate, *, timeout: float | None = None) -> None:
        """Raises the signal of the memory and writes nothing. What this process has written before
        is visible to who sees it."""
        region = self._region
        number, offset, value, add = region.update(update)
        try:
            region.peer.write_signal(number, 0, b"", number, offset, value, add, timeout)
        except _core.StatusError as raised:
            raise of_core(raised, region.peer) from None

    # ------------------------------------------------------------------------------- begun

    def start_read(self, out: Any) -> Operation:
        """Begins ``read``. ``out`` has to be in C order, and is not to be looked at before the
        end."""
        into = self._destination(out)
        if not into.flags.c_contiguous:
            raise ValueError("what a read is started into has to be in C order")
        return self._begin(_core.READ, into, None)

    def start_write(self, value: Any, *, signal: SignalUpdate | None = None) -> Operation:
        """Begins ``write``. ``value`` is not to be changed before the end."""
        return self._begin(_core.WRITE, self._source(value), signal)

    def _begin(self, kind: int, local: Array, signal: SignalUpdate | None) -> Operation:
        region = self._region
        if not self._dense or signal is not None:
            return self._batch(kind, local, signal)
        if not local.nbytes:
            return Operation(region.peer, None)
        access = partial(region.peer.access, kind, region.number, self._offset, memory(local))
        return self._operation(access)

    def _operation(self, start: Callable[..., _core.Access]) -> Operation:
        return Operation.begin(self._region.peer, start, (self._region.number,))

    def _batch(
        self,
        kind: int,
        local: Array,
        signal: SignalUpdate | None,
        begun: list[_core.Access] | None = None,
    ) -> Operation:
        return self._start(self._layout.rows(kind, self._region.number, 0), local, signal, begun)

    def _start(
        self,
        rows: Rows,
        local: Array,
        signal: SignalUpdate | None,
        begun: list[_core.Access] | None = None,
    ) -> Operation:
        """begun: gets the operation in the step that begins it, which Ctrl-C cannot part."""
        region = self._region
        update = None if signal is None else region.update(signal)
        try:
            batch = region.peer.prepare(memory(local), rows.data, update)
        except _core.StatusError as raised:
            raise of_core(raised, region.peer) from None
        if begun is None:
            return self._operation(batch.start)
        return self._operation(partial(_begun_in, begun, batch.start))

    # ------------------------------------------------------------------------------- words

    def fetch_add(
        self,
        index: SupportsIndex | tuple[SupportsIndex, ...],
        value: SupportsIndex,
        *,
        timeout: float | None = None,
    ) -> int:
        """Adds to one element, modulo 2^64, atomically towards the owner and all peers; the value
        before. Needs the right to update. TypeError: the dtype is not uint64. After
        DeadlineExceededError and PeerLostError it may have been done."""
        region = self._region
        offset = self._word(index)
        try:
            added = operator.index(value) & _LARGEST
            return region.peer.fetch_add(region.number, offset, added, timeout)
        except _core.StatusError as raised:
            raise of_core(raised, region.peer) from None

    def compare_swap(
        self,
        index: SupportsIndex | tuple[SupportsIndex, ...],
        expected: SupportsIndex,
        value: SupportsIndex,
        *,
        timeout: float | None = None,
    ) -> int:
        """Gives one element ``value`` if it is ``expected``, as ``fetch_add`` does its work; the
        value before."""
        region = self._region
        offset = self._word(index)
        try:
            return region.peer.compare_swap(
                region.number,
                offset,
                operator.index(expected) & _LARGEST,
                operator.index(value) & _LARGEST,
                timeout,
            )
        except _core.StatusError as raised:
            raise of_core(raised, region.peer) from None

    async def fetch_add_async(
        self,
        index: SupportsIndex | tuple[SupportsIndex, ...],
        value: SupportsIndex,
        *,
        timeout: float | None = None,
    ) -> int:
        """``fetch_add`` in a coroutine."""
        return await self._updated(_core.FETCH_ADD, index, value, 0, timeout)

    async def compare_swap_async(
        self,
        index: SupportsIndex | tuple[SupportsIndex, ...],
        expected: SupportsIndex,
        value: SupportsIndex,
        *,
        timeout: float | None = None,
    ) -> int:
        """``compare_swap`` in a coroutine."""
        return await self._updated(_core.COMPARE_SWAP, index, value, expected, timeout)

    async def _updated(
        self,
        kind: int,
        index: Any,
        value: SupportsIndex,
        expected: SupportsIndex,
        timeout: float | None,
    ) -> int:
        region = self._region
        before = np.empty(1, np.uint64)
        start = partial(
            region.peer.access,
            kind,
            region.number,
            self._word(index),
            before.data,
            operator.index(value) & _LARGEST,
            operator.index(expected) & _LARGEST,
        )
        await self._operation(start).wait_async(timeout)
        return int(before[0])

    def _word(self, index: Any) -> int:
        if self.dtype != _WORD:
            raise TypeError(f"only words of uint64 are updated, and this is {self.dtype}")
        layout = self._layout
        if len(self.shape) == 1 and type(index) is int and 0 <= index < self.shape[0]:
            return layout.offset + index * layout.strides[0]
        part = layout.part(index)
        if part.shape:
            raise IndexError(f"{index!r} is not the index of one element of shape {self.shape}")
        return part.offset

    # -------------------------------------------------------------------------------- rows

    def gather(
        self,
        rows: Any,
        out: Any = None,
        *,
        framework: Framework = "numpy",
        timeout: float | None = None,
    ) -> Any:
        """Reads ``tensor[row]`` for each of ``rows``, integers of any shape, as one operation: a
        new tensor of the ``framework``, of the shape of ``rows`` and that of a row, or ``out``, in
        C order. IndexError."""
        operation, into = self._gathering(rows, out)
        operation.wait(timeout)
        return frameworks.of_array(into, framework) if out is None else out

    async def gather_async(
        self,
        rows: Any,
        out: Any = None,
        *,
        framework: Framework = "numpy",
        timeout: float | None = None,
    ) -> Any:
        """``gather`` in a coroutine."""
        operation, into = self._gathering(rows, out)
        await operation.wait_async(timeout)
        return frameworks.of_array(into, framework) if out is None else out

    def _gathering(self, rows: Any, out: Any) -> tuple[Operation, Array]:
        wanted = np.asarray(rows)
        numbers = self._layout.picked(wanted)
        shape = (*wanted.shape, *self.shape[1:])
        into = np.empty(shape, self.dtype) if out is None else destination(out, self.dtype)
        self._check(into, "out", shape)
        if not into.flags.c_contiguous or not into.flags.writeable:
            raise ValueError("what rows are gathered into has to be in C order, and writable")
        return self._start(self._rows(_core.READ, numbers), into, None), into

    def scatter(
        self,
        rows: Any,
        value: Any,
        *,
        signal: SignalUpdate | None = None,
        timeout: float | None = None,
    ) -> None:
        """Writes ``value[i]`` to ``tensor[rows[i]]``, as one operation. ValueError: one row is
        there twice."""
        self._scattering(rows, value, signal).wait(timeout)

    async def scatter_async(
        self,
        rows: Any,
        value: Any,
        *,
        signal: SignalUpdate | None = None,
        timeout: float | None = None,
    ) -> None:
        """``scatter`` in a coroutine."""
        await self._scattering(rows, value, signal).wait_async(timeout)

    def _scattering(self, rows: Any, value: Any, signal: SignalUpdate | None) -> Operation:
        wanted = np.asarray(rows)
        numbers = self._layout.picked(wanted)
        if len(np.unique(numbers)) < len(numbers):
            raise ValueError("one row is there twice, and which value it has would be left to luck")
        values = source(value, self.dtype)
        self._check(values, "value", (*wanted.shape, *self.shape[1:]))
        dense = np.ascontiguousarray(values)
        return self._start(self._rows(_core.WRITE, numbers), dense, signal)

    def _rows(self, kind: int, numbers: Rows) -> Rows:
        return self._layout.picked_rows(kind, self._region.number, 0, numbers)

    # ------------------------------------------------------------------------------- local ends

    def _destination(self, out: Any) -> Array:
        into = out if type(out) is np.ndarray else destination(out, self.dtype)
        self._check(into, "out")
        if not into.flags.writeable:
            raise ValueError("out is read-only")
        return into

    def _source(self, value: Any) -> Array:
        array = value if type(value) is np.ndarray else source(value, self.dtype)
        self._check(array, "value")
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def _check(self, array: Array, name: str, shape: tuple[int, ...] | None = None) -> None:
        if array.dtype != self.dtype:
            raise TypeError(f"{name} is {array.dtype}, and the remote tensor {self.dtype}")
        expected = self.shape if shape is None else shape
        if array.shape != expected:
            what = "the remote tensor" if shape is None else "so many rows"
            raise ValueError(f"{name} has the shape {array.shape}, and {what} {expected}")

    # ------------------------------------------------------------------------------- its end

    def close(self) -> None:
        """Gives the whole tensor back, with all its parts: memory that was allocated is free, other
        memory is open no more, unless it was opened again. May be called again, and when the peer
        is gone. DeadlineExceededError."""
        self._region.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _begun_in(
    begun: list[_core.Access], start: Callable[..., _core.Access], **options: Any
) -> _core.Access:
    begun.extend(starmap(partial(start, **options), [()]))
    return begun[-1]
