# SPDX-License-Identifier: Apache-2.0
"""Messages, put together from the steps of a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.observe.messages import MOST_BUFFERS, Buffer, Message, messages
from tensorwire.observe.trace import Direction, Event, Step


def event(
    step: Step, message: int, segment: int, nbytes: int, direction: Direction = "sent"
) -> Event:
    return Event(message, direction, step, 1, message, segment, nbytes, 0)


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=20), st.data())
def test_no_byte_is_lost(sizes: list[int], data: st.DataObject) -> None:
    """Whatever runs of segments went in one frame."""
    starts = sorted({0, *data.draw(st.sets(st.integers(0, len(sizes) - 1)))})
    runs = list(zip(starts, [*starts[1:], len(sizes)], strict=True))
    noted = [event("MESSAGE", 1, len(sizes), 0)]
    noted += [event("EAGER", 1, begin, sum(sizes[begin:end])) for begin, end in runs]
    (message,) = messages(noted, "sent")
    found = [buffer.size for buffer in message.buffers]
    assert sum(found) == sum(sizes)
    assert {buffer.protocol for buffer in message.buffers} == {"eager"}
    if all(end - begin == 1 for begin, end in runs):
        assert found == sizes


def test_each_buffer_has_the_protocol_by_which_it_went() -> None:
    noted = [
        event("MESSAGE", 1, 4, 5),
        event("DATA", 1, 1, 100),
        event("MAP", 1, 2, 1000),
        event("DATA", 1, 1, 50),
        event("EAGER", 1, 3, 7, "received"),
        event("EAGER", 1, 3, 6),
        event("SEND", 1, 0, 5000),
    ]
    (message,) = messages(noted, "sent")
    assert message == Message(
        1,
        (
            *(Buffer(5, "with the header"), Buffer(150, "chunks")),
            *(Buffer(1000, "mapped"), Buffer(6, "eager")),
        ),
    )
    assert list(messages(noted, "received")) == [], "its first step was not kept"


@pytest.mark.parametrize("count", [0, -1, MOST_BUFFERS + 1])
def test_no_message_has_so_many_buffers(count: int) -> None:
    assert list(messages([event("MESSAGE", 1, count, 8)], "sent")) == []
