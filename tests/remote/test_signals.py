# SPDX-License-Identifier: Apache-2.0
"""Signals: raised with what was written, waited for by the owner."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from typing import Any

import numpy as np
import pytest
from tests.remote.pairs import PATIENCE, Pair, pair
from tests.transports import HERE

from tensorwire import remote
from tensorwire.remote import Add, Rights, Set
from tensorwire.tensors import TensorSpec


def test_a_signal_comes_after_the_payload(shared: Pair) -> None:
    exposed, tensor = shared.opened(1 << 14, "uint32")
    seen: list[bool] = []

    def owner() -> None:
        for turn in range(1, 51):
            assert exposed.signal.wait(turn, PATIENCE) >= turn
            seen.append(bool((exposed.array >= turn).all()))

    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(owner)
        for turn in range(1, 51):
            tensor.write(np.full(1 << 14, turn, np.uint32), signal=Add())
        waiting.result(PATIENCE)
    assert all(seen)
    assert exposed.signal.value == 50


def test_signals_are_set_and_added_to(shared: Pair) -> None:
    exposed, tensor = shared.opened(4)
    tensor.signal(Set(10))
    tensor.signal(Add(2**64 - 4))
    assert exposed.signal.wait(6, PATIENCE) == 6
    tensor[1:3].write(np.ones(2, np.float32), signal=Set(2**64 - 1))
    assert exposed.signal.value == 2**64 - 1
    exposed.signal.set(0)
    assert exposed.signal.value == 0
    for wrong in (-1, 2**64):
        for make in (Add, Set):
            with pytest.raises(ValueError, match="64 bits"):
                make(wrong)
    number: Any = 5
    with pytest.raises(TypeError, match="Add or Set"):
        tensor.signal(number)


def test_an_owner_sets_its_signal_while_a_peer_loses_it(shared: Pair) -> None:
    """The word is stored all the same, by the way of nobody."""
    exposed, _tensor = shared.opened(4)
    (grant,) = exposed._grants.values()
    assert grant.signal is not None
    grant.signal.conceal(PATIENCE)
    exposed.signal.set(5)
    assert exposed.signal.value == 5


def test_a_wait_ends_in_time(shared: Pair) -> None:
    exposed, tensor = shared.opened(4)
    with pytest.raises(remote.DeadlineExceededError, match="the value 0, not 1"):
        exposed.signal.wait(1, 0.01)
    tensor.signal(Add())
    assert exposed.signal.wait(1, 0.0) == 1
    alone = shared.host.empty(4, rights=Rights.WRITE)  # nobody has opened it
    with pytest.raises(remote.DeadlineExceededError):
        alone.signal.wait(1, 0.01)
    alone.signal.set(3)
    assert alone.signal.wait(2) == 3


def test_a_timeout_is_a_number(shared: Pair) -> None:
    exposed, tensor = shared.opened(4)
    nan = float("nan")
    with remote.receiver(shared.host, "c", TensorSpec((4,), "float32")) as receiver:
        sender = remote.sender(shared.device, "c")
        for wait in (
            lambda: exposed.signal.wait(1, nan),
            lambda: remote.wait_any([(exposed.signal, 1)], nan),
            lambda: asyncio.run(exposed.signal.reached(1, nan)),
            lambda: receiver.get(timeout=nan),
            lambda: asyncio.run(receiver.get_async(timeout=nan)),
            lambda: sender.put(np.zeros(4, np.float32), timeout=nan),
            lambda: sender.close(nan),
            lambda: exposed.conceal(nan),
            lambda: remote.connect("127.0.0.1:1", timeout=nan),
        ):
            with pytest.raises(ValueError, match="seconds"):
                wait()
        sender.put(np.zeros(4, np.float32), timeout=PATIENCE)  # and nothing was done
        sender.close()
    assert tensor.read().tolist() == [0, 0, 0, 0]


def test_a_wait_before_anybody_has_opened_it(shared: Pair) -> None:
    exposed = shared.host.empty(4, rights=Rights.WRITE)
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(exposed.signal.wait, 1, PATIENCE)
        shared.device.open(exposed.handle).signal(Add())
        assert waiting.result(PATIENCE) == 1


def test_a_wait_ends_with_the_memory(shared: Pair) -> None:
    exposed, _ = shared.opened(4)
    begun = threading.Event()

    def owner() -> None:
        begun.set()
        exposed.signal.wait(1, PATIENCE)

    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(owner)
        assert begun.wait(PATIENCE)
        exposed.conceal()
        with pytest.raises(remote.NotFoundError, match="concealed"):
            waiting.result(PATIENCE)


@pytest.mark.parametrize("transport", HERE)
def test_a_wait_ends_with_the_last_peer(transport: str) -> None:
    with pair(transport) as there:
        exposed = there.host.empty(4, rights=Rights.WRITE)
        with futures.ThreadPoolExecutor(1) as pool:
            with (
                remote.connect(there.target) as one,
                remote.connect(there.target, transport="tcp") as other,
            ):
                one.open(exposed.handle)
                other.open(exposed.handle).signal(Add())
                waiting = pool.submit(exposed.signal.wait, 3, PATIENCE)
                one.close()
                other.open(exposed.handle).signal(Add())
                assert exposed.signal.wait(2, PATIENCE) == 2
                assert not waiting.done()
            with pytest.raises(remote.PeerLostError, match="the last peer that could raise"):
                waiting.result(PATIENCE)
        assert exposed.signal.wait(2, PATIENCE) == 2  # what was reached stays so
        there.device.open(exposed.handle).signal(Add())
        assert exposed.signal.wait(3, PATIENCE) == 3


def test_one_of_many_signals(shared: Pair) -> None:
    pairs = [shared.opened(1) for _ in range(4)]
    signals = [(exposed.signal, 1) for exposed, _ in pairs]
    with pytest.raises(remote.DeadlineExceededError, match="none of 4"):
        remote.wait_any(signals, 0.01)
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(remote.wait_any, signals, PATIENCE)
        pairs[2][1].signal(Add())
        assert waiting.result(PATIENCE) == [2]
    pairs[0][1].signal(Add())
    assert remote.wait_any(signals, PATIENCE) == [0, 2]
    pairs[1][0].conceal()
    assert remote.wait_any(signals, PATIENCE) == [0, 2]
    with pytest.raises(remote.NotFoundError):
        remote.wait_any([signals[1]], PATIENCE)
    with pytest.raises(ValueError, match="one signal"):
        remote.wait_any([])


def test_one_of_many_is_set_by_its_owner(shared: Pair) -> None:
    """Nobody has opened them."""
    alone = [shared.host.empty(1, rights=Rights.WRITE).signal for _ in range(130)]
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(remote.wait_any, [(signal, 2) for signal in alone], PATIENCE)
        alone[0].set(1)
        alone[129].set(2)
        assert waiting.result(PATIENCE) == [129]
    with pytest.raises(ValueError, match="64 bits"):
        remote.wait_any([(alone[0], -1)])


@pytest.mark.parametrize("transport", HERE)
def test_one_of_many_ends_with_the_last_of_all_peers(transport: Any) -> None:
    with pair(transport) as there, futures.ThreadPoolExecutor(1) as pool:
        two = [there.host.empty(1, rights=Rights.WRITE) for _ in range(2)]
        signals = [(exposed.signal, 2) for exposed in two]
        with (
            remote.connect(there.target, transport=transport) as one,
            remote.connect(there.target, transport="tcp") as other,
        ):
            one.open(two[0].handle)
            other.open(two[1].handle).signal(Add())
            waiting = pool.submit(remote.wait_any, signals, PATIENCE)
            one.close()
            with pytest.raises(remote.PeerLostError):
                two[0].signal.wait(1, PATIENCE)
            assert not waiting.done()
        with pytest.raises(remote.PeerLostError, match="the last peer that could raise"):
            waiting.result(PATIENCE)
        waiting = pool.submit(remote.wait_any, [*signals, (there.opened(1)[0].signal, 1)], PATIENCE)
        there.device.open(two[0].handle).signal(Add(2))
        assert waiting.result(PATIENCE) == [0]


def test_one_of_many_ends_with_the_memory(shared: Pair) -> None:
    two = [shared.opened(1)[0], shared.host.empty(1, rights=Rights.WRITE)]
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(remote.wait_any, [(each.signal, 1) for each in two], PATIENCE)
        for each in two:
            each.conceal()
        with pytest.raises(remote.NotFoundError, match="concealed"):
            waiting.result(PATIENCE)
