# SPDX-License-Identifier: Apache-2.0
"""A sender of planned tensors that breaks the plan: a real one, in whose function table
``call_reply``, by which all messages of a plan go, sends further ones."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tensorwire import _core

TABLE = Path(__file__).resolve().parents[2] / "core" / "tensorwire" / "table.h"
PREFIX = struct.Struct("=IIqQ")
"""Of a record: kind, edge, step, bytes of the payload."""
WANT, UNWANT, ABORT, AGREED, WITHDRAWN, EXCLUDED, ENDED, TENSOR, SEGMENT, DEAD, UNKNOWN = range(11)
NOWHERE = 1 << 40
"""A step that nobody runs; so are some that follow."""

Message = list[bytes]
"""Segments."""


class Segment(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Payload(ctypes.Structure):
    """``tw_payload``."""

    _fields_ = (
        ("segments", ctypes.POINTER(Segment)),
        ("count", ctypes.c_size_t),
        ("owners", ctypes.c_void_p),
        ("keeper", ctypes.c_void_p),
    )


REPLY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, Payload, ctypes.c_void_p, ctypes.c_void_p)


def record(kind: int, edge: int = 0, step: int = 0, payload: bytes = b"") -> bytes:
    return PREFIX.pack(kind, edge, step, len(payload)) + payload


def tensors(message: bytes) -> Iterator[tuple[int, int, int]]:
    """Edge, step and bytes of each small tensor of a message."""
    at = 0
    while at < len(message):
        kind, edge, step, size = PREFIX.unpack_from(message, at)
        at += PREFIX.size + size
        if kind == TENSOR:
            yield edge, step, size


def refused(edge: int, size: int) -> dict[str, list[Message]]:
    """What ends the plan."""
    right = bytes(size)
    ahead = record(TENSOR, edge, NOWHERE, right)
    return {
        "an edge that nobody wanted": [[record(TENSOR, edge + 1000, NOWHERE, right)]],
        "a tensor that is too short": [[record(TENSOR, edge, NOWHERE, right[1:])]],
        "a tensor that is too long": [[record(TENSOR, edge, NOWHERE, right + b"x")]],
        "a tensor without its segment": [[record(SEGMENT, edge, NOWHERE)]],
        "a segment that is too long": [[record(SEGMENT, edge, NOWHERE), bytes(1 << 20)]],
        "a segment of no record": [[record(ENDED, 0, NOWHERE), right]],
        "twice in a step": [[ahead], [ahead]],
        "a flood of steps": [[record(TENSOR, edge, NOWHERE + n, right)] for n in range(5)],
        "a flood of excluded steps": [
            [b"".join(record(EXCLUDED, 0, NOWHERE + n) for n in range(4097))]
        ],
        "an agreement that nobody wanted": [[record(AGREED, edge + 1000)]],
        "a withdrawal that nobody wanted": [[record(WITHDRAWN, edge + 1000)]],
        "a record that is cut short": [[ahead[: PREFIX.size - 1]]],
        "a payload that is cut short": [[ahead[:-1]]],
        "a payload of 2^64 - 1 bytes": [[PREFIX.pack(TENSOR, edge, NOWHERE, (1 << 64) - 1)]],
        "a record of an unknown kind": [[record(UNKNOWN)]],
        "a record that senders do not send": [[record(ABORT, 0, NOWHERE)]],
        "a dead tensor with bytes": [[record(DEAD, edge, NOWHERE, right)]],
        "records that are too long": [[record(ENDED, 0, NOWHERE) * 50_000]],
    }


def borne(edge: int, step: int, size: int) -> dict[str, list[Message]]:
    """What a sender may say, though it is of no use to it."""
    right = bytes(size)
    return {
        "the step's tensor again": [[record(TENSOR, edge, step, right)]],
        "a tensor of no step": [
            [record(TENSOR, edge, NOWHERE, right)],
            [record(ENDED, 0, NOWHERE)],
        ],
        "a dead tensor of no step": [[record(DEAD, edge, NOWHERE) + record(ENDED, 0, NOWHERE)]],
        "the end of a step under way": [[record(ENDED, 0, step)]],
        "a step under way is excluded": [[record(EXCLUDED, 0, step)]],
        "agreed again": [[record(AGREED, edge)]],
    }


def attack(name: str, edge: int, step: int, size: int) -> list[Message]:
    return {**refused(edge, size), **borne(edge, step, size)}[name]


class Hostile:
    """Once per process, before the plugin starts."""

    def __init__(self) -> None:
        genuine = _core.function_table()
        size = ctypes.c_uint32.from_address(genuine + 4).value
        self._table = ctypes.create_string_buffer(ctypes.string_at(genuine, size), size)
        entries = re.findall(r"^  ENTRY\((\w+), tw_\w+\)", TABLE.read_text(), re.MULTILINE)
        at = ctypes.c_void_p.from_buffer(self._table, 8 + 8 * entries.index("call_reply"))
        assert at.value is not None
        self._genuine = REPLY(at.value)
        self._reply = REPLY(self._replace)
        at.value = ctypes.cast(self._reply, ctypes.c_void_p).value
        self._armed = ""
        _core.function_table = lambda: ctypes.addressof(self._table)

    def words(self) -> dict[str, Callable[[], object]]:
        """``attack NAME``: with the next tensor. ``attacks``: how many are still to come."""
        names = {**refused(0, 0), **borne(0, 0, 0)}
        return {
            "attacks": lambda: int(self._armed != ""),
            **{f"attack {name}": partial(self._arm, name) for name in names},
        }

    def _arm(self, name: str) -> None:
        self._armed = name

    def _replace(self, call: int, payload: Payload, wait: int, status: int) -> int:
        # What is lent may be gone once it was sent.
        records = ctypes.string_at(payload.segments[0].data, payload.segments[0].size)
        result: int = self._genuine(call, payload, wait, status)
        pushed = list(tensors(records))
        if result == 0 and self._armed and pushed:
            for message in attack(self._armed, *pushed[-1]):
                segments = (Segment * len(message))(
                    *(Segment(ctypes.cast(each, ctypes.c_void_p), len(each)) for each in message)
                )
                # The receiver may have ended the stream already.
                self._genuine(call, Payload(segments, len(message), None, None), None, None)
            self._armed = ""
        return result
