# SPDX-License-Identifier: Apache-2.0
"""Messages of several segments, and what becomes of them on stock gRPC, which knows only bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from tensorwire import _core
from tensorwire.log import LOGGER

_MARK: Final = "__tensorwire_segments__"

Function = TypeVar("Function", bound=Callable[[Any], Any])
Transform = Callable[[Any], Any]


def segments(function: Function) -> Function:
    """Marks a deserializer that takes a list of buffers, one for each segment that the sender's
    serializer returned, instead of ``bytes``.

    Over a data plane the buffers are not copied; they are read-only and stay valid as long as
    they, or views of them, are referenced. Over stock gRPC the list has one element with all
    segments joined, so the segments must be recognisable without their boundaries. As with
    grpcio, a deserializer that returns None makes the call fail with INTERNAL.
    """
    try:
        setattr(function, _MARK, True)
    except (AttributeError, TypeError):  # bound methods and built-in functions take no attributes

        def marked(buffers: list[Any]) -> Any:
            return function(buffers)

        setattr(marked, _MARK, True)
        return marked  # type: ignore[return-value]
    return function


def serialized(serializer: Transform, message: Any, what: str = "request") -> Any:
    """What the user's serializer makes of it; None, the sign of one that failed, also where it
    raises, which is logged. Raises StatusError for a message that is too large."""
    try:
        return serializer(message)
    except _core.StatusError:
        raise
    except Exception:
        LOGGER.exception("exception serializing a %s", what)
        return None


def deserialized(deserializer: Transform, data: Any, what: str = "response") -> Any:
    """What the user's deserializer makes of it; None, the sign of one that failed, also where it
    raises, which is logged."""
    try:
        return deserializer(data)
    except Exception:
        LOGGER.exception("exception deserializing a %s", what)
        return None


def takes_segments(deserializer: Transform | None) -> bool:
    return deserializer is not None and getattr(deserializer, _MARK, False) is True


def join(message: Any) -> bytes | None:
    """One bytes-like object, or a list or tuple of them, as bytes; None, the sign of a serializer
    that failed, stays None."""
    if message is None or type(message) is bytes:
        return message
    return b"".join(message if isinstance(message, (list, tuple)) else (message,))


def nbytes(message: Any) -> int:
    """Of one bytes-like object, or of a list or tuple of them."""
    if isinstance(message, (bytes, bytearray)):
        return len(message)
    if isinstance(message, (list, tuple)):
        return sum(map(nbytes, message))
    return memoryview(message).nbytes


def joining(serializer: Transform | None) -> Transform:
    """The same serializer for stock gRPC."""
    if serializer is None:
        return join
    return lambda message: join(serializer(message))


def splitting(deserializer: Transform | None) -> Transform | None:
    """The same deserializer for stock gRPC."""
    if deserializer is None or not takes_segments(deserializer):
        return deserializer
    return lambda data: deserializer([memoryview(data)])
