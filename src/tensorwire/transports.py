# SPDX-License-Identifier: Apache-2.0
"""The transports that the core has, as its table tells them."""

from __future__ import annotations

from functools import cache

from tensorwire import _core


@cache
def _table() -> dict[str, tuple[bool, bool]]:
    return {name: (local, lends) for name, local, lends in _core.transports()}


def names() -> tuple[str, ...]:
    """Best first; stock gRPC is none of them."""
    return tuple(_table())


def is_local(name: str) -> bool:
    """Whether it is for processes of one user on one host."""
    return _table()[name][0]


def lends(name: object) -> bool:
    """Whether nothing but want of room makes a sender copy what is large. False for what is no
    transport, or none to choose."""
    return any(lends for each, (_, lends) in _table().items() if each == name)


def why_not(name: str) -> str | None:
    """Why this process cannot have links by it, and what to do about it; None when it can."""
    return _core.transport_why_not(name)
