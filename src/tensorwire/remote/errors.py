# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with memory of another process. ValueError, TypeError and IndexError stand for
what is wrong in a call itself: then nothing has been sent."""

from __future__ import annotations

from typing import Any, Final

import grpc

from tensorwire import _core

CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
OUT_OF_RANGE: Final = 11
INTERNAL: Final = 13
UNAVAILABLE: Final = 14


class RemoteError(RuntimeError):
    """``code``: a gRPC status code. The text says what happened, with which peer."""

    code: int = INTERNAL

    def __init__(self, details: str, code: int | None = None) -> None:
        super().__init__(details)
        if code is not None:
            self.code = code


class PeerLostError(RemoteError, ConnectionError):
    """The link is gone: the process at its other end has died, has closed it, or hangs. Of what was
    under way it is not known whether it was done. Connect again."""

    code = UNAVAILABLE


class NotFoundError(RemoteError, LookupError):
    """There is no such memory: it was concealed, or never there, or is another process's."""

    code = NOT_FOUND


class PermissionDeniedError(RemoteError, PermissionError):
    """The owner has not given this right to this process."""

    code = PERMISSION_DENIED


class ResourceExhaustedError(RemoteError, MemoryError):
    """A budget of the owner's, or of this process, is used up; the text names it."""

    code = RESOURCE_EXHAUSTED


class DeadlineExceededError(RemoteError, TimeoutError):
    """Not in time. An operation that was begun goes on, and its memory is kept until it ends."""

    code = DEADLINE_EXCEEDED


class ChannelClosedError(RemoteError, EOFError):
    """The sender of a channel has ended, and all that it had put was got."""

    code = OUT_OF_RANGE


class AlreadyExistsError(RemoteError):
    """The name is taken."""

    code = ALREADY_EXISTS


_KINDS: Final[dict[int, type[RemoteError]]] = {
    CANCELLED: PeerLostError,  # this end has closed the link
    DEADLINE_EXCEEDED: DeadlineExceededError,
    NOT_FOUND: NotFoundError,
    ALREADY_EXISTS: AlreadyExistsError,
    PERMISSION_DENIED: PermissionDeniedError,
    RESOURCE_EXHAUSTED: ResourceExhaustedError,
    UNAVAILABLE: PeerLostError,
}


def error(code: int, details: str) -> RemoteError:
    return _KINDS.get(code, RemoteError)(details, code)


def of_core(raised: _core.StatusError, peer: _core.Peer) -> RemoteError:
    """What the core says of an operation on the peer's memory, with the peer."""
    code, details = raised.args
    return error(code, f"{details} (the peer at {peer.caller or peer.address})")


def of_call(raised: grpc.RpcError, peer: str) -> RemoteError:
    """What a call to the peer's host has ended with."""
    call: Any = raised
    code = call.code()
    details = call.details() or code.name
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return RemoteError(
            f"the process at {peer} lets nobody at its memory: it has no remote.host(server) "
            f"({details})",
            FAILED_PRECONDITION,
        )
    return error(code.value[0], f"{details} (the peer at {peer})")
