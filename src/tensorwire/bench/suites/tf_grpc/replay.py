# SPDX-License-Identifier: Apache-2.0
"""The payloads of a program, of the file that ``tensorwire trace --events --json`` or ``tensorwire
profile --json`` writes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from tensorwire.bench.suites.tf_grpc.payloads import Workload
from tensorwire.observe.messages import messages
from tensorwire.observe.trace import Event

MOST_MESSAGES: Final = 2000
"""Of all links of a file, the first ones: as many as are in the traces of AR-gRPC (HiPC 2018)."""
_MOST_FILE: Final = 512 << 20


class _Link(msgspec.Struct, frozen=True):
    events: list[Event] = []


class _Sent(msgspec.Struct, frozen=True):
    buffers: list[Annotated[int, msgspec.Meta(ge=0)]]


class _Recorded(msgspec.Struct, frozen=True):
    """links: of a trace; trace: of a profile, whose messages may have gone by stock gRPC, too."""

    links: list[_Link] = []
    trace: list[_Sent] = []


def of_trace(path: Path) -> Workload:
    """All messages that carried something, in the order in which they were sent, each as a payload.
    Raises ValueError for a file that has none.

    Each segment is a buffer, as of ``messages``; of stock gRPC each message that a call gave to a
    socket.
    """
    try:
        if path.stat().st_size > _MOST_FILE:
            raise ValueError(f"{path} has more than {_MOST_FILE >> 20} MiB: record fewer steps")
        found = msgspec.json.decode(path.read_bytes(), type=_Recorded)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no trace: {error}") from None
    sent = [each for link in found.links for each in messages(link.events, "sent")]
    sent.sort(key=lambda message: message.time_ns)
    of_links = [tuple(buffer.size for buffer in message.buffers) for message in sent]
    of_profile = [tuple(filter(None, message.buffers)) for message in found.trace]
    payloads = tuple([each for each in (*of_links, *of_profile) if each][:MOST_MESSAGES])
    if not payloads:
        raise ValueError(
            f"{path} has no message with a payload: record it by tensorwire trace --events --json, "
            "or tensorwire profile --json, also of a program that uses stock gRPC"
        )
    return Workload(f"trace {path.name}", payloads)
