# SPDX-License-Identifier: Apache-2.0
"""The open channels and servers of this process, for whoever watches all of them."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tensorwire.rpc import lifetime
from tensorwire.rpc.weak import WeakMembers

if TYPE_CHECKING:
    from tensorwire.rpc.client.channel import Channel
    from tensorwire.rpc.serving.server import Server

T = TypeVar("T")


class Registry(Generic[T]):
    """Thread-safe. Keeps nothing alive. A child begins with an empty one."""

    def __init__(self) -> None:
        self._forget()
        lifetime.reset_after_fork(self._forget)

    def _forget(self) -> None:
        self._members: WeakMembers[T] = WeakMembers()

    def add(self, member: T) -> None:
        self._members.add(member)

    def discard(self, member: T) -> None:
        self._members.discard(member)

    def members(self) -> list[T]:
        return self._members.members()


class Tally:
    """Counts by name, from the start of the process. Thread-safe. A child begins at 0."""

    def __init__(self) -> None:
        self._forget()
        lifetime.reset_after_fork(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


CHANNELS: Final[Registry[Channel]] = Registry()
SERVERS: Final[Registry[Server]] = Registry()
LOST: Final = Tally()
"""Links of channels that have ended without being closed, by transport."""
FAILED: Final = Tally()
"""Links of channels that could not be made although the server offered them, by transport."""
