# SPDX-License-Identifier: Apache-2.0
"""Groups whose ranks are killed and stopped at random points of whatever they do, disagree, leave
early, fork, and are in two groups at once. The others must be told in time, and hold afterwards
what they held before."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.torture.figures import Row, Say, scaled, tormented
from tests.torture.processes import Child, GoneError
from tests.torture.ranks import JOIN_SECONDS, rank

ROUNDS: Final = 500
SIZE: Final = 3
SQUADS: Final = 2
"""Groups at a time: while one waits for its end, the other one works."""
TRANSPORTS: Final = ("shm", "tcp")
LIFE_SECONDS: Final = 0.08
OPERATION_SECONDS: Final = 1.0
"""The time limit of an operation, where a rank is stopped."""
CROSSED_SECONDS: Final = 0.3
"""Likewise, where ranks wait for each other for certain."""
LOST_SECONDS: Final = 1.0
"""Within which an operation ends that waits for a rank that was killed: from its death on, or from
the operation's beginning, where that was later. What a rank computes before is no matter of its
group; on a busy machine it takes a second or two."""
END_SECONDS: Final = 5.0
"""Within which ranks have been told, and have left, beyond a time limit that they had to wait
for."""
SETTLE_SECONDS: Final = 5.0
MORE_MIB: Final = 32.0
MORE_MAPPINGS: Final = 4
EXITED: Final = "it has exited"
LOST: Final = frozenset({"RankLostError"})
LATE: Final = frozenset({"RankLostError", "GroupTimeoutError"})


@dataclass
class Squad:
    """Processes that are ranks of one group after the other. ``groups`` counts them."""

    folder: Path
    environment: Mapping[str, str]
    living: list[Child | None] = field(default_factory=lambda: [None] * SIZE)
    groups: int = 0

    def muster(self, what: str, rng: random.Random, limit: float, **more: Any) -> None:
        """All of them join a new group, those that are gone are replaced first."""
        self.living = [one or Child(rank, None, self.environment) for one in self.living]
        # Ranks of the last one may have met there again, to split it.
        shutil.rmtree(self.folder / str(self.groups), ignore_errors=True)
        self.groups += 1
        store = self.folder / str(self.groups)
        order = {"do": what, "folder": str(store), "size": SIZE, "limit": limit, **more}
        order["seed"] = rng.getrandbits(30)
        for place, one in enumerate(self.living):
            assert one is not None
            one.talk.say({**order, "rank": place})
        for one in self.living:
            assert one is not None
            if (said := one.talk.hear(JOIN_SECONDS)) != "joined":
                raise GoneError(f"a group was not joined: {said}")

    def lose(self, place: int) -> None:
        """A process that has ended, or is to."""
        one = self.living[place]
        assert one is not None
        one.kill()
        one.talk.close()
        self.living[place] = None

    def told(self, place: int, seconds: float) -> dict[str, Any]:
        one = self.living[place]
        assert one is not None
        found: dict[str, Any] = one.talk.hear(seconds)
        return found

    def outcome(self, place: int) -> dict[str, Any]:
        """As told; of a process that has exited, that it has."""
        try:
            return self.told(place, OPERATION_SECONDS + END_SECONDS)
        except GoneError:
            one = self.living[place]
            assert one is not None
            if one.wait(1) != 0:
                raise
            self.lose(place)
            return {"error": EXITED, "text": "", "at": 0.0}

    def holdings(self) -> dict[str, float]:
        """The most that one of them has, once what ended links held has come home."""
        most: dict[str, float] = {}
        for one in self.living:
            if one is not None:
                for name, value in one.ask({"do": "holdings"}).items():
                    most[name] = max(most.get(name, 0), value)
        return most

    def end(self) -> None:
        for one in self.living:
            if one is not None:
                one.kill()
                one.talk.close()


@contextmanager
def _squads(transport: str) -> Iterator[list[Squad]]:
    environment = {"TENSORWIRE_TRANSPORT": transport}
    with tempfile.TemporaryDirectory() as folder:
        made = [Squad(Path(folder) / str(i), environment) for i in range(SQUADS)]
        for squad in made:
            squad.folder.mkdir()
        try:
            yield made
        finally:
            for squad in made:
                squad.end()


class Times(NamedTuple):
    """In seconds, the most of several ranks."""

    latest: float = 0.0
    """From what happened until a rank had been told, and had left its group."""
    waited: float = 0.0
    """How long an operation lasted after it."""

    def most(self, other: Times) -> Times:
        return Times(max(self.latest, other.latest), max(self.waited, other.waited))

    def __str__(self) -> str:
        waited = f", an operation waited {self.waited:.2f} s at most" if self.waited else ""
        return f"latest error {self.latest:.2f} s{waited}"


Round = Callable[[Row, list[Squad], random.Random], Times]
"""One group of each squad."""


def _campaign(name: str, transport: str, round_: Round, rounds: int, seed: int, say: Say) -> Row:
    with tormented(f"{name} · {transport}", say) as row, _squads(transport) as squads:
        rng, times = random.Random(seed), Times()
        least: dict[str, float] = {}
        while row.attempts < rounds and row.failed < Row.KEPT:
            times = times.most(round_(row, squads, rng))
            if row.attempts <= max(rounds // 5, SQUADS):  # by then they have all they need
                least = _of(squads)
            say(f"{row.attempts} groups, {times}")
        judge_holdings(row, least, lambda: _of(squads))
        row.note = "; ".join([str(times), *([row.note] if row.note else [])])
    return row


def _of(squads: list[Squad]) -> dict[str, float]:
    each = [squad.holdings() for squad in squads]
    return {name: max(one.get(name, 0) for one in each) for name in each[0]}


def judge_holdings(
    row: Row, before: dict[str, float], look: Callable[[], dict[str, float]]
) -> None:
    """Links end in the background: what they held has a while to come home."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        after = look()
        settled = all(after[name] <= before[name] for name in ("descriptors", "blocks", "threads"))
        if settled or time.monotonic() > end:
            break
        time.sleep(0.05)
    row.memory_before, row.memory_after = before["private"], after["private"]
    row.descriptors_before = int(before["descriptors"])
    row.descriptors_after = int(after["descriptors"])
    row.judge_memory(MORE_MIB)
    row.judge_descriptors(0)
    for name, more in (("mappings", MORE_MAPPINGS), ("blocks", 0), ("threads", 0)):
        if after[name] > before[name] + more:
            row.fail(f"{name} rose from {before[name]:.0f} to {after[name]:.0f}")
    row.note = f"shared mappings {before['mappings']:.0f} → {after['mappings']:.0f}"


def _judge(row: Row, said: dict[str, Any], allowed: frozenset[str]) -> None:
    if said["error"] not in allowed:
        row.fail(f"a rank ended with {said['error'] or 'no error'}: {said['text'][:200]}")


def _kill(row: Row, squads: list[Squad], rng: random.Random) -> Times:
    """A rank of each group is killed, and the others of its group are told."""
    struck = _struck(squads, rng, OPERATION_SECONDS * 20, lambda one: one.kill())
    times = Times()
    for squad, (place, when) in zip(squads, struck, strict=True):
        row.attempts += 1
        squad.lose(place)
        found = _survivors(row, squad, place, when, LOST, END_SECONDS)
        if found.waited > LOST_SECONDS:
            row.fail(f"an operation waited for a killed rank for {found.waited:.2f} s")
        times = times.most(found)
    return times


def _stop(row: Row, squads: list[Squad], rng: random.Random) -> Times:
    """A rank of each group is stopped, the others' operations end at their time limits; it goes on,
    and is told, too."""
    struck = _struck(squads, rng, OPERATION_SECONDS, lambda one: one.stop())
    times, patience = Times(), OPERATION_SECONDS + END_SECONDS
    for squad, (place, when) in zip(squads, struck, strict=True):
        row.attempts += 1
        times = times.most(_survivors(row, squad, place, when, LATE, patience))
        one = squad.living[place]
        assert one is not None
        one.signal(signal.SIGCONT)
        _judge(row, squad.told(place, patience), LATE)
    return times


def _struck(
    squads: list[Squad], rng: random.Random, limit: float, strike: Callable[[Child], None]
) -> list[tuple[int, float]]:
    """A rank of each, at any point of its work; and when that was."""
    for squad in squads:
        squad.muster("work", rng, limit)
    found = []
    for squad in squads:
        place = rng.randrange(SIZE)
        one = squad.living[place]
        assert one is not None
        time.sleep(rng.uniform(0, LIFE_SECONDS))
        strike(one)
        found.append((place, time.monotonic()))
    return found


def _survivors(
    row: Row, squad: Squad, place: int, when: float, allowed: frozenset[str], seconds: float
) -> Times:
    times = Times()
    for other in range(SIZE):
        if other != place:
            said = squad.told(other, seconds)
            _judge(row, said, allowed)
            waited = said["over"] - max(when, said["began"])
            times = times.most(Times(said["at"] - when, waited))
    if times.latest > seconds:
        row.fail(f"a rank was told after {times.latest:.1f} s")
    return times


def _together(what: str, judge: Callable[[Row, Squad, int, list[dict[str, Any]]], None]) -> Round:
    """All ranks of each group do the same, and nobody strikes them."""

    def round_(row: Row, squads: list[Squad], rng: random.Random) -> Times:
        latest = 0.0
        for squad in squads:
            row.attempts += 1
            odd = rng.randrange(SIZE)
            squad.muster(what, rng, OPERATION_SECONDS * 20, odd=odd, timeout=CROSSED_SECONDS)
            began = time.monotonic()
            said = [squad.outcome(place) for place in range(SIZE)]
            latest = max(latest, *(one["at"] - began for one in said))
            judge(row, squad, odd, said)
        return Times(latest)

    return round_


def _judge_disagreement(row: Row, squad: Squad, odd: int, said: list[dict[str, Any]]) -> None:
    for one in said:
        _judge(row, one, frozenset({"DisagreementError", "RankLostError"}))
        if "called" not in one["text"]:
            row.fail(f"nobody is told who called what: {one['text'][:200]}")
    if all(one["error"] != "DisagreementError" for one in said):
        row.fail(f"no rank was told of the disagreement: {said[odd]['text'][:200]}")


def _judge_leaving(row: Row, squad: Squad, odd: int, said: list[dict[str, Any]]) -> None:
    for place, one in enumerate(said):
        _judge(row, one, frozenset({"", EXITED}) if place == odd else frozenset({"RankLostError"}))


def _judge_forks(row: Row, squad: Squad, odd: int, said: list[dict[str, Any]]) -> None:
    for one in said:
        _judge(row, one, frozenset({""}))


def _judge_crossing(row: Row, squad: Squad, odd: int, said: list[dict[str, Any]]) -> None:
    for one in said:
        _judge(row, one, LATE)


def _part(name: str, round_: Round, full: int) -> Callable[[float, int, Say], list[Row]]:
    def run(scale: float, seed: int, say: Say) -> list[Row]:
        rounds = scaled(full, scale, SQUADS)
        return [_campaign(name, way, round_, rounds, seed, say) for way in TRANSPORTS]

    return run


killed: Final = _part("ranks killed", _kill, ROUNDS)
stopped: Final = _part("ranks stopped", _stop, ROUNDS)
disagreeing: Final = _part("ranks disagree", _together("differ", _judge_disagreement), ROUNDS)
leaving: Final = _part("ranks leave", _together("leave", _judge_leaving), ROUNDS)
forking: Final = _part("ranks fork", _together("fork", _judge_forks), ROUNDS // 5)
crossing: Final = _part("groups crossed", _together("cross", _judge_crossing), ROUNDS // 5)
