# SPDX-License-Identifier: Apache-2.0
"""Nested objects as a flat list of tokens and a list of tensors, and back."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorwire.tensors import dtypes, frameworks, wire
from tensorwire.tensors.errors import DecodeError, PartError
from tensorwire.tensors.spec import TensorSpec
from tensorwire.tensors.wire import Mark, TensorHead, Token

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

_PLAIN: Final = frozenset((type(None), bool, float))
_NO_LIKE: Final[Any] = object()


class Leaf:
    """A tensor of the tree on its way out: its memory in wire order."""

    __slots__ = ("copied", "head", "itemsize", "memory", "place")

    def __init__(self, host: frameworks.HostTensor, place: int) -> None:
        self.place = place
        array = host.array
        if array.ndim > wire.MAX_RANK:
            raise TypeError(f"rank {array.ndim}: at most {wire.MAX_RANK} can travel")
        order = None
        self.copied = host.copied
        shape = array.shape
        if not array.flags.c_contiguous:
            order = frameworks.dense_order(array)
            if order is None:
                array = np.ascontiguousarray(array)
                self.copied = self.copied or frameworks.NON_CONTIGUOUS
            else:
                array = array.transpose(order)
        self.head = TensorHead(host.dtype, shape, array.nbytes, order, host.framework)
        self.itemsize = array.itemsize
        self.memory = frameworks.raw(array)


def wire_order(itemsizes: Sequence[int]) -> list[int]:
    """The tensors of a tree, by their numbers, as they follow the header. itemsizes: in bytes."""
    return sorted(range(len(itemsizes)), key=lambda number: -itemsizes[number])


class Flattener:
    """Walks one object; afterwards ``tokens`` and ``leaves`` describe it."""

    def __init__(self) -> None:
        self.tokens: list[Any] = []
        self.leaves: list[Leaf] = []

    def in_wire_order(self) -> list[Leaf]:
        """The leaves as they follow the header.

        Larger elements come first: a tensor's length is a multiple of its element size, hence every
        tensor of a joined message is aligned to its elements without any padding.
        """
        sizes = [leaf.itemsize for leaf in self.leaves]
        if all(size >= following for size, following in pairwise(sizes)):
            return self.leaves
        leaves = [self.leaves[number] for number in wire_order(sizes)]
        for index, leaf in enumerate(leaves):
            self.tokens[leaf.place] = (wire.TENSOR, index)
        return leaves

    def add(self, obj: Any, depth: int = 0) -> None:
        """Raises ``PartError`` for what cannot travel."""
        kind = type(obj)
        if kind in _PLAIN:
            self.tokens.append(obj)
        elif kind is np.ndarray:
            self._add_tensor(obj)
        elif kind is str:
            self._add_str(obj)
        elif kind is int:
            self._add_int(obj)
        elif isinstance(obj, (dict, list, tuple, Mapping)):
            if depth >= wire.MAX_DEPTH:
                raise PartError(f"nested deeper than {wire.MAX_DEPTH} levels, or holding itself")
            if isinstance(obj, (list, tuple)):
                self._add_sequence(obj, depth + 1)
            else:
                self._add_mapping(obj, depth + 1)
        else:
            self._add_other(obj)

    def _add_sequence(self, items: list[Any] | tuple[Any, ...], depth: int) -> None:
        place = len(self.tokens)
        self.tokens.append(None)
        add = self.add
        done = 0
        try:
            for item in items:
                add(item, depth)
                done += 1
        except PartError as error:
            raise error.within(done) from None
        # Counted, not len(): another thread may have changed the list on the way.
        self.tokens[place] = (wire.LIST if isinstance(items, list) else wire.TUPLE, done)

    def _add_mapping(self, items: Mapping[Any, Any], depth: int) -> None:
        place = len(self.tokens)
        self.tokens.append(None)
        add = self.add
        done = 0
        key: object = None
        try:
            for key, value in items.items():
                self._add_key(key)
                add(value, depth)
                done += 1
        except PartError as error:
            raise error.within(key) from None
        self.tokens[place] = (wire.DICT, done)

    def _add_key(self, key: object) -> None:
        if type(key) in _PLAIN:
            self.tokens.append(key)
        elif isinstance(key, str):
            self._add_str(str.__str__(key))
        elif isinstance(key, bytes):
            self.tokens.append((wire.BYTES, 0, bytes(key)))
        elif isinstance(key, int) and _fits(key):
            self.tokens.append(int(key))
        elif isinstance(key, int):
            raise PartError("an int of more than 64 bits cannot be a key on the wire")
        else:
            raise PartError(f"a {type(key).__name__} cannot be a key on the wire")

    def _add_str(self, text: str) -> None:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise PartError("a str that is no valid Unicode (lone surrogates)") from None
        self.tokens.append(text)

    def _add_int(self, number: int) -> None:
        if _fits(number):
            self.tokens.append(number)
        else:
            data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
            self.tokens.append((wire.INTEGER, 0, data))

    def _add_tensor(self, obj: object) -> bool:
        try:
            host = frameworks.as_host(obj)
            if host is None:
                return False
            leaf = Leaf(host, len(self.tokens))
        except TypeError as error:
            raise PartError(str(error)) from error.__cause__
        self.tokens.append((wire.TENSOR, len(self.leaves)))
        self.leaves.append(leaf)
        return True

    def _add_other(self, obj: Any) -> None:
        # NumPy's str_, bytes_ and float64 are subclasses of Python's types.
        if isinstance(obj, np.generic) and not isinstance(obj, (str, bytes)):
            try:
                name = dtypes.name_of(obj.dtype)
            except TypeError as error:
                raise PartError(str(error)) from None
            self.tokens += ((wire.SCALAR, 0, obj.tobytes()), name)
        elif isinstance(obj, str):
            self._add_str(str.__str__(obj))
        elif isinstance(obj, int):
            self._add_int(int(obj))
        elif isinstance(obj, float):
            self.tokens.append(float(obj))
        elif isinstance(obj, complex):
            self.tokens += ((wire.COMPLEX, 0), obj.real, obj.imag)
        elif isinstance(obj, bytes):
            self.tokens.append((wire.BYTES, 0, bytes(obj)))
        elif not self._add_tensor(obj):
            cls = type(obj)
            raise PartError(
                f"a {cls.__module__}.{cls.__qualname__} is neither a tensor nor a plain value: "
                f"{_instead(obj)}"
            )


def _instead(obj: Any) -> str:
    """What may be sent for an object that may not."""
    if hasattr(obj, "__array__"):
        return "make it an array first (np.asarray)"
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return "send its fields as a dict (vars, or dataclasses.asdict, which copies)"
    if isinstance(obj, enum.Enum):
        return "send its name or its value"
    if isinstance(obj, (datetime.date, datetime.time)):
        return "send its isoformat()"
    if isinstance(obj, datetime.timedelta):
        return "send its total_seconds()"
    if isinstance(obj, (set, frozenset)):
        return "send a list"
    return (
        "tensors, None, bool, int, float, complex, str, bytes, and lists, tuples and dicts of them "
        "may be sent"
    )


def paths(tokens: list[Any]) -> Iterator[str]:
    """The place of each tensor, in the order of the tree."""
    rest = iter(tokens)

    def walk(path: str) -> Iterator[str]:
        token = next(rest)
        if type(token) is not tuple:
            return
        mark, n = token[:2]
        if mark == wire.TENSOR:
            yield path
        elif mark in (wire.LIST, wire.TUPLE):
            for index in range(n):
                yield from walk(f"{path}[{index}]")
        elif mark == wire.DICT:
            for _ in range(n):
                key = next(rest)
                yield from walk(f"{path}[{key[2] if type(key) is tuple else key!r}]")
        elif mark == wire.COMPLEX:
            next(rest), next(rest)
        elif mark == wire.SCALAR:
            next(rest)

    return walk("obj")


def _fits(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 64


class Builder:
    """Rebuilds one object from a header and the memory of its tensors."""

    def __init__(
        self,
        header: wire.Header,
        segments: list[BytesLike],
        framework: str,
        copied: list[Any],
        writable: bool = False,
    ) -> None:
        """writable: arrays of NumPy are."""
        self._tokens: Iterator[Token] = iter(header.tokens)
        self._heads = header.tensors
        self._segments = segments
        self._framework = framework
        self._copied = copied
        self._writable = writable
        self._importable: dict[str, bool] = {"numpy": True}
        self._used = bytearray(len(header.tensors))

    def build(self, like: Any = _NO_LIKE) -> Any:
        """Raises ``DecodeError``, or ``PartError`` for what is wrong with one part."""
        result = self._node(like, 0)
        if next(self._tokens, self) is not self:
            raise DecodeError("values behind the end of the tree")
        if 0 in self._used:
            raise DecodeError(f"tensor {self._used.index(0)} does not occur in the tree")
        return result

    def _next(self) -> Token:
        for token in self._tokens:
            return token
        raise DecodeError("the tree ends early")

    def _node(self, like: Any, depth: int) -> Any:
        token = self._next()
        if type(token) is Mark:
            mark, n = token.mark, token.n
            if mark == wire.TENSOR:
                return self._tensor(n, like)
            if mark in (wire.LIST, wire.TUPLE, wire.DICT):
                if depth >= wire.MAX_DEPTH:
                    raise DecodeError(f"nested deeper than {wire.MAX_DEPTH} levels")
                if n < 0:
                    raise DecodeError(f"a container of {n} items")
                if mark == wire.DICT:
                    return self._dict(n, like, depth + 1)
                return self._sequence(list if mark == wire.LIST else tuple, n, like, depth + 1)
            value = self._long_plain(token)
        else:
            value = token
        if like is not _NO_LIKE:
            _match_plain(value, like)
        return value

    def _long_plain(self, token: Mark) -> Any:
        if token.mark == wire.BYTES:
            return token.data
        if token.mark == wire.INTEGER:
            return int.from_bytes(token.data, "little", signed=True)
        if token.mark == wire.COMPLEX:
            real, imag = self._next(), self._next()
            if type(real) is float and type(imag) is float:
                return complex(real, imag)
        elif token.mark == wire.SCALAR:
            name = self._next()
            if type(name) is str:
                if dtypes.itemsize_of(name) != len(token.data):
                    raise DecodeError(f"a scalar {name} of {len(token.data)} bytes")
                return np.frombuffer(token.data, dtypes.resolve(name))[0]
        raise DecodeError(f"malformed value of kind {token.mark}")

    def _sequence(self, kind: type, n: int, like: Any, depth: int) -> Any:
        items: list[Any] = []
        likes: Any = None
        if like is not _NO_LIKE:
            if not isinstance(like, (list, tuple)) or not isinstance(like, kind) or len(like) != n:
                raise PartError(f"expected {_words(like)}, got a {kind.__name__} of {n}")
            likes = like
        node = self._node
        try:
            # Tokens are taken one by one: a false count runs out of them before it costs memory.
            while len(items) < n:
                items.append(node(_NO_LIKE if likes is None else likes[len(items)], depth))
        except PartError as error:
            raise error.within(len(items)) from None
        if kind is list:
            return items
        if likes is not None and hasattr(likes, "_fields"):
            return type(likes)(*items)
        return tuple(items)

    def _dict(self, n: int, like: Any, depth: int) -> dict[Any, Any]:
        if like is not _NO_LIKE and not isinstance(like, Mapping):
            raise PartError(f"expected {_words(like)}, got a dict of {n}")
        result: dict[Any, Any] = {}
        key: Any = None
        try:
            for _ in range(n):
                key = self._next()
                if type(key) is Mark:
                    if key.mark != wire.BYTES:
                        raise DecodeError("a key that is no plain value")
                    key = key.data
                if key in result:
                    raise DecodeError(f"key {key!r:.40} twice in one dict")
                part = _NO_LIKE
                if like is not _NO_LIKE:
                    if key not in like:
                        raise PartError("a key that was not expected")
                    part = like[key]
                result[key] = self._node(part, depth)
        except PartError as error:
            raise error.within(key) from None
        if like is not _NO_LIKE and len(result) < len(like):
            missing = next(key for key in like if key not in result)
            raise PartError("missing").within(missing)
        return result

    def _tensor(self, index: int, like: Any) -> Any:
        if not 0 <= index < len(self._heads):
            raise DecodeError(f"tensor {index} of {len(self._heads)}")
        if self._used[index]:
            raise DecodeError(f"tensor {index} occurs twice in the tree")
        self._used[index] = 1
        head = self._heads[index]
        framework = self._framework
        if like is not _NO_LIKE:
            spec = like if isinstance(like, TensorSpec) else TensorSpec.of(like)
            if spec is None or isinstance(like, np.generic):
                raise PartError(f"expected {_words(like)}, got a tensor {head}")
            wrong = spec.objection(head.dtype, head.shape)
            if wrong:
                raise PartError(wrong)
            if spec is not like:
                framework = frameworks.framework_of(like)
        if framework == "same":
            framework = self._same(head.framework)
        try:
            memory = self._segments[index]
            tensor, copied = (
                frameworks.writable_from_memory(head, memory)
                if self._writable and framework == "numpy"
                else frameworks.from_memory(head, memory, framework)
            )
        except DecodeError as error:
            raise PartError(str(error)) from None
        if copied:
            self._copied.append((copied, head.nbytes))
        return tensor

    def _same(self, code: int) -> str:
        """The sender's framework where it can be imported, else NumPy."""
        name = frameworks.NAMES[code] if 0 <= code < len(frameworks.NAMES) else "numpy"
        if name not in self._importable:
            self._importable[name] = frameworks.is_importable(name)
        return name if self._importable[name] else "numpy"


def _match_plain(value: Any, like: Any) -> None:
    kind, wanted = type(value), type(like)
    if isinstance(value, np.generic):
        spec = like if isinstance(like, TensorSpec) else TensorSpec.of(like)
        if spec is not None:
            wrong = spec.objection(dtypes.name_of(value.dtype), ())
            if wrong:
                raise PartError(wrong)
            return
    if kind is not wanted and not (kind is int and wanted is float):
        raise PartError(f"expected {_words(like)}, got {_said(value)}")


def _said(value: Any) -> str:
    """What a peer chose, however large it is: Python writes no integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an int of {value.bit_length()} bits"
    return f"{value[:40] if isinstance(value, (str, bytes)) else value!r:.40}"


def _words(like: Any) -> str:
    spec = like if isinstance(like, TensorSpec) else TensorSpec.of(like)
    if spec is not None:
        return f"a tensor {spec}"
    if isinstance(like, (list, tuple, Mapping)):
        return f"a {type(like).__name__} of {len(like)}"
    return f"a value of type {type(like).__name__}"
