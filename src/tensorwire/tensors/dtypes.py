# SPDX-License-Identifier: Apache-2.0
"""The element types that travel, and their names on the wire.

A name is NumPy's own, or that of ml_dtypes, with ``>`` in front for big-endian elements. A type is
refused when its elements are not plain numbers of the same size on every machine.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

import numpy as np

from tensorwire.tensors.errors import DecodeError

DType = np.dtype[Any]

_NUMPY: Final = (
    "bool",
    *(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")),
    *("float16", "float32", "float64", "complex64", "complex128"),
)

# Names known to ml_dtypes with the bytes of one element in NumPy, where each of the sub-byte types
# takes a byte of its own. Kept here so that lengths can be checked without ml_dtypes.
EXTENDED: Final = {
    "bfloat16": 2,
    "complex32": 4,
    "bcomplex32": 4,
    **dict.fromkeys(
        (
            *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
            *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
            *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
            *("int1", "uint1", "int2", "uint2", "int4", "uint4"),
        ),
        1,
    ),
}

# Frameworks may pack these, so that their bytes are not the bytes on the wire.
SUB_BYTE: Final = frozenset(
    name for name in EXTENDED if name.startswith(("int", "uint", "float4", "float6"))
)

_MOST_UNITS: Final = 999_999_999
_TIME: Final = re.compile(
    r"(?:datetime64|timedelta64)\[(?:[1-9][0-9]{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]"
)

_name_of: dict[DType, str] = {}
_own: dict[str, DType] = {}
_itemsize_of: dict[str, int] = dict(EXTENDED)
for _name in _NUMPY:
    _dtype = np.dtype(_name)
    _name_of[_dtype] = _name
    _own[_name] = _dtype
    _itemsize_of[_name] = _dtype.itemsize
    if _dtype.itemsize > 1:
        _name_of[_dtype.newbyteorder(">")] = ">" + _name
        _itemsize_of[">" + _name] = _dtype.itemsize


def name_of(dtype: DType) -> str:
    """The wire name of a NumPy dtype; ``TypeError`` with the reason if it cannot travel."""
    name = _name_of.get(dtype)
    if name is not None:
        return name
    if dtype.kind in "mM" and dtype.name.endswith("]"):
        name = dtype.newbyteorder("=").name
        if not _TIME.fullmatch(name):
            raise TypeError(f"dtype {dtype} counts in more units than can travel: {_MOST_UNITS}")
        return name if dtype.isnative else ">" + name
    if dtype.type.__module__ == "ml_dtypes" and dtype.name in EXTENDED:
        _name_of[dtype] = dtype.name
        return dtype.name
    raise TypeError(_refusal(dtype))


def _refusal(dtype: DType) -> str:
    if dtype.kind == "O":
        return "elements are Python objects (dtype object), not numbers"
    if dtype.names is not None or dtype.subdtype is not None:
        return f"structured dtype {dtype}: send its fields as a dict of arrays"
    if dtype.kind in "SUT":
        return f"elements are text or bytes (dtype {dtype}): send a list of str or bytes"
    if dtype.kind in "mM":
        return f"dtype {dtype} has no unit: convert to {dtype.name}[ns] or another"
    if dtype.char in "gG":
        return f"dtype {dtype} differs between machines: convert to float64 or complex128"
    return f"dtype {dtype} cannot travel"


def require(name: str) -> None:
    """``TypeError`` when a framework's type of this name cannot travel."""
    if name not in _itemsize_of:
        raise TypeError(f"dtype {name} cannot travel")


def itemsize_of(name: str) -> int:
    """Bytes of one element; ``DecodeError`` for a name that this version does not know."""
    size = _itemsize_of.get(name)
    if size is None:
        if _TIME.fullmatch(name.removeprefix(">")) is None:
            raise DecodeError(f"unknown dtype {name[:40]!r}")
        size = 8
    return size


def resolve(name: str) -> DType:
    """The NumPy dtype behind a wire name.

    ``DecodeError`` for an unknown name, and for one that needs ml_dtypes where that is missing.
    """
    known = _own.get(name)
    if known is not None:
        return known
    itemsize_of(name)
    if name in EXTENDED:
        try:
            return _extended(name)
        except LookupError as missing:
            way_out = "or ask for the tensor in a framework that has the type itself"
            raise DecodeError(f"{missing.args[0]}, {way_out}") from None
    try:
        dtype = np.dtype(name.removeprefix(">"))
    except (TypeError, ValueError) as error:
        raise DecodeError(f"unknown dtype {name[:40]!r}: {error}") from None
    return dtype.newbyteorder(">") if name.startswith(">") else dtype


def own(name: str) -> DType:
    """As ``resolve``, for a name that no peer has chosen: it raises ``TypeError``."""
    try:
        return _extended(name) if name in EXTENDED else resolve(name)
    except (LookupError, DecodeError) as error:
        raise TypeError(error.args[0]) from None


def _extended(name: str) -> DType:
    """Raises LookupError with what to install."""
    try:
        import ml_dtypes
    except ImportError:
        text = f"dtype {name} needs the package ml_dtypes: pip install ml_dtypes"
        raise LookupError(text) from None
    scalar = getattr(ml_dtypes, name, None)
    if scalar is None:
        version = ml_dtypes.__version__
        raise LookupError(f"ml_dtypes {version} has no {name}: pip install --upgrade ml_dtypes")
    extended: DType = np.dtype(scalar)
    return extended


def storage(name: str) -> DType:
    """A dtype that plain NumPy has, of the same size: how bytes of ``name`` are carried about."""
    if name in EXTENDED:
        return np.dtype(f"u{EXTENDED[name]}")
    return resolve(name)


def parse(dtype: object) -> DType:
    """What a user means by ``dtype``: anything NumPy takes, a name of ml_dtypes, or the dtype of a
    framework (``torch.float32``, ``tf.float32``). ``TypeError`` if it cannot travel, or needs
    ml_dtypes where that is missing."""
    if isinstance(dtype, str) and dtype.removeprefix(">") in _itemsize_of:
        return own(dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, getattr(torch, "dtype", ())):
        return own(str(dtype).removeprefix("torch."))
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(dtype, getattr(tensorflow, "DType", ())):
        dtype = dtype.as_numpy_dtype  # type: ignore[attr-defined]
    parsed: DType = np.dtype(dtype)  # type: ignore[call-overload]
    name_of(parsed)
    return parsed
