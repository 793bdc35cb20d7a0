# SPDX-License-Identifier: Apache-2.0
"""Batches: described once, started often."""

from __future__ import annotations

import numpy as np
import pytest
from tests.remote.pairs import PATIENCE, Pair

from tensorwire import remote
from tensorwire.remote import Rights


def test_a_batch_is_started_again_and_again(shared: Pair) -> None:
    exposed, tensor = shared.opened((512, 1024), "float32")
    out = np.zeros((512, 1024), np.float32)
    batch = shared.device.batch()
    for row in range(512):
        batch.read(tensor[511 - row], out[row])
    ready = batch.prepare()
    assert ready.nbytes == out.nbytes
    assert ready.pieces == 512
    for turn in range(3):
        exposed.array[:] = np.arange(512 * 1024).reshape(512, 1024) + turn
        ready.start().wait(PATIENCE)
        np.testing.assert_array_equal(out, exposed.array[::-1])


def test_adjacent_pieces_are_merged(shared: Pair) -> None:
    _, tensor = shared.opened((64, 16), "float32")
    out = np.zeros((64, 16), np.float32)
    batch = shared.device.batch()
    for row in range(64):
        batch.read(tensor[row], out[row])
    assert batch.prepare().pieces == 1


def test_writes_of_many_arrays_and_one_signal(shared: Pair) -> None:
    exposed, tensor = shared.opened((8, 100), "int64")
    other, second = shared.opened(5, "uint8")
    values = [np.full(100, row, np.int64) for row in range(8)]
    batch = shared.device.batch()
    for row, value in enumerate(values):
        batch.write(tensor[row], value)
    batch.write(second, np.arange(5, dtype=np.uint8))
    batch.signal(tensor, remote.Set(7))
    ready = batch.prepare()
    ready.start().wait(PATIENCE)
    assert exposed.signal.wait(7, PATIENCE) == 7
    assert exposed.array[:, 0].tolist() == list(range(8))
    assert other.array.tolist() == [0, 1, 2, 3, 4]
    values[3][:] = -1  # what it holds at the start is what is written
    ready.start(signal_value=9).wait(PATIENCE)
    assert exposed.signal.value == 9
    assert (exposed.array[3] == -1).all()


def test_a_batch_of_nothing_but_a_signal(shared: Pair) -> None:
    exposed, tensor = shared.opened(4)
    batch = shared.device.batch()
    batch.signal(tensor, remote.Add(2))
    batch.prepare().start().wait(PATIENCE)
    assert exposed.signal.value == 2
    nothing = shared.device.batch().prepare()
    nothing.start().wait(PATIENCE)
    with pytest.raises(ValueError, match="raises none"):
        nothing.start(signal_value=1)


def test_gather_and_scatter_in_a_batch(shared: Pair) -> None:
    exposed, table = shared.opened((100, 8), "float32")
    exposed.array[:] = np.arange(800).reshape(100, 8)
    out = np.zeros((3, 8), np.float32)
    batch = shared.device.batch()
    batch.gather(table, [9, 9, -1], out)
    batch.scatter(table, [0, 2], np.zeros((2, 8), np.float32))
    batch.prepare().start().wait(PATIENCE)
    np.testing.assert_array_equal(out, exposed.array[[9, 9, 99]])
    assert not exposed.array[[0, 2]].any()


def test_transfers_that_overlap_are_refused(shared: Pair) -> None:
    _, tensor = shared.opened((10, 10))
    out = np.zeros((10, 10), np.float32)
    batch = shared.device.batch()
    batch.write(tensor[:, 2:5], np.zeros((10, 3), np.float32))
    batch.write(tensor[:, 5:7], np.zeros((10, 2), np.float32))
    batch.prepare()  # side by side
    batch.write(tensor[3, 4:6], np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="two writes of the batch reach byte"):
        batch.prepare()
    batch = shared.device.batch()
    batch.read(tensor[0], out[0])
    batch.read(tensor[1], out[1])
    batch.read(tensor[2, :5], out[0, 5:])
    with pytest.raises(ValueError, match="two reads"):
        batch.prepare()


def test_reads_into_two_arrays_over_one_memory_are_refused(shared: Pair) -> None:
    _, tensor = shared.opened((4, 4))
    memory = bytearray(96)
    first, second = (np.frombuffer(memory, "float32", 16, begin) for begin in (0, 32))
    batch = shared.device.batch()
    batch.read(tensor, first.reshape(4, 4))
    batch.prepare()
    batch.read(tensor, second.reshape(4, 4))
    with pytest.raises(ValueError, match="two reads"):
        batch.prepare()


def test_a_signal_tells_of_all_arrays_or_of_none(shared: Pair) -> None:
    """Also where one of them went to memory that is there no more."""
    gone, first = shared.opened(4, "int64")
    exposed, second = shared.opened(4, "int64")
    batch = shared.device.batch()
    batch.write(first, np.ones(4, np.int64))
    batch.write(second, np.ones(4, np.int64))
    batch.signal(second, remote.Add())
    ready = batch.prepare()
    gone.conceal(PATIENCE)
    shared.hear()
    with pytest.raises(remote.NotFoundError):
        ready.start().wait(PATIENCE)
    assert exposed.signal.value == 0


def test_a_batch_that_cannot_begin_moves_nothing(shared: Pair) -> None:
    exposed, tensor = shared.opened(4, "int64")
    gone, other = shared.opened(4, "int64")
    exposed.array[:] = 1
    outs = np.zeros(4, np.int64), np.zeros(4, np.int64)
    batch = shared.device.batch()
    batch.read(tensor, outs[0])
    batch.read(other, outs[1])
    ready = batch.prepare()
    gone.conceal(PATIENCE)
    with pytest.raises(remote.NotFoundError):
        shared.device.open(gone.handle)  # the news of it comes before the reply
    with pytest.raises(remote.NotFoundError):
        ready.start()
    assert (tensor.read() == 1).all()  # after what was begun before
    assert not outs[0].any()


@pytest.mark.parametrize("reads_first", [True, False])
def test_a_batch_with_a_signal_only_writes(shared: Pair, reads_first: bool) -> None:
    _, tensor = shared.opened((2, 4), "int64")
    batch = shared.device.batch()
    if reads_first:
        batch.read(tensor[0], np.zeros(4, np.int64))
    batch.write(tensor[1], np.zeros(4, np.int64))
    if not reads_first:
        batch.read(tensor[0], np.zeros(4, np.int64))
    batch.signal(tensor, remote.Add())
    with pytest.raises(ValueError, match="only writes"):
        batch.prepare()


def test_what_is_wrong_with_a_batch_is_said(shared: Pair) -> None:
    _, tensor = shared.opened(4)
    out = np.zeros(4, np.float32)
    batch = shared.device.batch()
    with pytest.raises(ValueError, match="shape"):
        batch.read(tensor, np.zeros(5, np.float32))
    with pytest.raises(TypeError, match="float64"):
        batch.write(tensor, np.zeros(4))
    with pytest.raises(ValueError, match="C order"):
        batch.read(tensor, np.zeros(8, np.float32)[::2])
    with pytest.raises(IndexError, match="no rows"):
        batch.gather(tensor[0], [0], out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        batch.read(tensor, out)
    batch.signal(tensor, remote.Add())
    with pytest.raises(ValueError, match="one signal"):
        batch.signal(tensor, remote.Add())
    _, constant = shared.opened(4, "float32", Rights.READ)
    batch = shared.device.batch()
    batch.write(constant, np.zeros(4, np.float32))
    with pytest.raises(remote.PermissionDeniedError):
        batch.prepare()


def test_many_strided_blocks_are_described_by_one_row(shared: Pair) -> None:
    exposed, tensor = shared.opened((10_000, 64), "uint8")
    exposed.array[:, :8] = 7
    out = np.zeros((10_000, 8), np.uint8)
    batch = shared.device.batch()
    batch.read(tensor[:, :8], out)
    ready = batch.prepare()
    assert ready.pieces == 10_000
    ready.start().wait(PATIENCE)
    assert (out == 7).all()
