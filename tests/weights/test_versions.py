# SPDX-License-Identifier: Apache-2.0
"""Versions in memory: what is shared, what is copied, and how much stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwire import _core
from tensorwire.weights import versions
from tensorwire.weights.parameters import Parameters, same_bytes
from tensorwire.weights.versions import Store, Stored
from tensorwire.weights.wire import Agreement, Slice

SIZES = (1, 63, 64, 65, 1000, 4096, 0)


def packs(stored: Stored) -> int:
    """Bytes of all packs that a version needs."""
    found = {id(place.pack): place.pack.nbytes for all_ in stored.places.values() for place in all_}
    return sum(found.values())


@settings(max_examples=40)
@given(st.lists(st.sets(st.integers(0, len(SIZES) - 1)), min_size=1, max_size=8))
def test_versions_share_what_has_not_changed(changes: list[set[int]]) -> None:
    params = {str(index): np.zeros(size, np.uint8) for index, size in enumerate(SIZES)}
    aligned = sum(-(-size // 64) * 64 for size in SIZES)
    store = Store(_core.Quota(1 << 20))
    before: Stored | None = None
    kept: list[tuple[Stored, dict[str, Any]]] = []
    for number, changed in enumerate(changes, 1):
        for index in changed:
            params[str(index)][...] = number
        stored = store.copy(Parameters(params), number, before, checksum=True)
        for index in range(len(SIZES)):
            name = str(index)
            touched = before is None or (index in changed and SIZES[index] > 0)
            last = number if before is None or touched else before.since[name][0]
            assert stored.since[name] == [last]
            place = stored.places[name][0]
            if before is not None and SIZES[index] and place.pack is before.places[name][0].pack:
                assert not touched
        kept.append((stored, {name: array.copy() for name, array in params.items()}))
        assert packs(stored) <= 2 * aligned
        before = stored
    # None of them has been written again.
    for stored, values in kept:
        for name, value in values.items():
            assert (stored.pieces[name][0] == value).all()
            assert not stored.pieces[name][0].flags.writeable
            pack, at = stored.places[name][0]
            assert (pack[at : at + value.nbytes] == value).all()
        assert stored.checksums == versions.checksums(stored.pieces)


def test_packs_have_a_size() -> None:
    params = {str(index): np.full(100, index, np.uint8) for index in range(5)}
    params["large"] = np.ones(1000, np.uint8)
    store = Store(_core.Quota(1 << 20), pack_bytes=256)
    stored = store.copy(Parameters(params), 1, None, checksum=False)
    found = {id(places[0].pack): places[0].pack.nbytes for places in stored.places.values()}
    assert sorted(found.values()) == [128, 256, 256, 1024]
    assert stored.checksums is None


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 4097, (1 << 20) + 4096, (3 << 20) - 1])
def test_one_byte_tells(at: int) -> None:
    one = np.zeros(3 << 20, np.uint8)
    other = one.copy()
    assert same_bytes(one, other)
    other[at] = 1
    assert not same_bytes(one, other)


def test_bytes_are_compared_and_not_values() -> None:
    assert same_bytes(np.full(3, np.nan), np.full(3, np.nan))
    assert not same_bytes(np.zeros(3), -np.zeros(3))
    assert same_bytes(np.zeros((2, 3)).T, np.zeros((3, 2)))
    assert same_bytes(np.zeros(()), np.zeros(()))
    assert same_bytes(np.zeros((0, 2)), np.zeros((0, 2)))


def agreements(params: dict[str, Any], count: int) -> list[Agreement]:
    slices = [Slice(name, 0, (0,), array.shape) for name, array in params.items()]
    return [Agreement(b"", b"", slices, True, bytes([number])) for number in range(count)]


class Made:
    """Counts replies that are made, and are not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        lent = Stored._lent

        def counted(stored: Stored, lacking: Any) -> Any:
            self.count += 1
            return lent(stored, lacking)

        monkeypatch.setattr(Stored, "_lent", counted)


def test_replies_are_there_for_who_asked_for_the_version_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = {"a": np.zeros(100, np.uint8), "b": np.zeros(200, np.uint8)}
    store = Store(_core.Quota(1 << 20))
    viewed, pulled, forgotten = agreements(params, 3)
    one = store.copy(Parameters(params), 1, None, checksum=False)
    two = store.copy(Parameters(params), 2, one, checksum=False)
    for plan, have in ((viewed, 0), (pulled, 1), (forgotten, 0)):
        two.reply(plan, have)
    params["b"][...] = 3
    three = store.copy(Parameters(params), 3, two, checksum=False)
    made = Made(monkeypatch)
    three.prepare({plan.digest: plan for plan in (viewed, pulled)}, two)
    assert made.count == 2
    assert three.reply(viewed, 0).numbers == [0, 1]
    assert three.reply(pulled, 2).numbers == [1]
    assert made.count == 2
    three.reply(forgotten, 0)
    assert made.count == 3
    summed = store.copy(Parameters(params), 4, three, checksum=True)
    summed.prepare({viewed.digest: viewed}, three)
    assert made.count == 3  # a slice's checksum is its reader's to wait for


def test_what_nobody_asks_for_any_more_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 16 readers asks once with nothing in its hands, and then for what is new."""
    params = {"a": np.zeros(100, np.uint8)}
    store = Store(_core.Quota(1 << 20))
    plans = agreements(params, 16)
    known = {plan.digest: plan for plan in plans}
    made = Made(monkeypatch)
    before = store.copy(Parameters(params), 1, None, checksum=False)
    for plan in plans:
        before.reply(plan, 0)
    for number in range(2, 6):
        params["a"][...] = number
        stored = store.copy(Parameters(params), number, before, checksum=False)
        stored.prepare(known, before)
        made.count = 0
        for plan in plans:
            stored.reply(plan, before.number)
        if number > 2:
            assert made.count == 0
        before = stored
    assert len(before._replies) == len(plans)
