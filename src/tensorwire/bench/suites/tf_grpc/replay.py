# SPDX-License-Identifier: Apache-2.0
"""The payloads of a program, of the file that ``tensorwire trace --events --json`` writes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tensorwire.bench.suites.tf_grpc.payloads import Workload
from tensorwire.observe.messages import messages
from tensorwire.observe.trace import Event

MOST_MESSAGES: Final = 2000
"""Of a trace, the first ones are taken: as many as are in the traces of AR-gRPC (HiPC 2018)."""
_MOST_FILE: Final = 512 << 20


class _Link(msgspec.Struct, frozen=True):
    events: list[Event] = []


class _Trace(msgspec.Struct, frozen=True):
    links: list[_Link]


def of_trace(path: Path) -> Workload:
    """All messages that carried something, in the order in which they were sent, each as a payload.
    Raises ValueError for a file that has none.

    Each segment is a buffer, as of ``messages``.
    """
    try:
        if path.stat().st_size > _MOST_FILE:
            raise ValueError(f"{path} has more than {_MOST_FILE >> 20} MiB: record fewer steps")
        trace = msgspec.json.decode(path.read_bytes(), type=_Trace)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no trace: {error}") from None
    sent = [each for link in trace.links for each in messages(link.events, "sent")]
    sent.sort(key=lambda message: message.time_ns)
    payloads = tuple(
        tuple(buffer.size for buffer in message.buffers) for message in sent[:MOST_MESSAGES]
    )
    if not payloads:
        raise ValueError(
            f"{path} has no message with a payload: record it by tensorwire trace --events --json"
        )
    return Workload(f"trace {path.name}", payloads)
