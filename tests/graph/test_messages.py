# SPDX-License-Identifier: Apache-2.0
"""The memory that messages of a plan come into."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tensorwire import arrays
from tensorwire.graph import Edge, plan
from tensorwire.graph.messages import Inbox
from tensorwire.graph.program import Program, Value
from tensorwire.rpc import Peer

ELEMENTS = 64


class Sender:
    """A peer from which a message of the right size has always come. room: of the arena."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.arena: list[int] = []
        """The addresses of what the arena gave."""
        self.into: list[int] = []
        """Those of what was received into."""

    def post(self, tag: int, into: memoryview) -> Any:
        self.into.append(address(np.frombuffer(into, np.uint8)))
        return self

    def wait(self, timeout: float | None) -> int:
        return 4 * ELEMENTS

    def empty(self, size: int, dtype: object) -> Any:
        if len(self.arena) == self.room:
            raise arrays.ArenaFullError("full")
        made = np.zeros(size, np.uint8)
        self.arena.append(address(made))
        return made


def address(array: Any) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def inbox_of(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    """Of two steps."""
    monkeypatch.setattr(arrays, "empty", sender.empty)
    (transfer,) = plan([Edge("x", "a", "b", (ELEMENTS,), "float32")]).transfers()
    numpy = cast(Any, "numpy")  # no program has that, and memory is the same
    program = Program(numpy, (), (), (), {"x": Value((ELEMENTS,), "float32")})
    return Inbox(cast(Peer, sender), transfer, 2, program)


def test_memory_that_nobody_looks_at_any_more_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but that of ``depth`` steps, and ordinary memory first."""
    sender = Sender(room=4)
    inbox = inbox_of(sender, monkeypatch)
    kept = []
    for _ in range(10):
        found = inbox.take(1)
        assert found is not None
        kept.append(found["x"])
        inbox.post()
    assert len(set(sender.into)) == 12  # none was received into twice
    del found
    kept.clear()
    sender.into.clear()
    for _ in range(20):
        inbox.take(1)
        inbox.post()
    assert len(inbox._taken) <= 2
    assert len(set(sender.into[2:])) <= 4
    assert set(sender.into[4:]) <= set(sender.arena)


def test_memory_that_another_thread_lets_go_of_meanwhile_is_received_into_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sender = Sender(room=10)
    inbox = inbox_of(sender, monkeypatch)
    inbox.take(1)
    ((memory, _),) = inbox._taken
    lives = iter([True])
    inbox._taken[:] = [(memory, cast(Any, lambda: next(lives, None)))]  # as a weakref that dies
    sender.into.clear()
    inbox.post()
    inbox.post()
    first, second = sender.into
    assert first != second
