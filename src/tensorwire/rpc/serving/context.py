# SPDX-License-Identifier: Apache-2.0
"""The context that handlers get for a call on the data plane."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

import grpc

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import events, metadata, status
from tensorwire.rpc.client.peer import Peer
from tensorwire.rpc.options import Limits

# What grpcio answers on an insecure port.
_AUTH: Final[dict[str, Any]] = {
    "transport_security_type": [b"insecure"],
    "security_level": [b"TSI_SECURITY_NONE"],
}

NO_DEADLINE: Final = 9.2e18
"""Seconds. A number, as with grpcio: handlers compare it."""


_MOST_DETAILS: Final = 64 << 10
"""Bytes in UTF-8. With more, a call would end with an error of its own."""


class AbortedError(Exception):
    """Ends a handler that called ``abort``."""


class CallContext(grpc.ServicerContext):
    """Made by ``context_of``. Lives as long as its handler. Most calls use nothing of it: state is
    made at first use, and what is missing is read from the class."""

    chosen_code: grpc.StatusCode | None = None
    chosen_details: bytes | None = None
    chosen_trailing: list[metadata.Pair] | None = None
    aborted = False
    _given_trailing: Any = None
    _bad_trailing: metadata.MetadataError | None = None
    began = False
    """Initial metadata, or a response, has been sent."""
    over = False
    """The handler of a call with streamed requests has ended it, before its client did."""

    _call: _core.ServerCall

    def ending(self, code: int = 0, details: str = "") -> tuple[int, str, Any]:
        """Code, details and trailing metadata that the call ends with: what the handler has set,
        else the arguments."""
        if self.chosen_code is not None:
            code = status.NUMBERS.get(self.chosen_code, status.UNKNOWN)
        if not code:
            details = ""  # as with grpcio, also where the handler has set some
        elif self.chosen_details is not None:
            details = _sendable(self.chosen_details.decode("utf-8", "replace"))
        else:
            details = _sendable(details)
        trailing = self.chosen_trailing
        if trailing is not None and self._bad_trailing is not None:
            return status.INTERNAL, f"Invalid metadata: {self._bad_trailing}", None
        return code, details, trailing

    # ------------------------------------------------------------------------------ about the call

    def is_active(self) -> bool:
        return self._call.active

    def time_remaining(self) -> float:
        left = self._call.time_remaining
        return NO_DEADLINE if left is None else max(0.0, left)

    def invocation_metadata(self) -> tuple[metadata.Metadatum, ...]:
        return metadata.received(self._call)

    def peer(self) -> str:
        return self._call.peer

    def peer_process(self) -> Peer:
        """The process that has begun the call. ``peer_of`` gets it of any context."""
        return Peer(self._call.process(), Limits())

    def peer_identities(self) -> Iterable[bytes] | None:
        return None

    def peer_identity_key(self) -> str | None:
        return None

    def auth_context(self) -> dict[str, Any]:
        return dict(_AUTH)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if not self._call.active:
            return False
        events.watch(self._call, callback)
        return True

    # -------------------------------------------------------------------------------- the answer

    def send_initial_metadata(self, initial_metadata: Any) -> None:
        if not self._call.active:
            raise status.CallEndedError
        if self.began:
            raise ValueError("initial metadata or a response has already been sent")
        try:
            pairs = metadata.outgoing(initial_metadata or ())
        except metadata.MetadataError as error:
            self.began = True
            self._call.finish(status.INTERNAL, f"Invalid metadata: {error}", None)
            return
        self.began = True
        try:
            self._call.send_initial_metadata(pairs)
        except _core.StatusError as error:
            if self._call.active:
                raise ValueError(error.details) from None
            raise status.CallEndedError from None

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._bad_trailing = None
        try:
            self.chosen_trailing = metadata.outgoing(trailing_metadata or ())
        except (
            metadata.MetadataError
        ) as error:  # as with grpcio, it is the client that learns of it
            self.chosen_trailing = []
            self._bad_trailing = error
        self._given_trailing = trailing_metadata

    def trailing_metadata(self) -> Any:
        return self._given_trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        self.chosen_code = code

    def code(self) -> grpc.StatusCode:
        return self.chosen_code  # type: ignore[return-value]  # None before it is set, as with grpcio

    def set_details(self, details: str | bytes) -> None:
        if not isinstance(details, bytes):
            details = details.encode("utf-8", "replace")
        self.chosen_details = details

    def details(self) -> bytes:
        return self.chosen_details  # type: ignore[return-value]  # None before it is set

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        if code is grpc.StatusCode.OK:
            LOGGER.error("abort() was called with OK; the call ends with UNKNOWN")
            code, details = grpc.StatusCode.UNKNOWN, ""
        self.set_code(code)
        self.set_details(details)
        self.aborted = True
        raise AbortedError(f"{code.name}: {details}")

    def abort_with_status(self, status: grpc.Status) -> NoReturn:
        self.set_trailing_metadata(status.trailing_metadata)
        self.abort(status.code, status.details)

    def cancel(self) -> bool:
        return self._call.finish(status.CANCELLED, "CANCELLED", None)

    def end(self, code: grpc.StatusCode, details: str) -> bool:
        """Ends the call, whatever its handler does, which may be waiting for the client. False: it
        had ended."""
        return self._call.finish(status.NUMBERS[code], _sendable(details), None)

    def set_compression(self, compression: grpc.Compression) -> None:
        """Accepted; the data plane does not compress."""

    def disable_next_message_compression(self) -> None:
        """Accepted; the data plane does not compress."""

    # ------------------------------------------------------------ for interceptors that know grpcio

    @property
    def _state(self) -> _State:
        return _State(self)


_new: Final = object.__new__


def context_of(call: _core.ServerCall) -> CallContext:
    """Without the frame of an ``__init__``, which takes 1 % of a call of 8 bytes."""
    context = _new(CallContext)
    context._call = call
    return context


def _sendable(details: str) -> str:
    """With what is no text replaced, as a lone surrogate of a file's name, and not too long."""
    return details.encode("utf-8", "replace")[:_MOST_DETAILS].decode("utf-8", "ignore")


class _State:
    """What metrics and tracing interceptors read of the private state of grpcio's context."""

    def __init__(self, context: CallContext) -> None:
        self._context = context

    @property
    def client(self) -> str:
        return "open" if self._context.is_active() else "cancelled"

    @property
    def code(self) -> grpc.StatusCode | None:
        return self._context.chosen_code

    @property
    def details(self) -> bytes | None:
        return self._context.chosen_details

    @property
    def trailing_metadata(self) -> Any:
        return self._context.trailing_metadata()

    @property
    def aborted(self) -> bool:
        return self._context.aborted
