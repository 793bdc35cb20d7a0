# SPDX-License-Identifier: Apache-2.0
"""Messages with memory that stands in for some of their bytes fields."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tensorwire.protobuf.fields import (
    AnyField,
    Path,
    entry_class,
    is_map,
    is_repeated,
    value_field,
)
from tensorwire.protobuf.wire import (
    BYTES,
    LARGE,
    MAP_VALUE,
    MAX_MESSAGE_BYTES,
    Found,
    Piece,
    key_of,
    varint,
)
from tensorwire.tensors import frameworks

if TYPE_CHECKING:
    from typing_extensions import Buffer

M = TypeVar("M", bound=Message)


class Attached(Generic[M]):
    """A message, and buffers that stand in for some of its ``bytes`` fields.

    ``request["raw_input_contents"] = [array]`` attaches, ``reply["raw_output_contents", 0]`` gives
    a view. What is in the brackets leads to a bytes field: names of fields, each followed by an
    index or a map's key where the field has several values. Without that last one it stands for all
    values: a list, or a dict for a map.

    Attaching does not copy: the buffer is read when the message is sent, once for each time. It is
    what exports the buffer protocol or DLPack, or a tensor of NumPy, PyTorch, TensorFlow or JAX in
    host memory; its elements, of any kind but Python objects, travel in C order, and one that is
    laid out differently is copied then and there. What a stock peer gets is the message with the
    bytes in their fields.

    Views are read-only. Those of a received message lie over what was received, and hold it for as
    long as they, or arrays over them, live. What was not attached is read from ``message``.

    ``message`` is an ordinary message, which holds empty bytes in the places of what is attached.
    Its other fields may be changed at any time. Lists and maps that something attached is in must
    keep their order and keys; ``del request["data"]`` detaches.

    Raises ``KeyError`` for a field, or a key of a map, that does not exist, ``IndexError`` for an
    index, ``TypeError`` for a path that does not end at bytes and for what has no memory.
    """

    __slots__ = ("_buffers", "message")

    def __init__(self, message: M) -> None:
        if not isinstance(message, Message):
            raise TypeError(f"a protobuf message is needed, not a {type(message).__name__}")
        self.message = message
        self._buffers: dict[Path, memoryview] = {}

    def __setitem__(self, path: str | Path, value: Any) -> None:
        # All that may raise comes before the first change: a oneof forgets what it held.
        _, field, where, key = _locate_bytes(self.message, path, new=True)
        if key is None and is_repeated(field):
            memories = _memories(field, value)
            self._set_all(getattr(_made(self.message, where), field.name), field, where, memories)
            return
        memory = _memory(value)
        owner = _made(self.message, where)
        if key is None:
            setattr(owner, field.name, b"")
        else:
            getattr(owner, field.name)[key] = b""
        self._buffers[where] = memory

    def _set_all(
        self, values: Any, field: AnyField, where: Path, memories: dict[Any, memoryview]
    ) -> None:
        if is_map(field):
            values.clear()
            for key in memories:
                values[key] = b""
        else:
            del values[:]
            values.extend([b""] * len(memories))
        for path in [path for path in self._buffers if path[:-1] == where]:
            del self._buffers[path]
        for key, memory in memories.items():
            self._buffers[(*where, key)] = memory

    def __getitem__(self, path: str | Path) -> Any:
        owner, field, where, key = _locate_bytes(self.message, path)
        value = getattr(owner, field.name)
        if key is not None:
            return self._view(where, value[key])
        if is_map(field):
            return {key: self._view((*where, key), value[key]) for key in value}
        if is_repeated(field):
            return [self._view((*where, index), item) for index, item in enumerate(value)]
        return self._view(where, value)

    def __delitem__(self, path: str | Path) -> None:
        """Detaches what is attached there or below. The message keeps its empty bytes. Raises
        ``KeyError`` when nothing is."""
        steps = path if isinstance(path, tuple) else (path,)
        with contextlib.suppress(KeyError, IndexError, TypeError):  # the place has left the message
            steps = _locate(self.message, path)[2]
        below = [where for where in self._buffers if where[: len(steps)] == steps]
        if not below:
            raise KeyError(f"nothing is attached to {path!r}")
        for where in below:
            del self._buffers[where]

    def _view(self, where: Path, inside: bytes) -> memoryview:
        attached = self._buffers.get(where)
        return memoryview(inside) if attached is None else attached.toreadonly()

    def __repr__(self) -> str:
        size = sum(map(len, self._buffers.values()))
        name = self.message.DESCRIPTOR.full_name
        return f"<Attached {name}: {len(self._buffers)} buffers of {size} bytes>"

    def plain(self) -> M:
        """A message of its own with all bytes in their fields, for code that knows nothing else.

        Copies them. Raises ``ValueError`` as ``segments`` does.
        """
        message = type(self.message)()
        message.ParseFromString(b"".join(self._pieces()))
        return message

    def segments(self) -> list[Piece]:
        """The message in protobuf's format, in pieces: large buffers are pieces of their own.

        Raises what ``SerializeToString`` raises, and ``ValueError`` for more than 2 GiB and when
        something was attached to what has left the message since.
        """
        if not self.message.IsInitialized():
            self.message.SerializeToString()  # says what is missing
        return _gathered(self._pieces())

    def _pieces(self) -> list[Piece]:
        tree: dict[Any, Any] = {}
        for path, memory in self._buffers.items():
            branch = tree
            for step in path[:-1]:
                branch = branch.setdefault(step, {})
            branch[path[-1]] = memory
        pieces = list(_serialized(self.message, tree))
        if sum(map(len, pieces)) > MAX_MESSAGE_BYTES:
            raise ValueError("a protobuf message has less than 2 GiB: send several")
        return pieces


def received(message: M, found: Found) -> Attached[M] | None:
    """A skeleton with what was taken out of it. None when protobuf, reading the whole, would not
    have that in these places."""
    if not all(_is_there(message, path) for path in found.views):
        return None
    for path, entries in found.entries.items():
        owner, field, _, _ = _locate(message, path)
        if len(getattr(owner, field.name)) != entries:
            return None  # a key came twice
    attached = Attached(message)
    attached._buffers = found.views
    return attached


def _is_there(message: Any, path: Path) -> bool:
    """False for a member of a oneof that another took the place of. Anything may be missing: a peer
    on this host can change what it lent between the two readings."""
    steps = iter(path)
    for name in steps:
        field = message.DESCRIPTOR.fields_by_name[name]
        value = getattr(message, name)
        if is_repeated(field):
            key = next(steps)
            if key not in value if is_map(field) else key >= len(value):
                return False
            value = value[key]
        elif field.has_presence and not message.HasField(name):
            return False
        message = value
    return True


def _locate(
    message: Any, path: str | Path, *, new: bool = False
) -> tuple[Any, AnyField, Path, Any]:
    """Where a path leads: the message with the field, the field, the path with indices counted from
    the front, and the index or key if there is one. ``new``: keys of maps need not be there.
    Changes nothing: a message that is missing on the way is an empty one outside."""
    steps = path if isinstance(path, tuple) else (path,)
    where: Path = ()
    at = 0
    while at < len(steps):
        name = steps[at]
        field = message.DESCRIPTOR.fields_by_name.get(name) if isinstance(name, str) else None
        if field is None:
            raise KeyError(f"{message.DESCRIPTOR.full_name} has no field {name!r}")
        where = (*where, name)
        at += 1
        key = None
        if is_repeated(field) and at < len(steps):
            key = _key(getattr(message, name), field, steps[at], new)
            where = (*where, key)
            at += 1
        if at == len(steps):
            return message, field, where, key
        if value_field(field).type != FieldDescriptor.TYPE_MESSAGE:
            raise TypeError(f"{field.full_name} holds no message: {steps[at]!r} is too much")
        value = getattr(message, name)
        if key is None:
            message = value
        elif is_map(field) and key not in value:
            message = entry_class(field)().value
        else:
            message = value[key]
    raise KeyError("the path to a field is empty")


def _locate_bytes(
    message: Any, path: str | Path, *, new: bool = False
) -> tuple[Any, AnyField, Path, Any]:
    found = _locate(message, path, new=new)
    if value_field(found[1]).type != FieldDescriptor.TYPE_BYTES:
        raise TypeError(f"{found[1].full_name} is not of the type bytes")
    return found


def _made(message: Any, where: Path) -> Any:
    """The message with the field to which a path of ``_locate`` leads. Messages that are missing on
    the way are made."""
    at = 0
    while True:
        name = where[at]
        several = is_repeated(message.DESCRIPTOR.fields_by_name[name])
        at += 2 if several else 1
        if at >= len(where):
            return message
        value = getattr(message, name)
        message = value[where[at - 1]] if several else value
        message.SetInParent()


def _key(values: Any, field: AnyField, key: Any, new: bool) -> Any:
    if is_map(field):
        key = _map_key(field, key)
        if not new and key not in values:
            raise KeyError(f"{field.full_name} has no key {key!r}")
        return key
    index = operator.index(key)
    if index < 0:
        index += len(values)
    if not 0 <= index < len(values):
        raise IndexError(f"{field.full_name} has {len(values)} values, none at {key}")
    return index


def _map_key(field: AnyField, key: Any) -> Any:
    """As the map has it: of bytes it makes text. Raises what the map would."""
    entry = entry_class(field)()
    entry.key = key
    return entry.key


def _memories(field: AnyField, value: Any) -> dict[Any, memoryview]:
    """Of all values of a field, by key or index."""
    if is_map(field):
        if not isinstance(value, Mapping):
            raise TypeError(f"{field.full_name} is a map: attach a dict of buffers")
        return {_map_key(field, key): _memory(item) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{field.full_name} is repeated: attach a list of buffers")
    return dict(enumerate(map(_memory, value)))


def _memory(value: Buffer | Any) -> memoryview:
    if isinstance(value, bytes):
        return memoryview(value)
    try:
        host = frameworks.as_host(value)
    except TypeError:
        array = _exported(value)
        if array is None:
            raise
    else:
        if host is None:
            raise TypeError(f"a {type(value).__name__} is no buffer and no tensor")
        array = host.array
    return frameworks.raw(np.ascontiguousarray(array))


def _exported(value: Any) -> frameworks.Array | None:
    """Memory whose elements no tensor has: byte strings, structures. None: there is none, or it
    holds Python objects."""
    if isinstance(value, (str, np.ma.MaskedArray)):
        return None
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value
    try:
        view = memoryview(value)
    except TypeError:
        return None
    if "O" in re.sub(":[^:]*:", "", view.format):  # without names of fields
        return None
    # NumPy guesses at structures of ctypes, so that it gets nothing but bytes where it can.
    return np.frombuffer(view, np.uint8) if view.c_contiguous else np.asarray(view)


def _serialized(message: Any, tree: Mapping[Any, Any]) -> Iterator[Piece]:
    """``tree``: what is attached, by name of field, and below that by index or key."""
    fields = message.DESCRIPTOR.fields_by_name
    rest = message
    if any(is_repeated(fields[name]) or fields[name].has_presence for name in tree):
        rest = type(message)()
        rest.CopyFrom(message)
        for name in tree:
            rest.ClearField(name)
    yield rest.SerializePartialToString()
    for name, attached in tree.items():
        field, value = fields[name], getattr(message, name)
        if not is_repeated(field):
            if field.has_presence and not message.HasField(name):
                raise _left(field)
            yield from _framed(field.number, _value(field, value, attached))
            continue
        keys = value if is_map(field) else range(len(value))
        if any(key not in keys for key in attached):
            raise _left(field)
        for key in keys:
            pieces = _value(value_field(field), value[key], attached.get(key))
            if is_map(field):
                entry = key_of(entry_class(field)(key=key).SerializePartialToString())
                pieces = [entry, *_framed(MAP_VALUE, pieces)]
            yield from _framed(field.number, pieces)


def _value(field: AnyField, value: Any, attached: Any) -> list[Piece]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        if attached is None:
            return [value]
        if value:
            raise ValueError(f"{field.full_name} was attached, and set in the message since")
        return [attached]
    if attached is None:
        return [value.SerializePartialToString()]
    return list(_serialized(value, attached))


def _left(field: AnyField) -> ValueError:
    return ValueError(
        f"{field.full_name} has left the message since something was attached to it: detach that "
        "(del attached[...])"
    )


def _framed(number: int, pieces: list[Piece]) -> list[Piece]:
    """One field of a message."""
    return [varint(number << 3 | BYTES) + varint(sum(map(len, pieces))), *pieces]


def _gathered(pieces: list[Piece]) -> list[Piece]:
    """The same bytes with neighbouring small pieces made one."""
    gathered: list[Piece] = []
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) < LARGE:
            small.append(piece)
            continue
        if small:
            gathered.append(b"".join(small))
            small = []
        gathered.append(piece)
    return [*gathered, b"".join(small)] if small or not gathered else gathered
