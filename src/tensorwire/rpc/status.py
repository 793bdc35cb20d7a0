# SPDX-License-Identifier: Apache-2.0
"""Status codes, and the errors that calls end with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from tensorwire.rpc import metadata
from tensorwire.rpc.grpc_internals import StockError, StockStream
from tensorwire.rpc.metadata import Metadatum

if TYPE_CHECKING:
    _Future = grpc.Future[Any]
else:
    _Future = grpc.Future

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

NUMBERS: Final[dict[object, int]] = {code: code.value[0] for code in grpc.StatusCode}
_CODES: Final = {number: code for code, number in NUMBERS.items()}


def code_of(number: int) -> grpc.StatusCode:
    """The enum's member for a number on the wire; UNKNOWN for one that no version defines."""
    code = _CODES.get(number, grpc.StatusCode.UNKNOWN)
    assert isinstance(code, grpc.StatusCode)
    return code


class CallEndedError(grpc.RpcError):
    """Raised in a handler that goes on talking to a call which is over at the client."""


class EndedCall(grpc.Call, _Future):
    """What calls answer that have ended, well or not."""

    _details: str
    _initial: tuple[Metadatum, ...]
    _trailing: tuple[Metadatum, ...]

    def details(self) -> str:
        return self._details

    def initial_metadata(self) -> tuple[Metadatum, ...]:
        return self._initial

    def trailing_metadata(self) -> tuple[Metadatum, ...]:
        return self._trailing

    def is_active(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False

    def running(self) -> bool:
        return False

    def done(self) -> bool:
        return True

    def add_done_callback(self, fn: Callable[[Any], None], timeout: float | None = None) -> None:
        fn(self)


class CallError(EndedCall, StockError):  # type: ignore[misc]
    """How a call failed. It is the ended call at the same time, a failed future and a failed
    stream, so that it can be returned where a call in progress is expected. ``except`` clauses for
    grpcio's own error catch it, and it can be copied and pickled."""

    def __init__(
        self,
        number: int,
        details: str,
        initial: tuple[Metadatum, ...] = (),
        trailing: tuple[Metadatum, ...] = (),
        *,
        cancelled: bool = False,
    ) -> None:
        Exception.__init__(self, details)  # grpcio's own wants the state of its call
        self._code = code_of(number)
        self._details = details
        self._initial = initial
        self._trailing = trailing
        self._cancelled = cancelled

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._code.value[0], self._details), self.__dict__

    def code(self) -> grpc.StatusCode:
        return self._code

    def debug_error_string(self) -> str:
        return f"{self._code.name}: {self._details}"

    def __str__(self) -> str:
        return f"<call that ended with {self._code}, details = {self._details!r}>"

    __repr__ = __str__

    def time_remaining(self) -> float:
        return 0.0

    def cancelled(self) -> bool:
        return self._cancelled

    def result(self, timeout: float | None = None) -> NoReturn:
        if self._cancelled:
            raise grpc.FutureCancelledError
        raise self

    wait_for_result = result  # as calls that are under way have it

    def exception(self, timeout: float | None = None) -> CallError:
        if self._cancelled:
            raise grpc.FutureCancelledError
        return self

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        try:
            self.result()
        except CallError:
            return sys.exc_info()[2]

    def __iter__(self) -> CallError:
        return self

    def __next__(self) -> NoReturn:
        raise self

    next = __next__

    def begun(self) -> BegunCallError:
        """The same, for a call that is given out as a future or a stream."""
        number = self._code.value[0]
        return BegunCallError(
            number, self._details, self._initial, self._trailing, cancelled=self._cancelled
        )


class BegunCallError(CallError, StockStream):  # type: ignore[misc]
    """How a call failed that was given out as a future or a stream."""

    def __del__(self) -> None:
        """There is nothing to cancel any more."""


def call_metadata(
    given: Iterable[tuple[str | bytes, str | bytes]] | None,
) -> list[metadata.Pair] | None:
    """What a client's call sends of the metadata that its caller gave. CallError: they cannot
    travel. TypeError: they are none."""
    try:
        return None if given is None else metadata.outgoing(given, client=True)
    except metadata.MetadataError as error:
        raise CallError(INTERNAL, f"Invalid metadata: {error}") from None
