# SPDX-License-Identifier: Apache-2.0
"""Sets that keep nothing alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakMembers(Generic[T]):
    """Thread-safe. ``weakref.WeakSet`` is not: it may not be looked at while another thread lets go
    of a member. No lock guards this, since members also end in the middle of what holds it: each
    step is one operation of a set, which is whole with a GIL and without one."""

    def __init__(self) -> None:
        self._refs: set[weakref.ref[T]] = set()

    def add(self, member: T) -> None:
        self._refs.add(weakref.ref(member, self._refs.discard))

    def discard(self, member: T) -> None:
        self._refs.discard(weakref.ref(member))

    def members(self) -> list[T]:
        return _alive(self._refs.copy())

    def take(self) -> list[T]:
        """All members, which are members no longer."""
        taken = self._refs.copy()
        self._refs.difference_update(taken)
        return _alive(taken)


def _alive(refs: Iterable[weakref.ref[T]]) -> list[T]:
    return [member for ref in refs if (member := ref()) is not None]
