# SPDX-License-Identifier: Apache-2.0
"""Nested objects of tensors and plain values as message segments, and back, without copying.

``dumps`` gives a header and one segment for each tensor; the segments lie over the tensors' own
memory. ``loads`` gives tensors that lie over the memory of the segments.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from tensorwire.tensors import dtypes, frameworks, tree, wire
from tensorwire.tensors.errors import DecodeError, PartError
from tensorwire.tensors.spec import TensorSpec
from tensorwire.tensors.wire import MAX_DEPTH, MAX_HEADER_BYTES, MAX_RANK, MAX_TENSORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer as BytesLike

__all__ = [
    "MAX_DEPTH",
    "MAX_HEADER_BYTES",
    "MAX_RANK",
    "MAX_TENSORS",
    "Copies",
    "DecodeError",
    "Deserializer",
    "TensorInfo",
    "TensorSpec",
    "copies",
    "describe",
    "deserializer",
    "dumps",
    "join",
    "loads",
    "serializer",
]

Framework = Literal["numpy", "torch", "tensorflow", "jax", "same"]
_FRAMEWORKS: Final = (*frameworks.NAMES, "same")
_LONE: Final = [wire.Mark(wire.TENSOR, 0)]
_Described = tuple[dtypes.DType, "tuple[int, ...] | None", int]
_lone_described: dict[bytes, _Described] = {}
"""Headers of messages that are one array: type, shape (None: it has one axis) and bytes."""
_MOST_DESCRIBED: Final = 256
_ANY: Final[Any] = tree._NO_LIKE


class TensorInfo(NamedTuple):
    """How one tensor of an object travels."""

    path: str
    """Where it is, as in ``obj['weights'][3]``."""
    framework: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    copied: str
    """Why ``dumps`` has to copy it once; empty if it travels from where it is."""


class Copies(NamedTuple):
    """Copies of tensor memory that this process made, since it started."""

    tensors: int
    nbytes: int
    reasons: dict[str, int]
    """Number of tensors for each reason, in the words of ``TensorInfo.copied``."""


_copies_lock = threading.Lock()
_copies: dict[str, list[int]] = {}


def _count(copied: list[tuple[str, int]]) -> None:
    with _copies_lock:
        for reason, nbytes in copied:
            entry = _copies.setdefault(reason, [0, 0])
            entry[0] += 1
            entry[1] += nbytes


def copies() -> Copies:
    """How many tensors ``dumps`` and ``loads`` had to copy so far, and why."""
    with _copies_lock:
        return Copies(
            sum(count for count, _ in _copies.values()),
            sum(nbytes for _, nbytes in _copies.values()),
            {reason: count for reason, (count, _) in _copies.items()},
        )


def _flatten(obj: object) -> tree.Flattener:
    flattener = tree.Flattener()
    try:
        flattener.add(obj)
    except PartError as error:
        raise TypeError(error.sentence()) from error.__cause__
    return flattener


def dumps(obj: object) -> list[bytes | memoryview]:
    """The segments of ``obj``: a header and the memory of each tensor.

    ``obj`` is a nested dict (keys: str, int, float, bool, bytes, None), list or tuple of tensors
    and of None, bool, int, float, complex, str and bytes. A named tuple travels as a tuple, any
    mapping as a dict, a NumPy scalar as itself. Tensors are arrays and tensors of NumPy, PyTorch,
    TensorFlow and JAX in host memory, and whatever exports the buffer protocol or DLPack; elements
    are numbers, bool, datetime64 or timedelta64, not objects, text or records.

    Tensors that fill their memory densely, in any order of the axes, are not copied: the segments
    are views that keep them alive, so what is written to them before the send travels. Others are
    copied once; ``describe`` tells which, ``copies`` how many so far.

    Raises ``TypeError`` that names the place, as in ``obj['a'][3]``, for what cannot travel, and
    ``ValueError`` for more than MAX_TENSORS tensors or MAX_HEADER_BYTES of plain values.
    """
    if type(obj) is np.ndarray and (header := header_of(obj)) is not None:
        return [header, frameworks.raw(obj)]
    flattener = _flatten(obj)
    leaves = flattener.in_wire_order()
    copied = [(leaf.copied, leaf.head.nbytes) for leaf in leaves if leaf.copied]
    if copied:
        _count(copied)
    segments: list[bytes | memoryview]
    segments = [wire.encode([leaf.head for leaf in leaves], flattener.tokens)]
    segments += [leaf.memory for leaf in leaves]
    return segments


def header_of(array: np.ndarray[Any, Any]) -> bytes | None:
    """Of the message that is this array alone, whose memory follows it as it is. None: it has to be
    copied first, or cannot travel; ``dumps`` tells."""
    if array.flags.c_contiguous and array.ndim <= MAX_RANK:
        return _lone_header(array.dtype, array.shape)
    return None


@lru_cache(256)
def _lone_header(dtype: dtypes.DType, shape: tuple[int, ...]) -> bytes | None:
    """Of a message that is one array of NumPy; None for one that cannot travel."""
    try:
        name = dtypes.name_of(dtype)
    except TypeError:
        return None
    head = wire.TensorHead(name, shape, math.prod(shape) * dtype.itemsize, None, frameworks.NUMPY)
    token: Any = (wire.TENSOR, 0)
    return wire.encode([head], [token])


def join(segments: Sequence[BytesLike]) -> bytes:
    """The segments of ``dumps`` copied into one ``bytes``, for transports without segments."""
    return b"".join(segments)


def describe(obj: object) -> list[TensorInfo]:
    """How each tensor of ``obj`` would travel, and which would be copied first.

    Raises what ``dumps`` raises for parts that cannot travel.
    """
    flattener = _flatten(obj)
    found = []
    for path, leaf in zip(tree.paths(flattener.tokens), flattener.leaves, strict=True):
        head = leaf.head
        framework = frameworks.NAMES[head.framework]
        found.append(TensorInfo(path, framework, head.dtype, head.shape, head.nbytes, leaf.copied))
    return found


def loads(
    segments: BytesLike | Sequence[BytesLike],
    *,
    framework: Framework = "numpy",
    like: object = _ANY,
    writable: bool = False,
) -> Any:
    """The object that ``dumps`` was given, over the memory of ``segments``.

    segments: what ``dumps`` gave, or the same bytes joined, as one bytes-like object.

    framework: what tensors become. NumPy arrays are read-only, unless ``writable``. Those, and
    tensors of torch and TensorFlow, may be written, which stays private to this process: memory
    that the runtime received is private, memory that is writable is taken as it is, and any other
    is copied once. ``"same"`` takes each tensor's own framework where it can be imported, else
    NumPy.

    like: an object of the structure that is expected. Keys and lengths must be the same, plain
    values of the same type, tensors of the same dtype and shape as the tensor or ``TensorSpec`` in
    that place. A tensor there also chooses the framework, a named tuple the type of the tuple.

    Raises ``DecodeError``: no tensor message, damaged, past a limit, not ``like`` what was
    expected, or of a dtype that the framework lacks. Nothing is allocated for it before its length
    was checked. ``ImportError`` when ``framework`` cannot be imported.
    """
    if framework not in _FRAMEWORKS:
        raise ValueError(f"framework is one of {', '.join(_FRAMEWORKS)}, not {framework!r}")
    if framework == "numpy" and like is _ANY and not writable:
        array = _lone(segments)
        if array is not None:
            return array
    header, tensors = _split(segments)
    copied: list[tuple[str, int]] = []
    builder = tree.Builder(header, tensors, framework, copied, writable)
    try:
        result = builder.build(like)
    except PartError as error:
        raise DecodeError(error.sentence()) from None
    finally:
        if copied:
            _count(copied)
    return result


def _lone(segments: BytesLike | Sequence[BytesLike]) -> object:
    """The array of a message that is one array, which is what small messages mostly are; None for
    any other, and for one that is damaged."""
    if not isinstance(segments, (list, tuple)) or len(segments) != 2:
        return None
    header = segments[0]
    if type(header) is not bytes:
        view = memoryview(header)
        if view.nbytes > wire.SHORT:
            return None
        header = bytes(view)
    described = _lone_described.get(header)
    if described is None:
        described = _describe_lone(header)
        if described is None:
            return None
    dtype, shape, nbytes = described
    memory = memoryview(segments[1])
    if memory.nbytes != nbytes or not memory.c_contiguous:
        return None
    # Over writable memory an array could be made writable again.
    array: Any = np.frombuffer(memory if memory.readonly else memory.toreadonly(), dtype)
    return array if shape is None else array.reshape(shape)


def stacked(
    header: bytes, memory: memoryview, nbytes: int
) -> np.ndarray[tuple[int, ...], Any] | None:
    """The arrays of messages that are one array each and have the same header, along a first axis.

    memory: bytes of these arrays, one after the other, each of ``nbytes``. The result is read-only
    and lies over it. None: they have to be loaded one by one.
    """
    described = _lone_described.get(header) or _describe_lone(header)
    if described is None or described[2] != nbytes:
        return None
    dtype, shape, _ = described
    # A row of no axes is no array; and some NumPy has room for no axis more.
    if shape is not None and not 0 < len(shape) < MAX_RANK:
        return None
    arrays: Any = np.frombuffer(memory.toreadonly(), dtype)
    found: np.ndarray[tuple[int, ...], Any]
    found = arrays.reshape(-1, *(shape or (nbytes // dtype.itemsize,)))
    return found


def _describe_lone(header: bytes) -> _Described | None:
    """Keeps what ``_lone`` needs of a header that was decoded before."""
    decoded = wire.decoded_before(header)
    if decoded is None or decoded.tokens != _LONE or len(decoded.tensors) != 1:
        return None
    head = decoded.tensors[0]
    if head.order is not None:
        return None
    flat = len(head.shape) == 1
    described = (dtypes.resolve(head.dtype), None if flat else head.shape, head.nbytes)
    if len(_lone_described) >= _MOST_DESCRIBED:
        _lone_described.clear()
    _lone_described[header] = described
    return described


def _split(segments: BytesLike | Sequence[BytesLike]) -> tuple[wire.Header, list[BytesLike]]:
    """The header, and memory of exactly the announced length for each tensor."""
    if not isinstance(segments, (list, tuple)):
        joined: Any = segments
        return _split_joined(_flat(joined))
    if not segments:
        raise DecodeError("no segments: a tensor message has at least a header")
    first = _flat(segments[0])
    if len(segments) == 1:
        return _split_joined(first)
    header = wire.decode(first)
    tensors = list(segments[1:])
    if len(tensors) != len(header.tensors):
        raise DecodeError(f"{len(tensors)} tensor segments, {len(header.tensors)} announced")
    for index, (head, memory) in enumerate(zip(header.tensors, tensors, strict=True)):
        view = memoryview(memory)
        if not view.c_contiguous:
            raise TypeError(f"segment {index + 1} is not contiguous")
        nbytes = view.nbytes
        if nbytes != head.nbytes:
            raise DecodeError(f"tensor {index}: {nbytes} bytes, announced as {head.nbytes}")
    return header, tensors


def _split_joined(message: memoryview) -> tuple[wire.Header, list[BytesLike]]:
    offset, _ = wire.segment_length(message)
    header = wire.decode(message[:offset])
    total = offset + sum(head.nbytes for head in header.tensors)
    if total != len(message):
        raise DecodeError(f"message of {len(message)} bytes, announced as {total}")
    tensors: list[BytesLike] = []
    for head in header.tensors:
        tensors.append(message[offset : offset + head.nbytes])
        offset += head.nbytes
    return header, tensors


def _flat(segment: BytesLike) -> memoryview:
    view = memoryview(segment)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def serializer(obj: object) -> list[bytes | memoryview]:
    """``dumps``, to be passed as a serializer to a channel or handler of tensorwire."""
    return dumps(obj)


class Deserializer:
    """``loads`` with fixed options, to be passed as a deserializer to a channel or handler.

    tensorwire hands it the segments without joining them; stock gRPC hands it joined bytes.
    """

    __tensorwire_segments__ = True

    def __init__(self, *, framework: Framework = "numpy", like: object = _ANY) -> None:
        self._framework = framework
        self._like = like

    def __call__(self, segments: BytesLike | Sequence[BytesLike]) -> Any:
        return loads(segments, framework=self._framework, like=self._like)


deserializer: Final = Deserializer()
