# SPDX-License-Identifier: Apache-2.0
"""Calls that wait for a pool, and a pool that fails."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from types import SimpleNamespace
from typing import Any

from tensorwire.rpc import status
from tensorwire.rpc.serving.dispatch import Dispatcher

SERVED = (status.OK, "", b"")


class Call:
    """Of the core, as far as the dispatcher looks at it."""

    method = "/t/Take"

    def __init__(self, peer: str, name: str) -> None:
        self.peer = peer
        self.name = name
        self.ended: tuple[Any, ...] | None = None

    def drop_if_over(self) -> bool:
        return False

    def finish(self, *ending: Any) -> None:
        assert self.ended is None
        self.ended = ending

    finish_and_next = finish


class Static:
    pool = None

    def run(self, _: Static, __: Call) -> tuple[Any, ...]:
        return SERVED


class Full(futures.Executor):
    """A pool with room for so many jobs. Its workers go on once it has none, before who submits
    hears of it."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._jobs: list[Callable[[], None]] = []

    def submit(self, function: Callable[..., Any], /, *_: Any, **__: Any) -> Any:
        if len(self._jobs) < self._room:
            self._jobs.append(function)
            return None
        for job in self._jobs:
            job()
        raise RuntimeError("it is full")


def test_a_call_that_a_full_pool_does_not_take_leaves_no_other_one_waiting() -> None:
    """Peers take turns: a job of one may have taken the call of another, which has no job."""
    methods = SimpleNamespace(dynamic=False, static={Call.method: Static()})
    made: Any = (None, Full(2), methods, None)
    dispatcher = Dispatcher(*made)
    calls = [Call("a", "first"), Call("a", "second"), Call("b", "third")]
    for call in calls:
        dispatcher._hand_over(call)  # type: ignore[arg-type]
    codes = {call.name: call.ended and call.ended[0] for call in calls}
    assert codes == {"first": status.OK, "third": status.OK, "second": status.UNAVAILABLE}
    assert not dispatcher._waiting.peers
