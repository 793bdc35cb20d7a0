# SPDX-License-Identifier: Apache-2.0
"""Annotations as checks: what makes a TensorSpec inside an annotation hold."""

from __future__ import annotations

import collections.abc
import contextlib
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final

import numpy as np

from tensorwire.tensors import TensorSpec
from tensorwire.tensors.errors import PartError

Check = Callable[[Any], None]
"""Raises ``PartError``."""

STREAMS: Final = (collections.abc.Iterator, collections.abc.Generator)


def origin_of(hint: Any) -> Any:
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    return typing.get_origin(hint) or hint


def checker(hint: Any, strict: bool = False) -> Check | None:
    """What enforces the TensorSpecs inside an annotation; None if there are none. strict: plain
    types and arrays, too.

    Of a stream, it is the check of one item.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for extra in arguments[1:]:
            if isinstance(extra, TensorSpec):
                return _tensor_checker(extra)
        return checker(arguments[0], strict)
    if origin in STREAMS:
        return checker(arguments[0], strict) if arguments else None
    if strict:
        if hint is np.ndarray or origin is np.ndarray:
            return _tensor_checker(TensorSpec(dtype=_dtype_of(arguments)))
        if hint in _PLAIN:
            return _plain_checker(hint)
    parts = [checker(argument, strict) for argument in arguments if argument is not Ellipsis]
    if not any(parts):
        return None
    if origin in (typing.Union, types.UnionType):
        return _union_checker(type(None) in arguments, arguments, parts)
    if origin is tuple and Ellipsis not in arguments:
        return _tuple_checker(parts)
    if origin in (dict, collections.abc.Mapping):
        return _items_checker(dict, parts[1])
    if origin in (list, tuple, collections.abc.Sequence):
        return _items_checker((list, tuple), parts[0])
    return None


def _tensor_checker(spec: TensorSpec) -> Check:
    def check(value: Any) -> None:
        wrong = spec.check(value)
        if wrong:
            raise PartError(wrong)

    return check


def _dtype_of(arguments: tuple[Any, ...]) -> Any:
    """Of ``np.ndarray[shape, np.dtype[np.float32]]``, or ``NDArray[np.float32]``; None for any."""
    if len(arguments) < 2:
        return None
    (scalar,) = typing.get_args(arguments[1]) or (None,)
    # A kind of scalars, as np.floating is one, has no dtype of its own; neither has Any.
    kind = isinstance(scalar, type) and issubclass(scalar, np.generic)
    return np.dtype(scalar) if kind and not scalar.__subclasses__() else None


_PLAIN: Final[dict[Any, tuple[type, ...]]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
    complex: (complex, float, int, np.number),
    str: (str,),
    bytes: (bytes,),
    list: (list,),
    tuple: (tuple,),
    dict: (dict,),
}
"""What an annotation admits, as type checkers have it, and NumPy's scalars."""


def _plain_checker(hint: Any) -> Check:
    admitted = _PLAIN[hint]

    def check(value: Any) -> None:
        truth = isinstance(value, (bool, np.bool_)) and hint is not bool
        if truth or not isinstance(value, admitted):
            raise PartError(f"expected a value of type {hint.__name__}, got {_kind(value)}")

    return check


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _union_checker(
    optional: bool, arguments: tuple[Any, ...], parts: list[Check | None]
) -> Check | None:
    choices = [part for part in parts if part]
    if len(choices) + optional < len(arguments):
        return None  # one of the alternatives admits anything

    def check(value: Any) -> None:
        if optional and value is None:
            return
        for choice in choices[:-1]:
            with contextlib.suppress(PartError):
                return choice(value)
        choices[-1](value)

    return check


def _tuple_checker(parts: list[Check | None]) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, (list, tuple)) or len(value) != len(parts):
            raise PartError(f"expected {len(parts)} items, got {value!r:.40}")
        for index, (part, item) in enumerate(zip(parts, value, strict=True)):
            if part:
                check_within(part, item, index)

    return check


def _items_checker(kind: Any, part: Check | None) -> Check | None:
    if part is None:
        return None

    def check(value: Any) -> None:
        if not isinstance(value, kind):
            expected = "a dict" if kind is dict else "a list or tuple"
            raise PartError(f"expected {expected}, got a {type(value).__name__}")
        for key, item in value.items() if kind is dict else enumerate(value):
            check_within(part, item, key)

    return check


def check_within(check: Check, value: Any, key: object) -> None:
    try:
        check(value)
    except PartError as error:
        raise error.within(key) from None
