# SPDX-License-Identifier: Apache-2.0
"""Calls at the client: in progress, and ended well. A failed one is a ``status.CallError``."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import grpc

from tensorwire import _core
from tensorwire.rpc import events, status
from tensorwire.rpc.client import blocking
from tensorwire.rpc.client.blocking import running_loop
from tensorwire.rpc.metadata import Metadatum, incoming
from tensorwire.rpc.payload import Transform, deserialized, takes_segments

if TYPE_CHECKING:
    _Future = grpc.Future[Any]
else:
    _Future = grpc.Future

BAD_REQUEST: Final = (status.INTERNAL, "Exception serializing request!")
BAD_RESPONSE: Final = (status.INTERNAL, "Exception deserializing response!")


class _Outcome(NamedTuple):
    number: int
    details: str
    trailing: tuple[Metadatum, ...] = ()
    response: Any = None


class SuccessfulCall(status.EndedCall):
    """A call that ended with OK, as ``with_call`` returns it."""

    def __init__(
        self,
        response: Any,
        details: str,
        initial: tuple[Metadatum, ...],
        trailing: tuple[Metadatum, ...],
    ) -> None:
        self._response = response
        self._details = details
        self._initial = initial
        self._trailing = trailing

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def debug_error_string(self) -> str:
        return ""

    def time_remaining(self) -> float | None:  # type: ignore[override]
        return None

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        return self._response

    def exception(self, timeout: float | None = None) -> None:
        return None

    def traceback(self, timeout: float | None = None) -> None:
        return None

    def __repr__(self) -> str:
        return f"<call that ended with {self.code()}, {self._details!r}>"


class ActiveCall(grpc.Call, _Future):
    """A call in progress on a link. It is cancelled when nothing refers to it any more."""

    def __init__(self, call: _core.Call, deserializer: Transform | None, owner: object) -> None:
        """``owner`` is kept alive as long as the call."""
        self._call = call
        self._deserializer = deserializer
        self._raw = takes_segments(deserializer)
        self._owner = owner
        self._outcome: _Outcome | None = None
        # Held from before the cancellation that others see until this object knows that it is the
        # user's. A signal's handler may cancel, too, wherever it finds the main thread.
        self._cancelling = threading.RLock()
        self._cancelled_here = False

    # ---------------------------------------------------------------------------- how it ended

    def _wait(self, timeout: float | None = None) -> _Outcome:
        """Waits for the end. Raises FutureTimeoutError, CallError in a forked child."""
        outcome = self._outcome
        if outcome is None:
            try:
                ending = self._call.status(timeout)
            except _core.StatusError as error:
                raise status.CallError(error.code, error.details) from None
            if ending is None:
                raise grpc.FutureTimeoutError
            number, details, trailing = ending
            outcome = self._conclude(_Outcome(number, details, incoming(trailing)))
        return outcome

    def _conclude(self, outcome: _Outcome) -> _Outcome:
        self._outcome = outcome
        return outcome

    def _fail(self, number: int, details: str) -> _Outcome:
        """Ends the call with an error of this side, also when it had ended well meanwhile."""
        self._call.cancel(number, details)
        outcome = self._outcome = _Outcome(number, details)
        return outcome

    def _error(self, outcome: _Outcome) -> status.CallError:
        try:
            initial = incoming(self._call.initial_metadata())
        except _core.StatusError:
            initial = ()
        return status.BegunCallError(
            outcome.number, outcome.details, initial, outcome.trailing, cancelled=self.cancelled()
        )

    def code(self) -> grpc.StatusCode:
        return status.code_of(self._wait().number)

    def details(self) -> str:
        return self._wait().details

    def debug_error_string(self) -> str:
        outcome = self._wait()
        return f"{status.code_of(outcome.number).name}: {outcome.details}"

    def trailing_metadata(self) -> tuple[Metadatum, ...]:
        return self._wait().trailing

    def initial_metadata(self) -> tuple[Metadatum, ...]:
        try:
            return incoming(self._call.initial_metadata())
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None

    # ------------------------------------------------------------------------- while it goes on

    def is_active(self) -> bool:
        return not self._call.ended

    def running(self) -> bool:
        return not self._call.ended

    def done(self) -> bool:
        return self._call.ended

    def time_remaining(self) -> float | None:  # type: ignore[override]
        return self._call.time_remaining

    def cancel(self) -> bool:
        with self._cancelling:
            if not self._call.cancel():
                return False
            self._cancelled_here = True
            return True

    def cancelled(self) -> bool:
        with self._cancelling:
            return self._cancelled_here

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if self._call.ended:
            return False
        events.watch(self._call, callback)
        return True

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        if self._call.ended:
            fn(self)
        else:
            events.watch(self._call, functools.partial(fn, self))

    # ----------------------------------------------------------------------------- as a future

    def result(self, timeout: float | None = None) -> Any:
        if running_loop() is not None and timeout != 0 and self._in_progress():
            blocking.warn("result() of a call in progress")
        return self.wait_for_result(timeout)

    def _in_progress(self) -> bool:
        """Of a forked child's copy of its parent's call: no."""
        try:
            return not self._call.ended
        except _core.StatusError:
            return False

    def wait_for_result(self, timeout: float | None = None) -> Any:
        outcome = self._wait(timeout)
        if outcome.number == status.OK:
            return outcome.response
        self._raise(outcome)

    def _raise(self, outcome: _Outcome) -> NoReturn:
        if self.cancelled():
            raise grpc.FutureCancelledError
        raise self._error(outcome)

    def exception(self, timeout: float | None = None) -> status.CallError | None:
        outcome = self._wait(timeout)
        if outcome.number == status.OK:
            return None
        if self.cancelled():
            raise grpc.FutureCancelledError
        return self._error(outcome)

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        error = self.exception(timeout)
        return None if error is None else error.traceback()

    def __repr__(self) -> str:
        if self._outcome is None and not self._call.ended:
            return f"<call in progress at {id(self):#x}>"
        outcome = self._wait()
        return f"<call that ended with {status.code_of(outcome.number)}, {outcome.details!r}>"

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None:
            try:
                if not call.ended:
                    call.cancel(status.CANCELLED, "Cancelled upon garbage collection!")
            except _core.StatusError:
                pass  # a forked child's copy of its parent's call


class ResponseFuture(ActiveCall):
    """A call with one response."""

    def __init__(self, call: _core.Call, deserializer: Transform | None, owner: object) -> None:
        super().__init__(call, deserializer, owner)
        self._lock = threading.Lock()

    def _conclude(self, outcome: _Outcome) -> _Outcome:
        with self._lock:
            if self._outcome is not None:
                return self._outcome
            if outcome.number == status.OK:
                response = self._call.receive(self._raw)
                if response is not None and self._deserializer is not None:
                    response = deserialized(self._deserializer, response)
                    if response is None:
                        return self._fail(*BAD_RESPONSE)
                outcome = outcome._replace(response=response)
            return super()._conclude(outcome)


class ResponseStream(ActiveCall):
    """A call with a stream of responses, and the iterator over them."""

    def __init__(self, call: _core.Call, deserializer: Transform | None, owner: object) -> None:
        super().__init__(call, deserializer, owner)
        self._messages = call.messages(self._raw)

    def __iter__(self) -> ResponseStream:
        if running_loop() is not None:
            blocking.warn("waiting for streamed replies")
        return self

    def __next__(self) -> Any:
        try:
            for message in self._messages:
                if self._deserializer is None:
                    return message
                response = deserialized(self._deserializer, message)
                if response is None:
                    raise self._error(self._fail(*BAD_RESPONSE))
                return response
        except _core.StatusError as error:
            raise status.CallError(error.code, error.details) from None
        outcome = self._wait()
        if outcome.number != status.OK:
            raise self._error(outcome)
        raise StopIteration

    next = __next__
