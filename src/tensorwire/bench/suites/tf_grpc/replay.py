# SPDX-License-Identifier: Apache-2.0
"""The payloads of a program, of the file that ``tensorwire trace --events --json`` writes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tensorwire.bench.suites.tf_grpc.payloads import MOST_BUFFERS, Payload, Workload
from tensorwire.observe.trace import PAYLOAD

MOST_MESSAGES: Final = 2000
"""Of a trace, the first ones are taken: as many as are in the traces of AR-gRPC (HiPC 2018)."""
_MOST_FILE: Final = 512 << 20
_ANNOUNCED: Final = "MESSAGE"


class _Event(msgspec.Struct, frozen=True):
    time_ns: int
    direction: str
    step: str
    stream: int
    message: int
    segment: int
    bytes: int


class _Link(msgspec.Struct, frozen=True):
    events: list[_Event] = []


class _Trace(msgspec.Struct, frozen=True):
    links: list[_Link]


def of_trace(path: Path) -> Workload:
    """All messages that carried something, in the order in which they were sent, each as a payload.
    Raises ValueError for a file that has none.

    Each segment is a buffer. Where several small ones went in one frame, the trace has the sum of
    their bytes, of which each gets the same.
    """
    try:
        if path.stat().st_size > _MOST_FILE:
            raise ValueError(f"{path} has more than {_MOST_FILE >> 20} MiB: record fewer steps")
        trace = msgspec.json.decode(path.read_bytes(), type=_Trace)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no trace: {error}") from None
    sent = sorted(each for link in trace.links for each in _messages(link))
    payloads = tuple(payload for _, payload in sent[:MOST_MESSAGES])
    if not payloads:
        raise ValueError(
            f"{path} has no message with a payload: record it by tensorwire trace --events --json"
        )
    return Workload(f"trace {path.name}", payloads)


def _messages(link: _Link) -> Iterable[tuple[int, Payload]]:
    """When each was announced, and its payload; those whose first step was not kept are left
    out."""
    begun: dict[tuple[int, int], _Event] = {}
    bytes_at: dict[tuple[int, int], dict[int, int]] = {}
    for event in link.events:
        if event.direction != "sent" or event.step not in PAYLOAD:
            continue
        key, first = (event.stream, event.message), event.segment
        if event.step == _ANNOUNCED:
            begun[key], first = event, 0
            bytes_at[key] = {}
        if key in begun and event.bytes:
            at = bytes_at[key]
            at[first] = at.get(first, 0) + event.bytes
    for key, event in begun.items():
        if 0 < event.segment <= MOST_BUFFERS and bytes_at[key]:
            yield event.time_ns, buffers(event.segment, bytes_at[key])


def buffers(count: int, bytes_at: Mapping[int, int]) -> Payload:
    """Bytes of each of ``count`` segments, without empty ones. bytes_at: by a segment, of that one
    and those behind it, as far as the next one that is named."""
    found: list[int] = []
    named = sorted(bytes_at)
    for first, behind in zip(named, [*named[1:], count], strict=True):
        many = max(behind - first, 1)
        each, left = divmod(bytes_at[first], many)
        found += [each + (place < left) for place in range(many)]
    return tuple(size for size in found if size)
