# SPDX-License-Identifier: Apache-2.0
"""Sends the messages of a client's request iterator, in a thread of its own: the iterator may block
while the call ends, and replies may have to be read before it goes on."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import lifetime, status
from tensorwire.rpc.payload import Transform


def send_all(requests: Iterable[Any], call: _core.Call, serializer: Transform | None) -> None:
    """Returns at once. What goes wrong ends the call: UNKNOWN for the iterator, INTERNAL for the
    serializer, as with grpcio. The iterator runs in a copy of the caller's context."""
    # A daemon: nothing can end a user's iterator that waits, for instance for the call's replies.
    thread = threading.Thread(
        target=contextvars.copy_context().run,
        args=(_run, requests, call, serializer),
        name="tensorwire-requests",
        daemon=True,
    )
    try:
        lifetime.start(thread)
    except BaseException:  # Ctrl-C, or no thread is to be had
        call.cancel()
        raise


def iterator_of(requests: Iterable[Any]) -> Iterator[Any]:
    """For stock gRPC, which knows iterators only. What is not iterable becomes known when it is
    iterated, and ends the call."""
    if hasattr(type(requests), "__next__"):
        return requests  # type: ignore[return-value]
    return _each(requests)


def _each(requests: Iterable[Any]) -> Iterator[Any]:
    yield from requests


def _run(requests: Iterable[Any], call: _core.Call, serializer: Transform | None) -> None:
    send = call.send
    try:
        iterator = _iter(requests)
        if serializer is not None:
            iterator = map(serializer_of(serializer), iterator)
        for message in iterator:
            try:
                sending = send(message)
            except (TypeError, ValueError, BufferError) as error:
                raise SerializerError from error
            if not sending:
                return
        call.end_send()
    except _core.StatusError as error:
        call.cancel(error.code, error.details)  # if it has not ended anyway
    except SerializerError as error:
        LOGGER.error("exception serializing a request", exc_info=error.__cause__)
        call.cancel(status.INTERNAL, "Exception serializing request!")
    except Exception:
        LOGGER.exception("exception iterating requests")
        call.cancel(status.UNKNOWN, "Exception iterating requests!")


def _iter(requests: Iterable[Any]) -> Iterator[Any]:
    """grpcio asks for no more of an iterator than that it has a next element."""
    if hasattr(type(requests), "__iter__") or not hasattr(type(requests), "__next__"):
        return iter(requests)
    only_next: Any = requests
    return iter(only_next.__next__, object())


class SerializerError(Exception):
    """Its cause is what the user's serializer raised."""


def serializer_of(serializer: Transform) -> Transform:
    """Makes the serializer's exceptions known as such."""

    def serialize(request: Any) -> Any:
        try:
            return serializer(request)
        except _core.StatusError:
            raise
        except Exception as error:
            raise SerializerError from error

    return serialize
