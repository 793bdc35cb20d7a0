"""Channel and server options of gRPC that count for the data plane as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Options = Sequence[tuple[str, Any]]

_RECEIVE: Final = "grpc.max_receive_message_length"
UNLIMITED: Final = -1
OWN_CONNECTIONS: Final = ("grpc.use_local_subchannel_pool", 1)
"""A channel with it shares no connection with others."""


def receive_limit(options: Options) -> int:
    """In bytes; -1: the core's own limit."""
    limit = UNLIMITED
    for name, value in options:
        if name == _RECEIVE:
            limit = int(value)
    return limit if limit >= 0 else UNLIMITED


def stock_options(options: Options) -> Options:
    """For the gRPC side. It would refuse messages beyond 4 MB, which must not depend on the way
    that a message takes; so its limit is lifted where the user has set none."""
    if any(name == _RECEIVE for name, _ in options):
        return options
    return (*options, (_RECEIVE, UNLIMITED))
