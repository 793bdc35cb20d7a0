# SPDX-License-Identifier: Apache-2.0
"""Metadata in the two forms it has: pairs that the core sends, and what users give and get."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from tensorwire import _core

Pair = tuple[str, str | bytes]

_KEY: Final = re.compile(r"[0-9a-z_.-]+").fullmatch
_VALUE: Final = re.compile(r"[ -~]*").fullmatch

# gRPC keeps these for itself: with grpcio they do not arrive when a user gives them.
_RESERVED: Final = frozenset(
    (
        "content-length",
        "content-type",
        "endpoint-load-metrics-bin",
        "grpc-accept-encoding",
        "grpc-encoding",
        "grpc-internal-encoding-request",
        "grpc-message",
        "grpc-previous-rpc-attempts",
        "grpc-server-stats-bin",
        "grpc-status",
        "grpc-tags-bin",
        "grpc-timeout",
        "grpc-trace-bin",
        "grpclb_client_stats",
        "lb-cost-bin",
        "te",
        "x-envoy-peer-metadata",
    )
)
# Servers refuse more than 8 KiB of metadata unless they were told otherwise, gRPC's own included,
# each pair with 32 bytes beside its text, and binary values in Base64.
_SAFE_BYTES: Final = 7 * 1024
_PAIR_BYTES: Final = 32

USER_AGENT: Final = "user-agent"
"""Says what made a client's channel. A call's metadata cannot change it."""


class Metadatum(NamedTuple):
    """One received pair; the value is bytes for keys that end in ``-bin``."""

    key: str
    value: str | bytes


class MetadataError(ValueError):
    """A pair that cannot travel."""


def incoming(pairs: Iterable[Pair] | None) -> tuple[Metadatum, ...]:
    return tuple(map(Metadatum._make, pairs)) if pairs else ()


def received(call: _core.ServerCall) -> tuple[Metadatum, ...]:
    """What a call's handler sees: its client's user agent and its own metadata."""
    agent = call.agent
    own = incoming(call.metadata)
    return (Metadatum(USER_AGENT, agent), *own) if agent else own


def outgoing(
    metadata: Iterable[tuple[str | bytes, str | bytes]], *, client: bool = False
) -> list[Pair]:
    """Checks what a user gave; raises MetadataError for keys and values that gRPC forbids, and
    TypeError for those of a wrong type. Leaves out what gRPC keeps for itself."""
    pairs: list[Pair] = []
    for key, value in metadata:
        if isinstance(key, bytes):
            key = key.decode("latin-1")
        elif not isinstance(key, str):
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
        if key not in _RESERVED and not (client and key == USER_AGENT):
            pairs.append((key, value))
    return pairs


def fitting(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Those that every gRPC server accepts together; the largest are left out first."""
    kept = list(pairs)
    excess = sum(map(_size, kept)) - _SAFE_BYTES
    while excess > 0:
        largest = max(kept, key=_size)
        kept.remove(largest)
        excess -= _size(largest)
    return tuple(kept)


def _size(pair: Pair) -> int:
    key, value = pair
    length = len(value) if isinstance(value, str) else -(-len(value) // 3) * 4
    return len(key) + length + _PAIR_BYTES
