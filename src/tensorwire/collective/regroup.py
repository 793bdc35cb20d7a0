# SPDX-License-Identifier: Apache-2.0
"""A group anew: without the ranks that were lost, and with processes that have come.

Everything goes through the store of the first group. Each step from one group to the next has an
epoch, with keys of its own: who is here, who asks to come in, the registers by which the ranks
choose who makes up the next group (:mod:`tensorwire.collective.agreement`), and what was chosen.
The lowest rank that is left proposes; the others do when it stops.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec

from tensorwire.collective.agreement import Proposer, Record, Value
from tensorwire.collective.errors import (
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    UNAVAILABLE,
    ExcludedError,
    FinishedError,
    GroupError,
    GroupTimeoutError,
    RankLostError,
)
from tensorwire.collective.group import Group, Origin
from tensorwire.collective.stores import Store, TorchStore, WatchedStore, store_of
from tensorwire.malformed import MALFORMED

T = TypeVar("T")

_LOOK: Final = 0.02
"""Seconds between looks at what others have written."""
_TURN: Final = 1.0
"""So much later than the rank before it does each rank propose."""
_BEAT: Final = 0.1
"""How often a process that asks to come in shows that it is still there, in seconds."""
_NO_BEAT: Final = 1.0
"""One that has not shown it for so long is not waited for."""
_ROUNDS: Final = 16
"""Groups that came to nothing before they began, because ranks were lost meanwhile."""


class _Asking(msgspec.Struct, frozen=True, array_like=True):
    """Who asks to come in, and how often it has shown that it is there."""

    token: str
    beats: int = 0


# Made by the import: threads that make the first one of a type at once crash in msgspec.
_decoders: Final[dict[type[Any], Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (bool, int, Record, Value, _Asking)
}


class _Epoch:
    """The keys of one."""

    def __init__(self, store: Store, number: int) -> None:
        self.store: Final = store
        self.number: Final = number

    def _read(self, key: str, kind: type[T], seconds: float = 0.0) -> T | None:
        try:
            data = self.store.get(f"regroup/{self.number}/{key}", seconds)
        except GroupTimeoutError:  # the store is not there
            raise
        except TimeoutError:
            return None
        try:
            found: T = _decoders[kind].decode(data)
            return found
        except MALFORMED as error:
            raise GroupError(
                UNAVAILABLE, f"the store has no {kind.__name__} at {key} of regrouping: {error}"
            ) from None

    def _write(self, key: str, what: Any) -> None:
        self.store.set(f"regroup/{self.number}/{key}", msgspec.msgpack.encode(what))

    def come(self, rank: int) -> None:
        self._write(f"here/{rank}", True)

    def has_come(self, rank: int) -> bool:
        return bool(self._read(f"here/{rank}", bool))

    def record(self, rank: int) -> Record:
        return self._read(f"record/{rank}", Record) or Record()

    def set_record(self, rank: int, record: Record) -> None:
        self._write(f"record/{rank}", record)

    def chosen(self, seconds: float = 0.0) -> Value | None:
        return self._read("chosen", Value, seconds)

    def set_chosen(self, value: Value) -> None:
        self._write("chosen", value)

    def finish(self, rank: int, size: int) -> None:
        self._write(f"finished/{rank}", size)

    def all_have_finished(self) -> bool:
        size = self._read("finished/0", int)
        return size is not None and all(
            self._read(f"finished/{rank}", int) is not None for rank in range(1, size)
        )

    def ask(self, slot: int, asking: _Asking) -> None:
        self._write(f"asking/{slot}", asking)

    def asking(self, slot: int) -> _Asking | None:
        return self._read(f"asking/{slot}", _Asking)

    def all_asking(self) -> list[_Asking]:
        found: list[_Asking] = []
        while (each := self.asking(len(found))) is not None:
            found.append(each)
        return found


class _Newcomers:
    """Which of the processes that ask to come in are still there."""

    def __init__(self, epoch: _Epoch) -> None:
        self._epoch = epoch
        self._first: dict[str, tuple[int, float]] = {}

    def look(self) -> tuple[list[str], bool]:
        """Their tokens, and whether others may yet show that they are there."""
        found, unsure = [], False
        for each in self._epoch.all_asking():
            beats, since = self._first.setdefault(each.token, (each.beats, time.monotonic()))
            if each.beats != beats:
                found.append(each.token)
            else:
                unsure = unsure or time.monotonic() - since < _NO_BEAT
        return list(dict.fromkeys(found)), unsure


@dataclass
class _Member:
    """A rank of the group that is over. ``gone``: which of its ranks are known to be."""

    origin: Origin
    rank: int
    size: int
    gone: Callable[[int], bool]


def _choose(member: _Member, timeout: float) -> Value:
    """Who makes up the next group. Other ranks are waited for so long, in seconds."""
    epoch = _Epoch(member.origin.store, member.origin.epoch + 1)
    epoch.come(member.rank)
    proposer = Proposer(member.rank, member.size, epoch.record(member.rank))
    asking = _Newcomers(epoch)
    here = {member.rank}
    until = time.monotonic() + timeout
    settled: float | None = None
    while (value := epoch.chosen(_LOOK)) is None:
        here |= {each for each in range(member.size) if each not in here and epoch.has_come(each)}
        left = sorted(each for each in here if not member.gone(each))
        coming = [each for each in range(member.size) if each not in here and not member.gone(each)]
        now = time.monotonic()
        # Where few are left this rank may be the one that lost the others.
        if now < until and (coming or 2 * len(left) < member.size):
            continue
        settled = settled or now
        if now < settled + _TURN * left.index(member.rank):
            continue
        newcomers, unsure = asking.look()
        if not unsure and _propose(
            epoch, member.rank, member.size, proposer, Value(tuple(left), tuple(newcomers))
        ):
            continue
        time.sleep(random.uniform(0, _LOOK))  # against two that overtake each other for ever
    return value


def _propose(epoch: _Epoch, rank: int, size: int, proposer: Proposer, value: Value) -> bool:
    def others() -> list[Record]:
        return [epoch.record(each) for each in range(size) if each != rank]

    epoch.set_record(rank, proposer.begin())
    record = proposer.promise(others(), value)
    if record is None:
        return False
    epoch.set_record(rank, record)
    chosen = proposer.accept(others())
    if chosen is None:
        return False
    epoch.set_chosen(chosen)
    return True


def _form(
    value: Value,
    rank: int,
    member: _Member,
    timeout: float,
    tried: list[Group],
) -> Group | _Member:
    """The next group, which goes to ``tried``, too; where that fails, this process as a rank of
    it."""
    survivors = value.survivors

    def gone(each: int) -> bool:
        return each < len(survivors) and member.gone(survivors[each])

    def lost() -> int | None:
        return next((each for each in range(value.size) if gone(each)), None)

    origin = replace(member.origin, epoch=member.origin.epoch + 1)
    following = _Member(origin, rank, value.size, gone)
    try:
        group = Group(
            WatchedStore(origin.meeting(), lost),
            rank,
            value.size,
            host=origin.host,
            timeout=timeout,
            deterministic=origin.deterministic,
            origin=origin,
        )
    except (RankLostError, GroupTimeoutError, TimeoutError):
        return following
    tried.append(group)
    try:
        # The ranks of the group before are looked at no more once all have come so far.
        group.barrier()
    except (RankLostError, GroupTimeoutError):
        following.gone = group.gone
        return following
    return group


def _follow(member: _Member, found: tuple[Value, int] | None, timeout: float) -> Group:
    """``found``: the value that was chosen, and this process's rank by it, where it knows them."""
    tried: list[Group] = []  # others may yet look at them
    try:
        for _ in range(_ROUNDS):
            value, rank = found or _choose_rank(member, timeout)
            formed = _form(value, rank, member, timeout, tried)
            if isinstance(formed, Group):
                tried.remove(formed)
                return formed
            member, found = formed, None
    finally:
        for each in tried:
            each.close()
    raise RankLostError(
        UNAVAILABLE, f"{_ROUNDS} groups came to nothing: each lost a rank before it had begun"
    )


def _choose_rank(member: _Member, timeout: float) -> tuple[Value, int]:
    value = _choose(member, timeout)
    if member.rank not in value.survivors:
        raise ExcludedError(
            FAILED_PRECONDITION,
            f"this process was rank {member.rank} of {member.size} and is out: it came too late, "
            f"and the others have gone on as a group of {value.size}; collective.rejoin() asks "
            "them to let it in",
        )
    return value, value.survivors.index(member.rank)


def regroup(group: Group, *, timeout: float = 30.0) -> Group:
    """A group of the ranks of ``group`` that are left, and of the processes that ask to come in
    (:func:`rejoin`). All ranks call it that are to be in it, usually after a
    :class:`~tensorwire.collective.GroupError`; the old group is closed.

    Ranks keep their order, and get new consecutive numbers; processes that are new come last.
    ``timeout``, seconds: how long a rank that is not known to be gone is waited for. Then the
    others go on without it, and when it comes after all it gets
    :class:`~tensorwire.collective.ExcludedError`; never are there two groups. Where less than half
    of the ranks are left, that time passes in any case. Ranks that are lost meanwhile are left out,
    too.

    The store of the first group must still be there: it cannot be served by the rank that is lost.
    A group that this rank has closed is a :class:`~tensorwire.collective.GroupError`.
    """
    group.gone(group.rank)  # raises it before others see this rank come, and wait for it
    member = _Member(group.origin, group.rank, group.size, group.gone)
    try:
        made = _follow(member, None, timeout)
    finally:
        group.close()
    made.timeout = group.timeout
    return made


def newcomers(group: Group) -> int:
    """How many processes ask to come in (:func:`rejoin`): :func:`regroup` lets them in. One that
    has given up counts until then."""
    following = _Epoch(group.origin.store, group.origin.epoch + 1)
    return len({each.token for each in following.all_asking()})


def finish(group: Group) -> None:
    """Closes the group, and tells processes that ask to come in that this rank is done. When all
    are, those get :class:`~tensorwire.collective.FinishedError`."""
    _Epoch(group.origin.store, group.origin.epoch + 1).finish(group.rank, group.size)
    group.close()


def rejoin(
    store: Store | TorchStore | str | os.PathLike[str],
    *,
    host: str | None = None,
    timeout: float = 1800.0,
    regroup_timeout: float = 30.0,
    deterministic: bool = False,
) -> Group:
    """Asks the ranks of the group that is at ``store`` to let this process in, and returns once
    they have called :func:`regroup`. ``store``, ``host``: as :func:`~tensorwire.collective.join`
    has them. ``timeout``: for how long to ask, and of each operation that gives none, in seconds.
    ``regroup_timeout``, ``deterministic``: as the others gave them.

    Raises :class:`~tensorwire.collective.GroupTimeoutError` when nobody has let it in, or no server
    answers at ``host:port``, and :class:`~tensorwire.collective.FinishedError` when all ranks have
    called :func:`finish`.
    """
    found = store_of(store, timeout)
    asking = _Asking(secrets.token_hex(16))
    until = time.monotonic() + timeout
    number, slot = 1, 0
    while True:
        epoch = _Epoch(found, number)
        value = epoch.chosen(_BEAT if asking.beats else 0.0)
        if value is not None and asking.token in value.newcomers:
            break
        if value is not None:
            number, slot = number + 1, 0
            continue
        if epoch.all_have_finished():
            raise FinishedError(FAILED_PRECONDITION, "the ranks of the group are done")
        if time.monotonic() >= until:
            raise GroupTimeoutError(
                DEADLINE_EXCEEDED,
                f"nobody has let this process into the group within {timeout:g} s: its ranks call "
                "collective.regroup() for that",
            )
        while (other := epoch.asking(slot)) is not None and other.token != asking.token:
            slot += 1
        asking = _Asking(asking.token, asking.beats + 1)
        epoch.ask(slot, asking)
    rank = len(value.survivors) + value.newcomers.index(asking.token)
    stranger = _Member(Origin(found, number - 1, host, deterministic), -1, 0, lambda _: False)
    made = _follow(stranger, (value, rank), regroup_timeout)
    made.timeout = timeout
    return made
