# SPDX-License-Identifier: Apache-2.0
"""tensorwire.tensors against bytes of a stranger: a DecodeError that says what is wrong."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensorwire import tensors
from tensorwire.tensors import DecodeError, wire

PREFIX = struct.Struct("<4sHHQ")


def header(body: bytes, *, magic: bytes = b"TWTN", version: int = 1, flags: int = 0) -> bytes:
    start = PREFIX.pack(magic, version, flags, len(body)) + body
    return start + bytes(-len(start) % 64)


def message(heads: object, tokens: object) -> bytes:
    return header(msgspec.msgpack.encode((heads, tokens)))


def tensor(
    dtype: object = "float32",
    shape: object = (1,),
    nbytes: object = 4,
    order: object = None,
    framework: object = 0,
) -> list[object]:
    return [dtype, shape, nbytes, order, framework]


ONE = ([tensor()], [[wire.TENSOR, 0]])
GOOD = message(*ONE) + bytes(4)


def test_the_messages_below_are_wrong_in_one_way_only() -> None:
    assert tensors.loads(GOOD) == np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes are too few for the header"),
        (GOOD[:15], "15 bytes are too few for the header"),
        (header(b"\x92\x90\x90", magic=b"GRPC"), "no tensor message: it begins with b'GRPC'"),
        (header(b"\x92\x90\x90", version=2), "tensor message of version 2: this side reads 1"),
        (header(b"\x92\x90\x90", flags=4), "unknown flags 0x4"),
        (PREFIX.pack(b"TWTN", 1, 0, 1 << 60), r"header of 1152921504606846976 bytes: the limit"),
        (PREFIX.pack(b"TWTN", 1, 0, 100) + bytes(20), "header segment of 36 bytes, announced as"),
        (GOOD[:63] + b"\x01" + GOOD[64:], "bytes other than zero behind the header"),
        (GOOD[:-1], "message of 67 bytes, announced as 68"),
        (GOOD + b"x", "message of 69 bytes, announced as 68"),
        (header(b""), "malformed header: Input data was truncated"),
        (header(b"\xdd\xff\xff\xff\xff"), "malformed header"),
        (header(b"\x92\xdd\xff\xff\xff\xff"), "malformed header"),
        (header(b"\x92\x90\xdd\xff\xff\xff\xff\xc0"), "malformed header"),
        (header(b"\x92\x90\xdb\xff\xff\xff\xff"), "malformed header"),
        (header(b"\x92\x90\x91\xa2\xff\xff"), "malformed header: 'utf-8' codec"),
        (header(b"\x92\x90\x91" + b"\x91" * 100000), "malformed header"),
        (header(b"\x92\x90\x91\x80"), "malformed header"),  # a map
        (header(b"\x92\x90\x91\xd6\xff\x00\x00\x00\x00"), "malformed header"),  # a timestamp
        (header(b"\x92\x90\x91\xc0\xc0"), "malformed header: .*trailing"),
        (message([], []), "the tree ends early"),
        (message([], [None, None]), "values behind the end of the tree"),
        (message([], [[wire.LIST, 2], None]), "the tree ends early"),
        (message([], [[wire.LIST, 1 << 62], None]), "the tree ends early"),
        (message([], [[wire.DICT, 1 << 62], "k", None]), "the tree ends early"),
        (message([], [[wire.DICT, 1], "k"]), "the tree ends early"),
        (message([], [[wire.LIST, -1]]), "a container of -1 items"),
        (message([], [[wire.LIST, 1]] * 100), "nested deeper than 64 levels"),
        (message([], [[wire.DICT, 2], "k", 1, "k", 2]), "key 'k' twice in one dict"),
        (message([], [[wire.DICT, 1], [wire.LIST, 0], 1]), "a key that is no plain value"),
        (message([], [[99, 0]]), "malformed value of kind 99"),
        (message([], [[-1, 0]]), "malformed value of kind -1"),
        (message([], [[wire.COMPLEX, 0], 1, 2.0]), "malformed value of kind"),
        (message([], [[wire.COMPLEX, 0], 1.0]), "the tree ends early"),
        (message([], [[wire.SCALAR, 0, b"1234"], 1]), "malformed value of kind"),
        (message([], [[wire.SCALAR, 0, b"123"], "float32"]), "a scalar float32 of 3 bytes"),
        (message([], [[wire.SCALAR, 0, b"123"], "object"]), "unknown dtype 'object'"),
        (message([], [[wire.TENSOR, 0]]), "tensor 0 of 0"),
        (message([tensor()], [[wire.TENSOR, -1]]) + bytes(4), "tensor -1 of 1"),
        (message([tensor()], [None]) + bytes(4), "tensor 0 does not occur in the tree"),
        (message([tensor()], [[wire.LIST, 2], [0, 0], [0, 0]]) + bytes(4), "tensor 0 occurs twice"),
        (message([tensor("O")], ONE[1]), "tensor 0: unknown dtype 'O'"),
        (message([tensor("object")], ONE[1]), "tensor 0: unknown dtype 'object'"),
        (message([tensor("f4,f4")], ONE[1]), "tensor 0: unknown dtype 'f4,f4'"),
        (message([tensor("x" * 10000)], ONE[1]), "tensor 0: unknown dtype 'x{40}'$"),
        (message([tensor("datetime64[0s]")], ONE[1]), "tensor 0: unknown dtype"),
        (message([tensor("datetime64")], ONE[1]), "tensor 0: unknown dtype"),
        (message([tensor("datetime64[s]\n")], ONE[1]), "tensor 0: unknown dtype"),
        (message([tensor(">bfloat16")], ONE[1]), "tensor 0: unknown dtype"),
        (message([tensor(">bool")], ONE[1]), "tensor 0: unknown dtype"),
        (message([tensor(shape=(1,) * 33)], ONE[1]), "tensor 0: rank 33: the limit is 32"),
        (message([tensor(shape=(-1,))], ONE[1]), "tensor 0: negative extent in shape"),
        (message([tensor(shape=(-1, -1))], ONE[1]), "tensor 0: negative extent in shape"),
        (message([tensor(shape=(2**62, 2**62))], ONE[1]), "tensor 0: shape .* overflows"),
        (message([tensor(shape=(2**62, 0, 2**62), nbytes=0)], ONE[1]), "shape .* overflows"),
        (message([tensor(shape=(2**61, 1))], ONE[1]), "tensor 0: shape .* overflows"),
        (message([tensor(shape=(2**63,))], ONE[1]), "tensor 0: shape .* overflows"),
        (message([tensor(nbytes=8)], ONE[1]), r"float32\[1\] takes 4 bytes, announced as 8"),
        (message([tensor(nbytes=-4)], ONE[1]), r"takes 4 bytes, announced as -4"),
        (message([tensor(order=(1,))], ONE[1]), "is no permutation of 1 axes"),
        (message([tensor(shape=(1, 1), order=(0, 0))], ONE[1]), "is no permutation of 2 axes"),
        (message([tensor(order=())], ONE[1]), "is no permutation of 1 axes"),
        (message([tensor(order=(2**63,))], ONE[1]), "is no permutation of 1 axes"),
        (message([tensor(order=(0,) * 5000)], ONE[1]), r"order .{1,200} is no permutation"),
        (message([tensor(shape=None)], ONE[1]), "malformed header: Expected `array`"),
        (message([tensor()[:-1]], ONE[1]), "malformed header: Expected `array`"),
        (message([[*tensor(), 0]], ONE[1]), "malformed header: Expected `array`"),
        (message([tensor(shape=(1.0,))], ONE[1]), "malformed header"),
        (message([tensor(shape=("1",))], ONE[1]), "malformed header"),
    ],
)  # fmt: skip
def test_each_damage_has_its_sentence(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        tensors.loads(data)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("segments", "reason"),
    [
        ([], "no segments"),
        ([message(*ONE), b"1234", b""], "2 tensor segments, 1 announced"),
        ([message([], [None]), b""], "1 tensor segments, 0 announced"),
        ([message(*ONE), b"123"], "tensor 0: 3 bytes, announced as 4"),
        ([message(*ONE) + b"1234", b"1234"], "header segment of 68 bytes, announced as 64"),
        ([b"", b"1234"], "0 bytes are too few"),
    ],
)
def test_segments_that_are_not_those_announced(segments: list[bytes], reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        tensors.loads(segments)


def test_too_many_tensors() -> None:
    data = message([tensor(shape=(0,), nbytes=0)] * (tensors.MAX_TENSORS + 1), [None])
    with pytest.raises(DecodeError, match="65537 tensors: the limit is 65536"):
        tensors.loads(data)


@pytest.mark.parametrize(
    "data",
    [
        header(b"\x92\xdd\xff\xff\xff\xff\xc0"),
        header(b"\x92\x90\xdd\xff\xff\xff\xff\xc0"),
        message([], [[wire.LIST, 1 << 62]]),
        message([tensor("float64", (2**59,), 2**62)], ONE[1]),
    ],
)
def test_announced_sizes_allocate_nothing(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            tensors.loads(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_error_is_a_value_error() -> None:
    assert issubclass(DecodeError, ValueError)


# ------------------------------------------------------------------------------------- any bytes


def attempt(data: object) -> None:
    """Either an object or a DecodeError, and the object must survive another journey."""
    try:
        result = tensors.loads(data)  # type: ignore[arg-type]
    except DecodeError:
        return
    tensors.loads(tensors.dumps(result))


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-2, 9)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9)
    | st.sampled_from(["float32", "bfloat16", "datetime64[s]", "bool", ">f4", "complex128"])
)
anything = st.recursive(scalars, lambda t: st.lists(t, max_size=5), max_leaves=20)
marks = st.tuples(st.integers(-1, 8), st.integers(-1, 4)) | st.tuples(
    st.integers(4, 8), st.just(0), st.binary(max_size=9)
)
tokens = st.lists(scalars | marks, max_size=12)
heads = st.builds(
    tensor,
    st.sampled_from(["float32", "int8", "bfloat16", "complex128", ">int16", "datetime64[3s]"]),
    st.lists(st.integers(-1, 3) | st.integers(0, 2**63), max_size=4),
    st.integers(0, 200),
    st.none() | st.lists(st.integers(-1, 4), max_size=4),
    st.integers(-1, 5),
)


@given(st.binary(max_size=200))
@example(GOOD)
def test_any_bytes(data: bytes) -> None:
    attempt(data)


@given(st.binary(max_size=200))
def test_any_msgpack_bytes(body: bytes) -> None:
    attempt(header(body))


@given(anything)
def test_any_msgpack_value(value: Any) -> None:
    attempt(header(msgspec.msgpack.encode(value)))


@given(st.lists(heads, max_size=3), tokens, st.binary(max_size=64))
def test_any_header_of_the_right_form(described: Any, tree: Any, payload: bytes) -> None:
    data = message(described, tree)
    attempt(data + payload)
    attempt([data, *([payload[:4]] * len(described))])


SAMPLE = tensors.join(
    tensors.dumps({"a": [np.arange(6.0).reshape(2, 3).T, 1 + 2j, 3**99], b"k": (np.int8(1), None)})
)


@given(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255))
def test_any_changed_byte(index: int, value: int) -> None:
    attempt(SAMPLE[:index] + bytes([value]) + SAMPLE[index + 1 :])


@given(st.integers(0, len(SAMPLE) - 1))
def test_any_truncation(length: int) -> None:
    with pytest.raises(DecodeError):
        tensors.loads(SAMPLE[:length])
