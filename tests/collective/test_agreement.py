# SPDX-License-Identifier: Apache-2.0
"""Ranks choose one value, whatever the timing and whoever stops."""

from __future__ import annotations

from collections.abc import Generator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwire.collective.agreement import Proposer, Record, Value


class Registers:
    def __init__(self, size: int) -> None:
        self.records = [Record()] * size
        self.chosen: dict[int, Value] = {}

    def proposing(self, rank: int) -> Generator[None, None, None]:
        """Proposes until a value is chosen; at each yield others go on."""
        size = len(self.records)
        proposer = Proposer(rank, size, self.records[rank])
        while True:
            self.records[rank] = proposer.begin()
            others = yield from self.others(rank)
            record = proposer.promise(others, Value((rank,)))
            if record is None:
                continue
            self.records[rank] = record
            value = proposer.accept((yield from self.others(rank)))
            if value is not None:
                self.chosen[rank] = value
                return

    def others(self, rank: int) -> Generator[None, None, list[Record]]:
        found = []
        for each in range(len(self.records)):
            yield
            if each != rank:
                found.append(self.records[each])
        yield
        return found


@given(st.integers(1, 4), st.integers(0, 60), st.randoms(use_true_random=False))
@settings(max_examples=500)
def test_one_value_is_chosen(size: int, steps: int, random: Random) -> None:
    registers = Registers(size)
    running = [registers.proposing(rank) for rank in range(size)]
    for _ in range(steps):  # whoever comes no more has stopped
        next(random.choice(running), None)
    last = random.randrange(size)
    for _ in running[last]:  # alone, it comes to an end
        pass
    assert last in registers.chosen
    assert len(set(registers.chosen.values())) == 1


def test_a_rank_that_comes_late_finds_what_was_chosen() -> None:
    registers = Registers(3)
    for rank in (1, 2, 1):  # and one that proposes twice
        for _ in registers.proposing(rank):
            pass
    assert registers.chosen == {1: Value((1,)), 2: Value((1,))}
