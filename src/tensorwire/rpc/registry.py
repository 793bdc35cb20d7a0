"""The open channels and servers of this process, for whoever watches all of them."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tensorwire.rpc import lifetime

if TYPE_CHECKING:
    from tensorwire.rpc.channel import Channel
    from tensorwire.rpc.serving import Server

T = TypeVar("T")


class Registry(Generic[T]):
    """Thread-safe. Keeps nothing alive. A child begins with an empty one."""

    def __init__(self) -> None:
        self._forget()
        lifetime.reset_after_fork(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[T] = weakref.WeakSet()

    def add(self, member: T) -> None:
        with self._lock:
            self._members.add(member)

    def discard(self, member: T) -> None:
        with self._lock:
            self._members.discard(member)

    def members(self) -> list[T]:
        with self._lock:
            return list(self._members)


CHANNELS: Final[Registry[Channel]] = Registry()
SERVERS: Final[Registry[Server]] = Registry()
