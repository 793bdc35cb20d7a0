# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a group find each other.

A store has ``set(key, value)`` and ``get(key, timeout)``, which waits for the key and raises
``TimeoutError``. What it holds admits to the group: it must be in reach of the group's processes
and of nobody else.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, cast

import grpc

from tensorwire.collective.errors import (
    DEADLINE_EXCEEDED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    GroupError,
    GroupTimeoutError,
    RankLostError,
)
from tensorwire.rpc import Channel


class Store(Protocol):
    """Small values by key. A GroupTimeoutError says that the store itself does not answer."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout: float) -> bytes:
        """Waits for the key, so many seconds at most; TimeoutError when it has not come."""


class TorchStore(Protocol):
    """What is needed of those of ``torch.distributed``."""

    def set(self, key: str, value: bytes, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


class FileStore:
    """A folder that all ranks reach, one for each job. It is made, for this user only, when it is
    not there."""

    _LOOK: Final = 0.002  # seconds between looks for a key

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self._folder.stat()
        if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
            raise PermissionError(
                f"{self._folder}: others may write there, and so join the group: "
                "use a folder of this user's (chmod go-w)"
            )

    def _file(self, key: str) -> Path:
        return self._folder / key.replace("%", "%25").replace("/", "%2F")

    def set(self, key: str, value: bytes) -> None:
        # Whole or not at all, and for this user only.
        fresh = self._folder / f".{secrets.token_hex(8)}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(value)
        fresh.replace(self._file(key))

    def get(self, key: str, timeout: float) -> bytes:
        until = time.monotonic() + timeout
        while True:
            try:
                return self._file(key).read_bytes()
            except FileNotFoundError:
                if time.monotonic() >= until:
                    raise TimeoutError(f"nobody has set {key}") from None
            time.sleep(self._LOOK)


class PrefixStore:
    """A store in a store: each key begins with the prefix."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix = prefix
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, timeout: float) -> bytes:
        return self._store.get(f"{self._prefix}/{key}", timeout)


class WatchedStore:
    """A store that nobody waits at once a rank is lost. ``lost``: which one of those that meet
    there."""

    _LOOK: Final = 0.1  # seconds between looks at the ranks

    def __init__(self, store: Store, lost: Callable[[], int | None]) -> None:
        self._store = store
        self._lost = lost

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        """Raises :class:`~tensorwire.collective.RankLostError`, too."""
        until = time.monotonic() + timeout
        while True:
            if (lost := self._lost()) is not None:
                raise RankLostError(UNAVAILABLE, f"rank {lost} of the new group is gone")
            left = until - time.monotonic()
            try:
                return self._store.get(key, max(0.0, min(left, self._LOOK)))
            except GroupTimeoutError:  # the store is not there
                raise
            except TimeoutError:
                if left <= 0:
                    raise


_SET: Final = "/tensorwire.v1.Store/Set"
_GET: Final = "/tensorwire.v1.Store/Get"
_MOST_KEYS: Final = 1 << 16
_LONGEST_KEY: Final = 1 << 10
_LONGEST_VALUE: Final = 1 << 16


class _Service:
    """Values of all groups that use the server."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._values: dict[str, bytes] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def set(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        length = int.from_bytes(request[:4], "little")
        key, value = self._key(request[4 : 4 + length], context), request[4 + length :]
        if len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the key or the value is too long")
        with self._lock:
            if key not in self._values and len(self._values) >= _MOST_KEYS:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the store is full")
            self._values[key] = value
            self._changed.notify_all()
        return b""

    def get(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Whether the key is there, at once: no thread of the server waits for a rank."""
        key = self._key(request, context)
        with self._lock:
            value = self._values.get(key)
        return b"" if value is None else b"\1" + value

    def _key(self, name: bytes, context: grpc.ServicerContext) -> str:
        try:
            key = name.decode()
        except UnicodeDecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the key is no text")
        if not key.startswith(self._prefix):
            context.abort(grpc.StatusCode.UNAVAILABLE, f"only keys of {self._prefix!r} are here")
        return key


def store_service(prefix: str = "") -> grpc.GenericRpcHandler:
    """A store to be served: give it to a server, and its address to :class:`RpcStore`. Whoever may
    call the server may join the groups. ``prefix``: other keys are refused, and asked for again
    until another server is at the address."""
    service = _Service(prefix)
    return grpc.method_handlers_generic_handler(
        "tensorwire.v1.Store",
        {
            "Set": grpc.unary_unary_rpc_method_handler(service.set),
            "Get": grpc.unary_unary_rpc_method_handler(service.get),
        },
    )


class RpcStore:
    """The store that a server has (:func:`store_service`), by its gRPC port.

    Raises :class:`~tensorwire.collective.GroupTimeoutError` when the server does not answer in
    time, and :class:`~tensorwire.collective.GroupError` when it is no store.
    """

    _LOOK: Final = 0.005
    _GONE: Final = 60.0  # seconds within which one that has answered once answers again

    def __init__(self, target: str | Channel, timeout: float | None = 60.0) -> None:
        """``target``: of a text the store is asked by gRPC, whatever TENSORWIRE_TRANSPORT says.
        ``timeout``: how long to wait for the server, in seconds; None: until it comes. One that has
        answered is waited for a minute at most."""
        channel: Any = grpc.insecure_channel(target) if isinstance(target, str) else target
        self._where = target if isinstance(target, str) else "the other end of the channel"
        self._set = channel.unary_unary(_SET)
        self._get = channel.unary_unary(_GET)
        self._patience = math.inf if timeout is None else timeout

    def set(self, key: str, value: bytes) -> None:
        name = key.encode()
        self._answer(self._set, len(name).to_bytes(4, "little") + name + value)

    def get(self, key: str, timeout: float) -> bytes:
        until = time.monotonic() + timeout
        while True:
            answer = self._answer(self._get, key.encode(), until)
            if answer:
                return answer[1:]
            if time.monotonic() >= until:
                raise TimeoutError(f"nobody has set {key}")
            time.sleep(self._LOOK)

    def _answer(self, method: Any, request: bytes, until: float = math.inf) -> bytes | None:
        """None: at ``until`` the server is going, or is one of others. A value that is set twice is
        the same."""
        patience = self._patience
        gone = time.monotonic() + patience
        said = ""
        while True:
            left = max(0.0, gone - time.monotonic())
            try:
                answer = method(
                    request, timeout=None if math.isinf(left) else left, wait_for_ready=True
                )
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise GroupError(
                        UNIMPLEMENTED,
                        f"the server at {self._where} is no store: add "
                        "collective.store_service() to its services",
                    ) from None
                # A server that stops cancels what has reached it.
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    said = f" (it said: {error.details()})"
                elif error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
            else:
                self._patience = min(self._patience, self._GONE)
                return bytes(answer)
            if time.monotonic() >= gone:
                raise GroupTimeoutError(
                    DEADLINE_EXCEEDED,
                    f"no store answers at {self._where} within {patience:g} s{said}; see whether "
                    "the server runs, and has collective.store_service() among its services",
                ) from None
            if time.monotonic() >= until:
                return None
            time.sleep(self._LOOK)


class _OfTorch:
    """A store of ``torch.distributed``."""

    _LOOK: Final = 0.005

    def __init__(self, store: TorchStore) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        # Not its wait(): while that waits no other thread can use the store, the shortest time is
        # for ever with some kinds and a second with others, and its end is no TimeoutError.
        until = time.monotonic() + timeout
        while not self._store.check([key]):
            if time.monotonic() >= until:
                raise TimeoutError(f"nobody has set {key}")
            time.sleep(self._LOOK)
        return bytes(self._store.get(key))


def store_of(
    given: Store | TorchStore | str | os.PathLike[str], timeout: float | None = 60.0
) -> Store:
    """``timeout``: how long to wait for a server, as RpcStore has it. TypeError for what is no
    store, and names none."""
    if isinstance(given, str) and ":" in given and "/" not in given:
        return RpcStore(given, timeout)
    if isinstance(given, str | os.PathLike):
        return FileStore(given)
    torch = sys.modules.get("torch.distributed")  # whoever has such a store has imported it
    if isinstance(given, getattr(torch, "Store", ())):
        return _OfTorch(cast("TorchStore", given))
    if not (hasattr(given, "set") and hasattr(given, "get")):
        raise TypeError(
            f"the store is a Store, one of torch.distributed, a folder or host:port, not {given!r}"
        )
    return cast("Store", given)
