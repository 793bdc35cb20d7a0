"""Metadata in the two forms it has: pairs that the core sends, and what users give and get."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

Pair = tuple[str, str | bytes]

_KEY: Final = re.compile(r"[0-9a-z_.-]+").fullmatch
_VALUE: Final = re.compile(r"[ -~]*").fullmatch


class Metadatum(NamedTuple):
    """One received pair; the value is bytes for keys that end in ``-bin``."""

    key: str
    value: str | bytes


class MetadataError(ValueError):
    """A pair that cannot travel."""


def incoming(pairs: Iterable[Pair] | None) -> tuple[Metadatum, ...]:
    return tuple(map(Metadatum._make, pairs)) if pairs else ()


def outgoing(metadata: Iterable[tuple[str, str | bytes]]) -> list[Pair]:
    """Checks what a user gave; raises MetadataError for keys and values that gRPC forbids, and
    TypeError for values of a wrong type."""
    pairs: list[Pair] = []
    for key, value in metadata:
        if not isinstance(key, str):
            raise TypeError(f"metadata key {key!r}: expected str, not {type(key).__name__}")
        if not _KEY(key):
            raise MetadataError(f"metadata key {key!r}: only 0-9 a-z _ . - are permitted")
        if key.endswith("-bin"):
            if not isinstance(value, bytes):
                raise TypeError(f"metadata {key!r}: expected bytes, not {type(value).__name__}")
        else:
            if isinstance(value, bytes):
                value = value.decode("latin-1")
            elif not isinstance(value, str):
                raise TypeError(f"metadata {key!r}: expected str, not {type(value).__name__}")
            if not _VALUE(value):
                raise MetadataError(
                    f"metadata {key!r}: its value may hold printable ASCII only; "
                    f"a key that ends in -bin takes any bytes"
                )
        pairs.append((key, value))
    return pairs
