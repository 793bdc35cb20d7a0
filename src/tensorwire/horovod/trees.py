# SPDX-License-Identifier: Apache-2.0
"""Plain objects as bytes, without code in them: what Horovod pickles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from tensorwire.malformed import MALFORMED

Convert = Callable[[Any], Any]

_PLAIN: Final = (type(None), bool, float, str, bytes)
_SEQUENCES: Final[dict[str, type]] = {"list": list, "tuple": tuple, "set": set, "frozen": frozenset}
_NAMES: Final = {kind: name for name, kind in _SEQUENCES.items()}
_MAPPINGS: Final[dict[str, type]] = {"dict": dict, "ordered": OrderedDict}
_ARRAYS: Final = "biufc"
"""Kinds of arrays whose bytes are values."""


def encode(tree: Any, convert: Convert = lambda leaf: leaf) -> bytes:
    """``convert`` may make an array of a leaf that is none. TypeError says what cannot travel, and
    where in the tree it is; no other error comes, so that others can be told."""
    try:
        return msgspec.msgpack.encode(_wrapped(tree, convert, "the object"))
    except TypeError:
        raise
    except Exception as error:  # such as a RecursionError
        raise _stays("the object", error) from error


def decode(data: bytes, restore: Callable[[str, Any], Any] = lambda _, array: array) -> Any:
    """``restore`` makes of an array what it was, from the mark that ``convert`` gave it. ValueError
    for bytes that ``encode`` has not made."""
    try:
        return _unwrapped(msgspec.msgpack.decode(data), restore)
    except (*MALFORMED, IndexError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"no object of Horovod's: {error}") from None


class Marked:
    """An array that stands for something else."""

    def __init__(self, mark: str, array: Any) -> None:
        self.mark = mark
        self.array = array


def _stays(where: str, error: Exception) -> TypeError:
    return TypeError(f"{where} cannot travel: {type(error).__name__}: {error}")


def _wrapped(tree: Any, convert: Convert, where: str) -> Any:
    kind = type(tree)
    if kind is str and not tree.isascii():
        try:
            tree.encode()
        except UnicodeEncodeError as error:
            raise _stays(where, error) from error
    if kind in _PLAIN:
        return tree
    if kind is int:
        return tree if -(1 << 63) <= tree < 1 << 63 else ["int", hex(tree)]
    if kind is complex:
        return ["complex", tree.real, tree.imag]
    if kind in _NAMES:
        return [_NAMES[kind], [_wrapped(each, convert, f"{where}[{i}]") for i, each in
                               enumerate(tree)]]  # fmt: skip
    for name, mapping in _MAPPINGS.items():
        if kind is mapping:
            return [
                name,
                [
                    [_wrapped(key, convert, where), _wrapped(value, convert, f"{where}[{key!r}]")]
                    for key, value in tree.items()
                ],
            ]
    try:
        leaf, mark = convert(tree), ""
    except Exception as error:
        raise _stays(where, error) from error
    if isinstance(leaf, Marked):
        leaf, mark = leaf.array, leaf.mark
    if isinstance(leaf, np.generic):
        leaf, mark = np.asarray(leaf), "scalar"
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in _ARRAYS:
        return ["array", mark, leaf.dtype.str, list(leaf.shape), leaf.tobytes()]
    raise TypeError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot travel: what does are "
        "numbers, text, bytes, None, tensors and arrays, in lists, tuples, sets and dicts; send "
        "what it is made of"
    )


def _unwrapped(wire: Any, restore: Callable[[str, Any], Any]) -> Any:
    if not isinstance(wire, list):
        return wire
    kind = wire[0]
    if kind == "int":
        return int(wire[1], 16)
    if kind == "complex":
        return complex(wire[1], wire[2])
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_unwrapped(each, restore) for each in wire[1])
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](
            (_unwrapped(key, restore), _unwrapped(value, restore)) for key, value in wire[1]
        )
    _, mark, dtype, shape, data = wire
    array = np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()
    return array[()] if mark == "scalar" else restore(mark, array)
