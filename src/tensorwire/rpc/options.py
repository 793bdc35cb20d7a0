# SPDX-License-Identifier: Apache-2.0
"""Channel and server options of gRPC: what counts on the data plane as well, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import status
from tensorwire.rpc.payload import Transform, nbytes

Options = Sequence[tuple[str, Any]]

UNLIMITED: Final = -1
OWN_CONNECTIONS: Final = ("grpc.use_local_subchannel_pool", 1)
"""A channel with it shares no connection with others."""

_RECEIVE: Final = "grpc.max_receive_message_length"
_SEND: Final = "grpc.max_send_message_length"
_METADATA: Final = "grpc.max_metadata_size"
_ALL_METADATA: Final = "grpc.absolute_max_metadata_size"
_LEAST_ALL_METADATA: Final = 16 << 10  # what grpcio takes where only the lower limit is set

THRESHOLDS: Final = (
    "tensorwire.coalesce_bytes",
    "tensorwire.eager_bytes",
    "tensorwire.chunk_bytes",
)
"""Of a channel: the sizes at which what it sends changes its protocol, in bytes. In the order of
``_core.threshold_ranges``."""

HONOURED: Final = frozenset(
    (_RECEIVE, _SEND, "grpc.primary_user_agent", "grpc.secondary_user_agent")
)
HONOURED_BY_SERVERS: Final = frozenset((_METADATA, _ALL_METADATA))

CONNECTION: Final = (
    "grpc.address_http_proxy",
    "grpc.authorization_policy_provider",
    "grpc.channel_id",
    "grpc.channel_pooling_domain",
    "grpc.default_authority",
    "grpc.dns_",
    "grpc.enable_channelz",
    "grpc.enable_http_proxy",
    "grpc.enable_retries",
    "grpc.expand_wildcard_addrs",
    "grpc.experimental.",
    "grpc.happy_eyeballs_",
    "grpc.http2.",
    "grpc.http_proxy",
    "grpc.initial_reconnect_backoff_ms",
    "grpc.lb",
    "grpc.max_channel_trace_event_memory_per_node",
    "grpc.max_reconnect_backoff_ms",
    "grpc.min_reconnect_backoff_ms",
    "grpc.optimization_target",
    "grpc.per_rpc_retry_buffer_size",
    "grpc.server_handshake_timeout_ms",
    "grpc.service_config",
    "grpc.so_reuseport",
    "grpc.ssl_",
    "grpc.tcp_",
    "grpc.use_local_subchannel_pool",
)
"""Beginnings of names of options that govern gRPC's own connections, and nothing of a call."""

_METADATA_OF_REPLIES: Final = "replies may carry 64 KiB of initial and of trailing metadata"
_ALIVE: Final = (
    "links notice a dead peer by its process, by TCP keep-alive, or by the adapter's time limits"
)
_AGE: Final = "links stay open until one end closes them"
_COMPRESSION: Final = "messages are not compressed"
NO_EFFECT: Final = {
    "grpc.client_idle_timeout_ms": _AGE,
    "grpc.compression_enabled_algorithms_bitset": _COMPRESSION,
    "grpc.default_compression_algorithm": _COMPRESSION,
    "grpc.default_compression_level": _COMPRESSION,
    "grpc.keepalive_permit_without_calls": _ALIVE,
    "grpc.keepalive_time_ms": _ALIVE,
    "grpc.keepalive_timeout_ms": _ALIVE,
    "grpc.max_concurrent_streams": "maximum_concurrent_rpcs limits the calls of all clients",
    "grpc.max_connection_age_grace_ms": _AGE,
    "grpc.max_connection_age_ms": _AGE,
    "grpc.max_connection_idle_ms": _AGE,
    _METADATA: _METADATA_OF_REPLIES,
    _ALL_METADATA: _METADATA_OF_REPLIES,
}
"""What holds on the data plane instead."""


class Limits(NamedTuple):
    """What the options say about each message and its metadata, in bytes."""

    receive: int = UNLIMITED
    """The core has a limit of its own."""
    send: int | None = None
    metadata: int | None = None
    """Of a request, counted as gRPC does: 32 bytes for each pair besides its key and value."""
    thresholds: tuple[int, ...] = (-1,) * len(THRESHOLDS)
    """Of the link; -1: what the settings, or the table of tensorwire tune links, say."""


def named(options: Options) -> Iterator[tuple[str, Any]]:
    """grpcio takes names that are bytes, too."""
    pairs: Sequence[tuple[Any, Any]] = options
    for name, value in pairs:
        yield (name.decode() if isinstance(name, bytes) else name), value


def limits(options: Options) -> Limits:
    """ValueError for a threshold that cannot be."""
    given = dict(named(options))
    receive, send = int(given.get(_RECEIVE, UNLIMITED)), int(given.get(_SEND, UNLIMITED))
    metadata = given.get(_ALL_METADATA)
    if metadata is None and _METADATA in given:
        metadata = max(_LEAST_ALL_METADATA, int(given[_METADATA]) * 5 // 4)
    return Limits(
        max(receive, UNLIMITED),
        send if send >= 0 else None,
        int(metadata) if metadata is not None else None,
        _thresholds(given),
    )


def _thresholds(given: Mapping[str, Any]) -> tuple[int, ...]:
    found = []
    for name, (least, most) in zip(THRESHOLDS, _core.threshold_ranges(), strict=True):
        value = given.get(name, -1)
        if name in given and not (isinstance(value, int) and least <= value <= most):
            raise ValueError(f"{name}={value!r}: write a number of bytes from {least} to {most}")
        found.append(value)
    return tuple(found)


def without_receive_limit(options: Options) -> Options:
    """For the gRPC side of a channel. It would refuse replies beyond 4 MB, which must not depend on
    the way that they take; so its limit is lifted where the user has set none."""
    if any(name == _RECEIVE for name, _ in named(options)):
        return options
    return (*options, (_RECEIVE, UNLIMITED))


class TooLargeError(_core.StatusError):
    """A message beyond ``grpc.max_send_message_length``. The call ends as if the runtime had
    refused to send it."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__()
        self.code = status.RESOURCE_EXHAUSTED
        self.details = f"Sent message larger than max ({size} vs. {most})"


def bounded(serializer: Transform | None, most: int | None) -> Transform | None:
    """The same serializer; it raises TooLargeError for messages of more than ``most`` bytes."""
    if most is None:
        return serializer

    def serialize(message: Any) -> Any:
        data = message if serializer is None else serializer(message)
        size = 0 if data is None else nbytes(data)
        if size > most:
            raise TooLargeError(size, most)
        return data

    return serialize


class Once:
    """Names each option once in the life of the process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def tell(self, name: str, why: str) -> None:
        with self._lock:
            if name in self._told:
                return
            self._told.add(name)
        LOGGER.warning("the option %s has no effect on the data plane: %s", name, why)


tell: Final[Callable[[str, str], None]] = Once().tell


def tell_what_has_no_effect(options: Options, *, server: bool = False) -> None:
    """One warning for each option of gRPC that the data plane does not follow."""
    for name, _ in named(options):
        if name in HONOURED or (server and name in HONOURED_BY_SERVERS):
            continue
        if name in NO_EFFECT:
            tell(name, NO_EFFECT[name])
        elif name.startswith("grpc.") and not name.startswith(CONNECTION):
            tell(name, "tensorwire does not know it")
