# SPDX-License-Identifier: Apache-2.0
"""Messages and their buffers, put together from the steps that a link has noted of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tensorwire.observe.trace import PAYLOAD, Direction, Event, Step

PROTOCOLS: Final[dict[Step, str]] = {
    "MESSAGE": "with the header",
    "EAGER": "eager",
    "DATA": "chunks",
    "MAP": "mapped",
    "RETURN": "returned",
    "RTS": "rendezvous",
}
"""By which a buffer went, by the step of ``PAYLOAD`` that a link has noted of it."""
MOST_BUFFERS: Final = 65_535
"""Of a message: the wire format has no more."""


@dataclass(frozen=True)
class Buffer:
    """A tensor or another segment. protocol: by which it travelled, one of ``PROTOCOLS``; of what
    went by stock gRPC, the function of the C library that it called."""

    size: int
    protocol: str


@dataclass(frozen=True)
class Message:
    """time_ns: when it was announced. buffers: those that are not empty."""

    time_ns: int
    buffers: tuple[Buffer, ...]


def messages(events: Iterable[Event], direction: Direction) -> Iterator[Message]:
    """Those of a link with a payload, in the order in which they were announced; a message whose
    first step was not kept is left out.

    Where several small buffers went in one frame, there is the sum of their bytes, of which each
    gets the same.
    """
    begun: dict[tuple[int, int], Event] = {}
    frames: dict[tuple[int, int], dict[int, Buffer]] = {}
    for event in events:
        if event.direction != direction or event.step not in PAYLOAD:
            continue
        key, first = (event.stream, event.message), event.segment
        if event.step == "MESSAGE":
            begun[key], first = event, 0
            frames[key] = {}
        if key in begun and event.bytes:
            protocol = PROTOCOLS[event.step]
            before = frames[key].get(first, Buffer(0, protocol))
            frames[key][first] = Buffer(before.size + event.bytes, protocol)
    for key, event in begun.items():
        if 0 < event.segment <= MOST_BUFFERS and frames[key]:
            yield Message(event.time_ns, _buffers(event.segment, frames[key]))


def _buffers(count: int, frames: dict[int, Buffer]) -> tuple[Buffer, ...]:
    """Of ``count`` segments. frames: what went together, by the first segment of it, which goes as
    far as the next one that is named."""
    found: list[Buffer] = []
    named = sorted(frames)
    for first, behind in zip(named, [*named[1:], count], strict=True):
        many = max(behind - first, 1)
        each, left = divmod(frames[first].size, many)
        found += [Buffer(each + (place < left), frames[first].protocol) for place in range(many)]
    return tuple(buffer for buffer in found if buffer.size)
