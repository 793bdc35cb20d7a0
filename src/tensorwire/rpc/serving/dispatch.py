# SPDX-License-Identifier: Apache-2.0
"""The data plane of a server: takes new calls from the core and serves them in the user's pool.

One thread waits for calls and hands each to the pool. A worker that has served a call polls the
call's link for the next one, which so needs no hand-off between threads.
"""

from __future__ import annotations

import threading
from concurrent import futures
from time import monotonic
from typing import Final

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.rpc import kept, lifetime, status
from tensorwire.rpc.serving.limit import Limit
from tensorwire.rpc.serving.methods import Method, Methods
from tensorwire.rpc.serving.turns import Turns

# A worker goes back to the pool after that time: others may wait for it who are not seen here.
_SLICE_SECONDS: Final = 0.02

_NOT_FOUND: Final = (status.UNIMPLEMENTED, "Method not found!", None, None)
_EXHAUSTED: Final = (status.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", None, None)
_BAD_RESPONSE: Final = (status.INTERNAL, "Failed to serialize response!", None, None)
_NO_POOL: Final = (status.UNAVAILABLE, "the server's thread pool has been shut down", None, None)
_NOT_SERVED: Final = (status.INTERNAL, "the server could not serve the call", None, None)
_BROKEN_LOOK_UP: Final = (status.UNKNOWN, "Error in service handler!", None, None)


class PoolFullError(RuntimeError):
    """A pool that a handler brings along takes no more calls: its text is what the client reads."""


class Dispatcher:
    """Serves the calls of one ``_core.Server`` until that is closed."""

    def __init__(
        self, core: _core.Server, pool: futures.Executor, methods: Methods, limit: Limit | None
    ) -> None:
        self._core = core
        self._pool = pool
        self._methods = methods
        self._limit = limit
        # The pool's queue holds one job for each of these. While there are any, workers come back.
        self._waiting = Turns()
        self._thread = threading.Thread(target=self._run, name="tensorwire-server", daemon=True)

    def start(self) -> None:
        kept.free_in_background()
        lifetime.start(self._thread)

    def join(self, timeout: float | None = None) -> None:
        """Waits for the thread that ends when the core's server is closed."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    # ---------------------------------------------------------------------------- the one thread

    def _run(self) -> None:
        while (calls := self._core.next()) is not None:
            for call in calls:
                self._hand_over(call)
            calls = call = None  # type: ignore[assignment]  # nothing is held while it waits

    def _hand_over(self, call: _core.ServerCall) -> None:
        try:
            self._place(call)
        except Exception:
            LOGGER.exception("exception while a call was handed to the pool")
            call.finish(*_NOT_SERVED)

    def _place(self, call: _core.ServerCall) -> None:
        methods = self._methods
        method = methods.static.get(call.method) or methods.look_up(call.method)
        if method is None and not methods.dynamic:
            call.finish(*_NOT_FOUND)
        elif self._limit is not None and not self._limit.enter():
            call.finish(*_EXHAUSTED)
        elif method is not None and method.pool is not None:
            self._submit_elsewhere(call, method)
        else:
            self._waiting.add(call)
            try:
                self._pool.submit(self._work)
            except Exception as error:
                # Where the job of another call has taken it, that one has no job.
                left = call if self._waiting.remove(call) else self._waiting.take()
                if left is not None:
                    self._not_taken(left, error)

    def _submit_elsewhere(self, call: _core.ServerCall, method: Method) -> None:
        """To the pool that the handler brings along. The limit has let the call in."""
        try:
            method.pool.submit(self._serve_elsewhere, call, method)
        except Exception as error:
            self._not_taken(call, error)

    def _not_taken(self, call: _core.ServerCall, error: Exception) -> None:
        """Ends a call that the limit has let in, and that a pool does not take."""
        self._leave()
        if isinstance(error, PoolFullError):
            call.finish(status.RESOURCE_EXHAUSTED, str(error), None)
        elif isinstance(error, RuntimeError):
            call.finish(*_NO_POOL)
        else:
            LOGGER.error("a thread pool has not taken a call", exc_info=error)
            call.finish(*_NOT_SERVED)

    # ------------------------------------------------------------------------------- in the pool

    def _serve_elsewhere(self, call: _core.ServerCall, method: Method) -> None:
        if call.drop_if_over():
            self._leave()
        else:
            self._serve(call, method)

    def _work(self) -> None:
        call = self._waiting.take()
        if call is None:
            return
        if call.drop_if_over():
            self._leave()
            return
        static = self._methods.static
        leave_at = monotonic() + _SLICE_SECONDS
        while call is not None:
            method = static.get(call.method) or self._find(call)
            if method is None:
                return
            if method.pool is not None:
                self._submit_elsewhere(call, method)
                return
            call = self._serve(call, method, leave_at)
            if call is not None and self._limit is not None and not self._limit.enter():
                call.finish(*_EXHAUSTED)
                return

    def _serve(
        self, call: _core.ServerCall, method: Method, leave_at: float = 0.0
    ) -> _core.ServerCall | None:
        """Serves a call that the limit has let in. The next call of the same link, if it came at
        once and nothing else waits for this thread."""
        try:
            ending = method.run(method, call)
        finally:
            if self._limit is not None:
                self._limit.leave()
        if ending is None:
            return None
        try:
            if self._waiting.peers or monotonic() > leave_at:
                call.finish(*ending)
                return None
            return call.finish_and_next(*ending)
        except (TypeError, ValueError, BufferError):  # the message is none
            LOGGER.exception("a response could not be sent")
            call.finish(*_BAD_RESPONSE)
        except _core.StatusError as error:  # no memory for it, for instance
            LOGGER.error("a response could not be sent: %s", error.details)
            call.finish(error.code, error.details, None)
        return None

    def _leave(self) -> None:
        if self._limit is not None:
            self._limit.leave()

    def _find(self, call: _core.ServerCall) -> Method | None:
        """The method of a call that is not a static one; None when the call was finished here."""
        try:
            method = self._methods.look_up(call.method) or self._methods.choose(call)
            if method is not None:
                return method
            ending = _NOT_FOUND
        except Exception:
            LOGGER.exception("exception in an interceptor or a generic handler")
            ending = _BROKEN_LOOK_UP
        self._leave()
        call.finish(*ending)
        return None
