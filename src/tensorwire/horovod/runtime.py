# SPDX-License-Identifier: Apache-2.0
"""The thread that has a process's group: it negotiates what its ranks ask for, and does it."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorwire.collective import Group, GroupError
from tensorwire.horovod import fusion, negotiation, performing
from tensorwire.horovod.errors import HorovodInternalError
from tensorwire.horovod.negotiation import Key, Negotiator, Request, Response
from tensorwire.horovod.performing import Array, Tensors
from tensorwire.horovod.timeline import Timeline

log = logging.getLogger("tensorwire")

_IDLE_SECONDS: Final = 1.0
"""How often a rank that asks for nothing tells the others so: what they wait for can then be named,
and a rank that is gone is found."""
_LONGEST_PAUSE: Final = 0.008
_PATIENCE: Final = 10.0  # for the others' part in a shutdown


@dataclass(frozen=True)
class Settings:
    """Horovod's, in its units but for seconds."""

    fusion_threshold: int = 64 << 20
    cycle_seconds: float = 0.001
    cache_capacity: int = 1024
    stall_seconds: float = 60.0
    """0: nobody is warned."""
    stall_shutdown_seconds: float = 0.0


@dataclass
class _Entry:
    request: Request
    tensors: Tensors
    future: Future[Any]


class Runtime:
    """Thread-safe. ``group`` is its own from now on."""

    def __init__(self, group: Group, settings: Settings, timeline: Timeline | None = None) -> None:
        self.rank: Final = group.rank
        self.size: Final = group.size
        self.timeline = timeline
        self._settings = settings
        self._groups: dict[int, Group] = {0: group}
        self._negotiator = Negotiator(group.rank, group.size, settings.cache_capacity)
        self._sets = 1
        self._fusion = performing.Fusion()
        self._warned: set[str] = set()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._submitted: list[Request] = []
        self._counts: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(itertools.count)
        self._entries: dict[Key, _Entry] = {}
        self._leaving = False
        self._over: str = ""
        self._thread = threading.Thread(target=self._run, name="tensorwire horovod", daemon=True)
        self._thread.start()

    # ---- asking ----

    def submit(
        self,
        request: Request,
        inputs: Sequence[Array] = (),
        outputs: Sequence[Array] | None = None,
    ) -> Future[Any]:
        """The future has the resulting arrays. HorovodInternalError for a name that is outstanding
        already, or when the group has come to its end; ValueError for what the others cannot be
        told: the thread, which all share, would fail of it."""
        negotiation.check(request)
        entry = _Entry(request, Tensors(inputs, outputs), Future())
        with self._lock:
            if self._over:
                raise HorovodInternalError(self._over)
            if request.key in self._entries:
                raise HorovodInternalError(
                    f"{request.name!r} is asked for again before it has ended: "
                    "wait for it, or give each a name of its own"
                )
            self._entries[request.key] = entry
            self._submitted.append(request)
            self._tell_begin(request.name, f"NEGOTIATE_{request.kind.upper()}")
            self._changed.notify()
        return entry.future

    def members(self, process_set: int) -> tuple[int, ...]:
        return self._negotiator.members[process_set]

    def count(self, kind: str, process_set: int) -> int:
        """How many unnamed requests of a kind there were before in a process set."""
        with self._lock:
            return next(self._counts[kind, process_set])

    def release(self) -> Group:
        """Ends, and with it do all ranks; what is outstanding anywhere fails. The group of all
        ranks stays open: to be closed, or made anew."""
        with self._lock:
            self._leaving = True
            self._changed.notify()
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._groups[0].abort(f"rank {self.rank} has shut down")
            self._thread.join()
        if self.timeline is not None:
            self.timeline.close()
        return self._groups[0]

    # ---- the thread ----

    def _run(self) -> None:
        why = "Horovod has been shut down"
        try:
            self._cycles()
        except GroupError as error:
            why = str(error)
            # It may be that of a process set: the ranks outside of it would wait for ever.
            self._groups[0].abort(why)
        except BaseException as error:  # the others would wait for ever
            why = f"rank {self.rank}: {type(error).__name__}: {error}"
            log.exception("tensorwire.horovod has come to its end")
            self._groups[0].abort(why)
        with self._lock:
            self._over = why
            entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            entry.future.set_exception(HorovodInternalError(why))
        for number, group in self._groups.items():
            if number:
                group.close()

    def _cycles(self) -> None:
        pause = self._settings.cycle_seconds
        moved = False
        while True:
            leaving = self._gather_requests(0.0 if moved else pause)
            ready, left = self._agree(leaving)
            moved = bool(ready)
            pause = self._settings.cycle_seconds if moved else min(2 * pause, _LONGEST_PAUSE)
            for batch in fusion.batches(ready, self._settings.fusion_threshold):
                self._do(batch)
            if left:
                return
            self._look_for_stalls()

    def _gather_requests(self, pause: float) -> bool:
        """Sleeps while there is nothing to say. Whether this rank leaves."""
        with self._lock:
            if self._entries:
                wait: float | None = pause
            elif self.size == 1:
                wait = None
            elif len(self._groups) > 1 or len(self._negotiator.members) > 1:
                wait = _LONGEST_PAUSE  # others may wait for a set that this rank is not in
            else:
                wait = _IDLE_SECONDS
            if not self._submitted and not self._leaving and wait != 0.0:
                self._changed.wait(wait)
            submitted, self._submitted = self._submitted, []
            leaving = self._leaving
        now = time.monotonic()
        for request in submitted:
            self._negotiator.add(request, now)
        return leaving

    def _agree(self, leaving: bool) -> tuple[list[Response], bool]:
        timeline = self.timeline  # a user may stop it meanwhile
        if timeline is not None:
            timeline.cycle()
        group = self._groups[0]
        bits = group.all_reduce(self._negotiator.bits(leaving), "bit_and")
        ready, exchange, left = self._negotiator.agree(bits)
        if exchange:
            messages = self._exchange(self._negotiator.message())
            ready += self._negotiator.take(messages, time.monotonic())
        return ready, left

    def _exchange(self, message: bytes) -> list[bytes]:
        group = self._groups[0]
        lengths = group.all_gather(np.array([len(message)], np.int64)).reshape(-1)
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(message)] = np.frombuffer(message, np.uint8)
        everything = group.all_gather(padded)
        return [row[:n].tobytes() for row, n in zip(everything, lengths, strict=True)]

    def _look_for_stalls(self) -> None:
        if not self._settings.stall_seconds or self.size == 1:
            return
        now = time.monotonic()
        self._negotiator.unhit(now - self._settings.stall_seconds)
        stalled = self._negotiator.stalled(now - self._settings.stall_seconds)
        if self.rank == 0 and stalled.keys() - self._warned:
            shown = "; ".join(
                f"{name} waits for rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
                for name, ranks in stalled.items()
            )
            log.warning(
                "tensorwire.horovod: some ranks have not asked for tensors that others asked for "
                "more than %g s ago: %s",
                self._settings.stall_seconds,
                shown,
            )
        self._warned = set(stalled)
        limit = self._settings.stall_shutdown_seconds
        if limit:
            dead = self._negotiator.stalled(now - limit)
            if dead:
                name, ranks = next(iter(dead.items()))
                self._groups[0].abort(f"{name} has waited {limit:g} s for ranks {ranks}")

    # ---- doing ----

    def _do(self, batch: list[Response]) -> None:
        kind = batch[0].kind
        if batch[0].error:
            self._fail(batch[0])
        elif kind == negotiation.JOIN:
            self._end(batch[0].key, batch[0].last)
        elif kind == negotiation.ADD_PROCESS_SET:
            self._add_process_set(batch[0])
        elif kind == negotiation.REMOVE_PROCESS_SET:
            self._remove_process_set(batch[0])
        elif self.rank in self._negotiator.members[batch[0].key[0]]:
            try:
                self._move(batch)
            except GroupError as error:
                raise self._explained(error, batch[0].key[0]) from None

    def _explained(self, error: GroupError, process_set: int) -> GroupError:
        """One of a process set has that one's numbers of ranks."""
        if process_set == 0:
            return error
        ranks = list(self._negotiator.members[process_set])
        where = f"process set {process_set}, which numbers the ranks {ranks} from 0"
        return GroupError(error.code, f"{where}: {error}")

    def _move(self, batch: list[Response]) -> None:
        kind, process_set = batch[0].kind, batch[0].key[0]
        with self._lock:
            entries = [self._entries.get(response.key) for response in batch]
        tensors = [None if entry is None else entry.tensors for entry in entries]
        for response in batch:
            self._tell_end(response.key[1])
            self._tell_begin(response.key[1], kind.upper())
        group = self._groups[process_set]
        if kind == negotiation.BARRIER:
            results: list[Any] = [None]
        elif kind == negotiation.ALLREDUCE:

            def tell(activity: str) -> None:
                for response in batch:
                    self._tell_instant(response.key[1], activity)

            pairs = list(zip(batch, tensors, strict=True))
            results = list(performing.allreduce(group, self._fusion, pairs, tell))
        else:
            members = self._negotiator.members[process_set]
            assert tensors[0] is not None
            results = [performing.perform(group, members, batch[0], tensors[0])]
        for response, result in zip(batch, results, strict=True):
            self._tell_end(response.key[1])
            self._end(response.key, result)

    def _pop(self, key: Key) -> _Entry | None:
        with self._lock:
            return self._entries.pop(key, None)

    def _end(self, key: Key, result: Any) -> None:
        entry = self._pop(key)
        if entry is not None:
            entry.future.set_result(result)

    def _fail(self, response: Response) -> None:
        entry = self._pop(response.key)
        if entry is not None:
            self._tell_end(response.key[1])
            kind = ValueError if response.unsupported else HorovodInternalError
            entry.future.set_exception(kind(response.error))

    def _add_process_set(self, response: Response) -> None:
        ranks = response.request.numbers
        entry = self._pop(response.key)
        if ranks in self._negotiator.members.values():
            error = ValueError(f"there is a process set of the ranks {list(ranks)} already")
            if entry is not None:
                entry.future.set_exception(error)
            return
        group = self._groups[0].split(0 if self.rank in ranks else None)
        number, self._sets = self._sets, self._sets + 1
        self._negotiator.members[number] = ranks
        if group is not None:
            self._groups[number] = group
        if entry is not None:
            entry.future.set_result(number)

    def _remove_process_set(self, response: Response) -> None:
        number = response.request.root
        entry = self._pop(response.key)
        found = number in self._negotiator.members and number != 0
        if found:
            self._negotiator.forget_process_set(number)
            group = self._groups.pop(number, None)
            if group is not None:
                group.close()
        if entry is not None:
            entry.future.set_result(found)

    # ---- the timeline ----

    def _tell_begin(self, name: str, activity: str) -> None:
        timeline = self.timeline  # a user may stop it meanwhile
        if timeline is not None:
            timeline.begin(name, activity)

    def _tell_end(self, name: str) -> None:
        timeline = self.timeline  # a user may stop it meanwhile
        if timeline is not None:
            timeline.end(name)

    def _tell_instant(self, name: str, activity: str) -> None:
        timeline = self.timeline  # a user may stop it meanwhile
        if timeline is not None:
            timeline.instant(name, activity)
