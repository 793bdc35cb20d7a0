# SPDX-License-Identifier: Apache-2.0
"""Handles and messages as bytes that somebody else has chosen."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire import _core
from tensorwire.remote import Handle, Rights, messages
from tensorwire.tensors import MAX_RANK, DecodeError

HANDLE = Handle(b"i" * 16, 7, 64, (3, 4), (16, 4), "float32")


def test_a_handle_survives_as_bytes() -> None:
    assert Handle.from_bytes(HANDLE.to_bytes()) == HANDLE
    assert len({HANDLE, Handle.from_bytes(HANDLE.to_bytes())}) == 1


@given(st.binary(max_size=200) | st.integers(0, 60).map(lambda cut: HANDLE.to_bytes()[:cut]))
def test_what_is_no_handle_is_refused(data: bytes) -> None:
    try:
        handle = Handle.from_bytes(data)
    except DecodeError:
        return
    assert isinstance(handle, Handle)


@pytest.mark.parametrize(
    "changed",
    [
        {"instance": b"short"},
        {"number": -1},
        {"number": 1 << 63},
        {"offset": -8},
        {"shape": (1,) * 1000},
        {"shape": (-1,)},
        {"dtype": "x" * 65},
    ],
)
def test_a_handle_has_limits(changed: dict[str, object]) -> None:
    fields = {**msgspec.structs.asdict(HANDLE), **changed}
    with pytest.raises(DecodeError, match="no handle"):
        Handle.from_bytes(msgspec.msgpack.encode(list(fields.values())))


def test_a_long_message_is_not_decoded() -> None:
    with pytest.raises(DecodeError, match="at most"):
        Handle.from_bytes(bytes(1 << 16))
    with pytest.raises(DecodeError, match="at most"):
        messages.decode(bytes(1 << 16), messages.Open)


@given(st.binary(max_size=100))
def test_messages_of_peers_are_messages_or_refused(data: bytes) -> None:
    for kind in (messages.Open, messages.Allocate, messages.Opened, messages.Notice):
        with suppress(DecodeError):
            assert isinstance(messages.decode(data, kind), kind)


def test_the_longest_notice_has_room() -> None:
    longest = messages.Notice(tuple([(1 << 63) - 1] * MAX_RANK), (1 << 63) - 1)
    assert len(messages.encode(longest)) <= messages.NOTICE_BYTES - messages.LENGTH_BYTES


def test_rights_are_those_of_the_core() -> None:
    assert (Rights.READ.value, Rights.WRITE.value, Rights.UPDATE.value) == (
        _core.MAY_READ,
        _core.MAY_WRITE,
        _core.MAY_UPDATE,
    )
