# SPDX-License-Identifier: Apache-2.0
"""What programs hand to gRPC and get from it: their payload, and the serializers of stub and
servicer that go with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tensorwire.bench.harness.work import Array, Work, payload, view

PAYLOADS = ("array", "bytes", "protobuf", "protobuf-codec")
"""Arrays, ``bytes``, or a generated protobuf message with one field of bytes; with the codec the
same with ``tensorwire.protobuf`` where both ends are tensorwire's."""
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
"""Of channels and servers, which have a limit on messages of their own."""


@dataclass(frozen=True)
class Messages:
    """How a payload becomes a message to send, and how the receiver of one gets at its array.

    make: what the sender hands over, made ahead of the calls that are timed; array: of what the
    receiver is handed; serializer, deserializer: of the messages that carry a payload.
    """

    make: Callable[[Work], Any]
    array: Callable[[Any], Array]
    serializer: Callable[[Any], Any] | None = None
    deserializer: Callable[[Any], Any] | None = None


def ready_bytes(work: Work) -> bytes:
    return payload(work.size).tobytes()


BYTES = Messages(ready_bytes, view)


def why_no_protobuf() -> str | None:
    try:
        found = find_spec("google.protobuf") is not None
    except ModuleNotFoundError:  # nor is there any other package below google
        found = False
    return None if found else "needs protobuf: pip install protobuf"


def protobuf() -> Messages:
    """Of a generated class with one field of bytes, which the sender has set. Raises ImportError
    where protobuf is missing."""
    from google.protobuf.wrappers_pb2 import BytesValue

    return Messages(
        lambda work: BytesValue(value=ready_bytes(work)),
        lambda message: view(message.value),
        BytesValue.SerializeToString,
        BytesValue.FromString,
    )


def of_grpc() -> dict[str, Messages]:
    """By payload. Arrays travel as ready ``bytes``: the copy out of an array that a real program
    pays first is left out."""
    found = {"array": BYTES, "bytes": BYTES}
    if why_no_protobuf() is None:
        found["protobuf"] = found["protobuf-codec"] = protobuf()
    return found


def check_payload(payload: str) -> None:
    """ValueError when this kind of payload cannot be made here."""
    if payload.startswith("protobuf") and (reason := why_no_protobuf()) is not None:
        raise ValueError(reason)
