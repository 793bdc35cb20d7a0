# SPDX-License-Identifier: Apache-2.0
"""One-sided operations through the binding: memory of Python objects on both ends of a link."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from tests.linked import ALL, PATIENCE, Ends, known, linked

from tensorwire import _core


@pytest.fixture(params=["shm", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    with linked(request.param) as made:
        yield made


def test_arrays_are_read_and_written_in_place(ends: Ends) -> None:
    memory = np.zeros(1 << 20, np.float32)
    region = ends.there.expose(memory.data, ALL)
    assert known(ends.here, region.id) == (memory.nbytes, ALL)
    values = np.arange(1000, dtype=np.float32)
    assert ends.here.access(_core.WRITE, region.id, 400, values.data).wait(PATIENCE)
    np.testing.assert_array_equal(memory[100:1100], values)
    assert memory[99] == 0
    assert memory[1100] == 0
    back = np.empty_like(memory)
    assert ends.here.access(_core.READ, region.id, 0, back.data).wait(PATIENCE)
    np.testing.assert_array_equal(back, memory)


def test_atomics_give_the_value_before(ends: Ends) -> None:
    word = np.full(1, 5, np.uint64)
    region = ends.there.expose(word.data, _core.MAY_UPDATE)
    known(ends.here, region.id)
    before = np.zeros(1, np.uint64)
    ends.here.access(_core.FETCH_ADD, region.id, 0, before.data, operand=2**64 - 1).wait()
    assert (before[0], word[0]) == (5, 4)
    ends.here.access(_core.COMPARE_SWAP, region.id, 0, before.data, operand=9, expected=5).wait()
    assert (before[0], word[0]) == (4, 4)
    ends.here.access(_core.COMPARE_SWAP, region.id, 0, before.data, operand=9, expected=4).wait()
    assert (before[0], word[0]) == (4, 9)


def test_a_write_can_tell_the_peer(ends: Ends) -> None:
    memory = bytearray(8)
    region = ends.there.expose(memory, _core.MAY_WRITE)
    known(ends.here, region.id)
    assert ends.there.immediate(0.0) is None
    access = ends.here.access(_core.WRITE_IMMEDIATE, region.id, 0, b"tensors!", immediate=2**32 - 1)
    assert ends.there.immediate(PATIENCE) == 2**32 - 1
    assert memory == b"tensors!"
    assert access.wait(PATIENCE)
    assert access.ended


def test_the_end_of_an_operation_is_announced(ends: Ends) -> None:
    region = ends.there.expose(bytearray(100), ALL)
    known(ends.here, region.id)
    queue = _core.EventQueue()
    for token in range(10):
        # Nobody keeps the operation: its memory is kept for it.
        ends.here.access(
            _core.WRITE, region.id, 0, np.ones(100, np.uint8).data, queue=queue, token=token
        )
    tokens: list[int] = []
    while len(tokens) < 10:
        more = queue.wait(PATIENCE)
        assert more
        tokens += more
    # Two threads may tell of them: this one, which wrote some at once, and the one that writes on.
    assert sorted(tokens) == list(range(10))


def test_what_has_not_begun_lets_go_of_its_memory(ends: Ends) -> None:
    memory = bytearray(8)
    with pytest.raises(_core.StatusError):
        ends.here.access(_core.READ, 12345, 0, memory)
    memory.append(1)  # no longer exported


def test_an_operation_that_has_ended_lets_go_of_its_memory(ends: Ends) -> None:
    region = ends.there.expose(bytearray(8), ALL)
    known(ends.here, region.id)
    memory = bytearray(8)
    access = ends.here.access(_core.READ, region.id, 0, memory)
    assert access.wait(PATIENCE)
    memory.append(1)  # although the operation's object is there


@pytest.mark.parametrize(
    ("code", "rights", "kind", "offset", "size"),
    [
        (7, _core.MAY_READ, _core.WRITE, 0, 8),
        (7, _core.MAY_WRITE, _core.READ, 0, 8),
        (7, _core.MAY_READ | _core.MAY_WRITE, _core.FETCH_ADD, 0, 8),
        (11, ALL, _core.READ, 60, 8),
        (11, ALL, _core.WRITE, 2**64 - 4, 8),
        (3, ALL, _core.FETCH_ADD, 4, 8),
        (3, ALL, _core.COMPARE_SWAP, 0, 4),
        (3, ALL, 7, 0, 8),
    ],
)
def test_what_cannot_be_right_is_refused(
    ends: Ends, code: int, rights: int, kind: int, offset: int, size: int
) -> None:
    region = ends.there.expose(np.zeros(8, np.uint64).data, rights)
    known(ends.here, region.id)
    with pytest.raises(_core.StatusError) as error:
        ends.here.access(kind, region.id, offset, bytearray(size))
    assert error.value.code == code
    assert len(error.value.details) > 10
    assert ends.link.alive


def test_a_concealed_region_lets_go_of_its_memory(ends: Ends) -> None:
    memory = bytearray(64)
    region = ends.there.expose(memory, ALL)
    number = region.id
    known(ends.here, number)
    with pytest.raises(BufferError):
        memory.append(1)  # exported
    assert region.conceal()
    assert not region.conceal()
    assert region.id == 0
    del region
    gc.collect()
    memory.append(1)
    with pytest.raises(_core.StatusError) as error:
        ends.here.access(_core.READ, number, 0, bytearray(1)).wait(PATIENCE)
    assert error.value.code == 5


def test_read_only_memory_is_exposed_for_reading_only(ends: Ends) -> None:
    with pytest.raises(BufferError):
        ends.there.expose(b"constant", _core.MAY_WRITE)
    region = ends.there.expose(b"constant", _core.MAY_READ)
    known(ends.here, region.id)
    into = bytearray(8)
    assert ends.here.access(_core.READ, region.id, 0, into).wait(PATIENCE)
    assert into == b"constant"
    with pytest.raises(BufferError):
        ends.here.access(_core.READ, region.id, 0, b"constant")


def test_a_closed_link_ends_everything(ends: Ends) -> None:
    region = ends.here.expose(bytearray(8), ALL)
    number = region.id
    known(ends.there, number)
    ends.link.close()
    with pytest.raises(_core.StatusError) as error:
        ends.here.access(_core.READ, 1, 0, bytearray(1))
    assert error.value.code == 1
    with pytest.raises(_core.StatusError):
        ends.here.immediate(PATIENCE)
    with pytest.raises(_core.StatusError):
        ends.here.expose(bytearray(8), ALL)
    assert not region.conceal()
