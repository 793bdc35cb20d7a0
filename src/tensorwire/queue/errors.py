# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a queue."""

from __future__ import annotations

import queue as standard
from typing import Final

import grpc

from tensorwire.rpc import CallError, lifetime


class QueueError(RuntimeError):
    """``code`` is a gRPC status code."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN


class FullError(QueueError, standard.Full, TimeoutError):
    """There was no room in time. ``accepted``: how many items of a batch the queue has taken all
    the same, its first ones."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED

    def __init__(self, details: str, accepted: int = 0) -> None:
        super().__init__(details)
        self.accepted = accepted


class EmptyError(QueueError, standard.Empty, TimeoutError):
    """No item has come in time."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class ClosedError(QueueError):
    """The queue was closed, or this end of it."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class TooLargeError(QueueError, ValueError):
    """The item is larger than the whole queue may be, or has more arrays than a message takes."""

    code = grpc.StatusCode.OUT_OF_RANGE


class NoQueueError(QueueError, LookupError):
    """The server has no queue of that name."""

    code = grpc.StatusCode.NOT_FOUND


class BudgetError(QueueError):
    """This process has as many streams at the queue as one process may have, or the queue as many
    calls as it serves at once, or the memory that an item needs is not to be had."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class ServerLostError(QueueError, ConnectionError):
    """The server cannot be reached, or is gone: what was put and not acknowledged may be lost. Or
    this end was made before fork(), and this process is the child: it has to connect itself."""

    code = grpc.StatusCode.UNAVAILABLE


_KINDS: Final[dict[grpc.StatusCode, type[QueueError]]] = {
    grpc.StatusCode.CANCELLED: ClosedError,
    grpc.StatusCode.FAILED_PRECONDITION: ClosedError,
    grpc.StatusCode.OUT_OF_RANGE: TooLargeError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: BudgetError,
    grpc.StatusCode.UNAVAILABLE: ServerLostError,
    grpc.StatusCode.UNIMPLEMENTED: NoQueueError,
}


def check_process(generation: int, name: str) -> None:
    """generation: of the process that made this end of the queue. Raises ServerLostError."""
    if why := lifetime.inherited(generation):
        raise ServerLostError(f"queue {name!r}: {why}: connect there")


def end_closed(name: str) -> ClosedError:
    return ClosedError(f"queue {name!r}: this end of it is closed")


def of_call(error: CallError, name: str) -> QueueError:
    """What the failure of a call to the queue's server means."""
    kind = _KINDS.get(error.code(), QueueError)
    if kind is NoQueueError:
        return NoQueueError(f"the server has no queue {name!r}: {error.details()}")
    made = kind(f"queue {name!r}: {error.details()}")
    made.code = error.code()
    return made
