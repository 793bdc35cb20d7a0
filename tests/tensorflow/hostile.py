# SPDX-License-Identifier: Apache-2.0
"""A process that breaks plans of tensors: a real one, in whose function table ``call_reply`` and
``call_send``, by which all messages of a plan go, send further ones."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

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
SEND = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, Payload, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
)


class Pairs(ctypes.Structure):
    """``tw_pairs``."""

    _fields_ = (("pairs", ctypes.c_void_p), ("count", ctypes.c_size_t))


START = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, Pairs, Payload),
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
)
ANOTHER_STREAM = "another stream of the link"
LARGEST = bytes(1 << 20)
"""The largest tensor that is planned."""
MOST_STEPS = 4


def record(kind: int, edge: int = 0, step: int = 0, payload: bytes = b"") -> bytes:
    return PREFIX.pack(kind, edge, step, len(payload)) + payload


def records(message: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, edge, step and payload of each."""
    at = 0
    while at < len(message):
        kind, edge, step, size = PREFIX.unpack_from(message, at)
        at += PREFIX.size + size
        yield kind, edge, step, message[at - size : at]


def refused_of_sender(edge: int, size: int) -> dict[str, list[Message]]:
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


def borne_of_sender(edge: int, step: int, size: int) -> dict[str, list[Message]]:
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


def refused_of_receiver(edge: int, described: bytes) -> dict[str, list[Message]]:
    """What ends the plan. described: what the edge is."""
    nothing = record(WANT, edge + 1, payload=bytes(8) + b"x")
    return {
        "a name that is in use": [[record(WANT, edge, 0, described)]],
        "a want that is cut short": [[record(WANT, edge + 1, 0, described)[:-1]]],
        "a want of no edge": [[record(WANT, edge + 1, 0, b"x")]],
        "a record that receivers do not send": [[record(DEAD, edge, NOWHERE)]],
        "words of two segments": [[record(ABORT, 0, NOWHERE), b""]],
        "words that are too long": [[record(ABORT, 0, NOWHERE) * 50_000]],
        "a flood of wants": [[nothing * 20_000]],
    }


OF_SENDER = {**refused_of_sender(0, 0), **borne_of_sender(0, 0, 0)}.keys()
BORNE = borne_of_sender(0, 0, 0).keys()
OF_RECEIVER = refused_of_receiver(0, b"").keys()


def first_segment(payload: Payload) -> bytes:
    return ctypes.string_at(payload.segments[0].data, payload.segments[0].size)


def payload_of(message: Message) -> Payload:
    """The message has to outlive it."""
    segments = (Segment * len(message))(
        *(
            Segment(ctypes.cast(ctypes.c_char_p(each), ctypes.c_void_p), len(each))
            for each in message
        )
    )
    return Payload(segments, len(message), None, None)


class Hostile:
    """Once per process, before the plugin starts."""

    def __init__(self) -> None:
        genuine = _core.function_table()
        size = ctypes.c_uint32.from_address(genuine + 4).value
        self._table = ctypes.create_string_buffer(ctypes.string_at(genuine, size), size)
        self._entries = re.findall(r"^  ENTRY\((\w+), tw_\w+\)", TABLE.read_text(), re.MULTILINE)
        self._armed = ""
        self._genuine_reply, self._reply = self._replaced("call_reply", REPLY, self._replies)
        self._genuine_send, self._send = self._replaced("call_send", SEND, self._sends)
        self._genuine_start, self._start = self._replaced("peer_start", START, self._starts)
        self._peer = self._call = self._pushed = 0
        self._agreed: list[int] = []
        self._overfills = False
        # Whoever asks for the table from now on is the plugin.
        _core.function_table = lambda: ctypes.addressof(self._table)

    def words(self) -> dict[str, Callable[[], object]]:
        """``attack NAME``: with the next tensor that is pushed or wanted. ``attacks``: how many are
        still to come. ``fill``: between two steps, all edges are pushed in as many others as a
        receiver keeps, and it is told that the first is withdrawn. The next one that it wants is
        pushed in one of them. All edges are as large as can be."""
        return {
            "attacks": lambda: int(self._armed != ""),
            "fill": self._fill,
            f"attack {ANOTHER_STREAM}": partial(self._arm, ANOTHER_STREAM),
            **{f"attack {name}": partial(self._arm, name) for name in (*OF_SENDER, *OF_RECEIVER)},
        }

    def _arm(self, name: str) -> None:
        self._armed = name

    def _replaced(self, name: str, kind: Any, by: Callable[..., int]) -> tuple[Any, Any]:
        at = ctypes.c_void_p.from_buffer(self._table, 8 + 8 * self._entries.index(name))
        genuine, replacement = kind(at.value), kind(by)
        at.value = ctypes.cast(replacement, ctypes.c_void_p).value
        return genuine, replacement

    def _fill(self) -> int:
        edges = self._agreed
        messages = [[record(ENDED, 0, self._pushed)]]
        for step in range(NOWHERE, NOWHERE + MOST_STEPS):
            head = b"".join(record(SEGMENT, edge, step) for edge in edges)
            messages.append([head, *[LARGEST] * len(edges)])
        messages.append([record(WITHDRAWN, edges[0])])
        self._overfills = True
        for each in messages:
            self._genuine_reply(self._call, payload_of(each), None, None)
        return len(edges) * MOST_STEPS

    def _note(self, call: int, message: bytes) -> None:
        if call != self._call:
            self._call, self._agreed = call, []
        for kind, edge, step, _ in records(message):
            if kind == AGREED and edge not in self._agreed:
                self._agreed.append(edge)
            elif kind in (TENSOR, SEGMENT):
                self._pushed = step
            elif kind == WITHDRAWN and self._overfills:  # it was wanted, and there is no room
                self._overfills = False
                ahead = [record(SEGMENT, edge, NOWHERE), LARGEST]
                self._genuine_reply(call, payload_of(ahead), None, None)

    def _starts(self, peer: int, *arguments: Any) -> int:
        self._peer = peer
        result: int = self._genuine_start(peer, *arguments)
        return result

    def _replies(self, call: int, payload: Payload, wait: int, status: int) -> int:
        message = first_segment(payload)  # what is lent may be gone once it was sent
        self._note(call, message)
        result: int = self._genuine_reply(call, payload, wait, status)
        pushed = [each for each in records(message) if each[0] == TENSOR]
        if result == 0 and self._armed in OF_SENDER and pushed:
            _, edge, step, bytes_ = pushed[-1]
            size = len(bytes_)
            attacks = {**refused_of_sender(edge, size), **borne_of_sender(edge, step, size)}
            # The receiver may end the stream after any of them.
            for each in attacks[self._armed]:
                self._genuine_reply(call, payload_of(each), None, None)
            self._armed = ""
        return result

    def _sends(self, call: int, payload: Payload, end: int, wait: int, status: int) -> int:
        message = first_segment(payload)
        result: int = self._genuine_send(call, payload, end, wait, status)
        wanted = [each for each in records(message) if each[0] == WANT]
        if result == 0 and self._armed == ANOTHER_STREAM and wanted:
            self._another_stream()
            self._armed = ""
        if result == 0 and self._armed in OF_RECEIVER and wanted:
            _, edge, _, described = wanted[-1]
            for each in refused_of_receiver(edge, described)[self._armed]:
                self._genuine_send(call, payload_of(each), 0, None, None)
            self._armed = ""
        return result

    def _another_stream(self) -> None:
        method = b"/tensorwire.TensorFlow/Plan"
        call, status = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
        self._genuine_start(
            *(self._peer, method, len(method), Pairs(), Payload(), 0, None),
            *(ctypes.byref(call), ctypes.byref(status)),
        )
