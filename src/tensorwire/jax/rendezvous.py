# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a JAX program meet: by the store of JAX's own coordination service.

The library calls ``meet`` when JAX initializes its MPI, and the store whenever it makes a group.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from typing import Any, Final

from tensorwire import _core
from tensorwire.jax import library

log = logging.getLogger("tensorwire")

PREFIX: Final = "tensorwire"
"""Of all keys."""
TIMEOUT_SECONDS: Final = 1800.0
"""Of joining, and of each operation: what ranks may lag behind each other."""
_FOREVER_MS: Final = 24 * 3600 * 1000
_SENTENCE_BYTES: Final = 1024


class _Status(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int32), ("details", ctypes.c_char * 1020))


_STATUS: Final = ctypes.POINTER(_Status)
_GIVE: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
_SET: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, _STATUS
)
_GET: Final = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int64,
    _GIVE,
    ctypes.c_void_p,
    _STATUS,
)
_INTERRUPTED: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Store(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("set", _SET), ("get", _GET))


_OK: Final = 0
_UNKNOWN: Final = 2
_DEADLINE_EXCEEDED: Final = 4

_kept: list[_Store] = []  # for as long as the process makes groups


def _report(status: Any, code: int, error: BaseException) -> int:
    status.contents.code = code
    status.contents.details = f"JAX's coordination service: {error}".encode()[:1000]
    return code


def store_of(client: Any) -> _Store:
    """JAX's store as the core takes it."""

    def put(_: int, key: bytes, value: int, size: int, status: Any) -> int:
        try:
            client.key_value_set_bytes(key.decode(), ctypes.string_at(value, size))
        except BaseException as error:  # no exception can leave this
            return _report(status, _UNKNOWN, error)
        return _OK

    def get(_: int, key: bytes, timeout_ns: int, give: Any, sink: int, status: Any) -> int:
        limit = _FOREVER_MS if timeout_ns < 0 else max(1, timeout_ns // 1_000_000)
        try:
            value = client.blocking_key_value_get_bytes(key.decode(), limit)
        except BaseException as error:
            late = "DEADLINE_EXCEEDED" in str(error)
            return _report(status, _DEADLINE_EXCEEDED if late else _UNKNOWN, error)
        give(sink, value, len(value))
        return _OK

    return _Store(None, _SET(put), _GET(get))


def meet() -> None:
    """Joins the group of all ranks of ``jax.distributed``, or tells the library why not."""
    # What a program gets of its own rank has no public name.
    from jax._src import distributed

    place = distributed.global_state
    try:
        if place.client is None:
            raise RuntimeError("jax.distributed.initialize() has not been called")
        _check_devices()
        join(place.client, place.process_id, place.num_processes)
    except BaseException as error:
        # JAX raises what the library then says of operations; there is no other way through it.
        refuse = library.load().tensorwire_mpi_refuse
        refuse.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
        text = f"tensorwire: {type(error).__name__}: {error}"
        refuse(place.process_id, place.num_processes, text.encode()[:_SENTENCE_BYTES])


def _check_devices() -> None:
    """XLA gives an MPI each device of a process as if it were the process: results would be
    wrong."""
    import jax

    forced = re.search(
        r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", "")
    )
    # Old releases, of those that the extra allows, have no such option.
    configured = getattr(jax.config, "jax_num_cpu_devices", 1)
    devices = max(configured, int(forced[1]) if forced else 1)
    if devices > 1:
        raise RuntimeError(
            f"this process has {devices} CPU devices, and JAX's collectives by MPI take one for "
            "each process: start more processes, or use JAX's gloo"
        )


def join(client: Any, rank: int, size: int, timeout: float = TIMEOUT_SECONDS) -> None:
    """Joins the group of so many ranks, for JAX's MPI. ``client``: of the coordination service.
    ``timeout``: of joining, and of each operation, in seconds. RuntimeError when that fails."""
    store = store_of(client)
    _kept.append(store)
    call = library.load().tensorwire_mpi_join
    call.argtypes = [
        ctypes.c_size_t,
        ctypes.POINTER(_Store),
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
        _INTERRUPTED,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    raised: list[BaseException] = []

    def interrupted(_: int) -> int:
        try:
            _run_handlers()
        except BaseException as error:  # a handler's
            raised.append(error)
        return len(raised)

    sentence = ctypes.create_string_buffer(_SENTENCE_BYTES)
    failed = call(
        _core.function_table(),
        ctypes.byref(store),
        PREFIX.encode(),
        rank,
        size,
        round(timeout * 1e9),
        _INTERRUPTED(interrupted),
        sentence,
        _SENTENCE_BYTES,
    )
    if raised:
        raise raised[0]
    if failed:
        raise RuntimeError(sentence.value.decode(errors="replace"))
    log.info("rank %d of %d of JAX, by %s", rank, size, library.statistics()[0].fabric)


def _run_handlers() -> None:
    """Python runs the handlers of signals between any two of its steps, on its main thread."""
