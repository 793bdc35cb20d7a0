# SPDX-License-Identifier: Apache-2.0
"""A group of ranks: how it is joined, divided and left."""

from __future__ import annotations

import operator
import os
import threading
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from tensorwire import _core
from tensorwire.collective.errors import TRANSLATED
from tensorwire.collective.messages import Messages
from tensorwire.collective.movements import Movements
from tensorwire.collective.reductions import Reductions
from tensorwire.collective.stores import PrefixStore, Store, TorchStore, WatchedStore, store_of
from tensorwire.log import LOGGER


@dataclass(frozen=True)
class Origin:
    """Where a group comes from: the store of the first one of its line, how many times it has been
    made anew since, the address that was given for this rank, and whether it is deterministic."""

    store: Store
    epoch: int
    host: str | None
    deterministic: bool

    def meeting(self) -> Store:
        """Where the ranks of the group find each other."""
        return PrefixStore(f"epoch-{self.epoch}", self.store) if self.epoch else self.store


class Group(Reductions, Movements, Messages):
    """Ranks that call the same operations in the same order, each from a process of its own.

    Arrays are those of NumPy, PyTorch, TensorFlow or JAX in the memory of this host, or dicts,
    lists and tuples of them, nested, which are the same on all ranks. What NumPy and PyTorch have,
    and variables of TensorFlow, are written in place; of the others results are new. Elements are
    any of: float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 to int64 uint8 to uint64
    bool. Arrays may have any strides: what is not C-contiguous goes by a copy. An ``out`` that
    shares memory with the input is written as if it did not. Floats of 16 and 8 bits are added up
    in float32. Results have the same bits on all ranks, and from run to run if operations go the
    same ways: ``deterministic`` of :func:`join` has them do so.

    Each operation takes ``timeout``, seconds; None: that of the group. One that fails raises a
    :class:`~tensorwire.collective.GroupError` and ends the group for all ranks: leave it, and join
    another one. With ``async_op=True`` it returns a :class:`~tensorwire.collective.Work` at once;
    until that has ended its arrays belong to it. ValueError and TypeError are for arguments that
    are wrong by themselves: nothing has happened.

    Thread-safe; threads take turns, in an order that has to be the same on all ranks. Only messages
    (:meth:`send`, :meth:`receive`, :meth:`receive_any`) take none.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        host: str | None = None,
        timeout: float | None = 1800.0,
        deterministic: bool = False,
        origin: Origin | None = None,
    ) -> None:
        """Returns once all ranks have come. See :func:`join`. ``origin``: of one that is made
        anew."""
        with TRANSLATED:
            group = _core.Group(store, rank, size, host or "", deterministic, timeout)
        super().__init__(group, rank, size, timeout)
        self.fabric: Final = group.fabric
        """How data moves, for people: ``shared memory``, ``messages`` where no two ranks have
        any in common, or ``shared memory and messages``; empty where there is one rank."""
        self.tuned, why_not = group.tuned
        """Whether the table of ``tensorwire tune collectives`` decides which ways operations go."""
        if why_not:
            LOGGER.warning("%s", why_not)
        self.origin: Final = origin or Origin(store, 0, host, deterministic)
        self._splitting = threading.Lock()  # guards what follows
        self._splits = 0

    def __enter__(self) -> Group:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:  # the others would wait for what this rank does no more
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def close(self) -> None:
        """Leaves the group, once what has been begun has ended. A rank that still needs something
        of this one gets :class:`~tensorwire.collective.RankLostError`."""
        self._calls.close()
        self._group.leave()

    def gone(self, rank: int) -> bool:
        """Whether the process of a rank is known to be gone, or has left the group; also once the
        group has failed. GroupError once this rank has left it."""
        with TRANSLATED:
            return self._group.gone(rank)

    def split(
        self, color: int | None, key: int = 0, *, timeout: float | None = None
    ) -> Group | None:
        """Groups of those ranks that give the same color, ordered by key and then by rank. All
        ranks call it; with None a rank gets no group. ``timeout``, seconds: until the new group's
        ranks have met; None: that of the group, which its operations have, too. TypeError where
        color or key is no whole number: nothing has been sent."""
        # The others compare them as numbers of 64 bits, and meet by the color's text.
        color = None if color is None else _whole("color", color)
        key = _whole("key", key)
        limit = self._calls.limit(timeout)
        until = None if limit is None else time.monotonic() + limit
        with self._splitting:  # counted in the order in which the ranks meet
            colors = self.all_gather(
                np.array([color is not None, color or 0, key, self.rank], np.int64), timeout=limit
            )
            self._splits += 1
            split = self._splits
        if color is None:
            return None
        mine = [row for row in colors if row[0] and row[1] == color]
        mine.sort(key=lambda row: (row[2], row[3]))
        ranks = [int(row[3]) for row in mine]

        def lost() -> int | None:
            return next((i for i, rank in enumerate(ranks) if self.gone(rank)), None)

        meeting = PrefixStore(f"split-{split}-{color}", self.origin.meeting())
        made = Group(
            WatchedStore(meeting, lost),
            ranks.index(self.rank),
            len(ranks),
            host=self.origin.host,
            deterministic=self.origin.deterministic,
            timeout=None if until is None else max(0.0, until - time.monotonic()),
            origin=Origin(meeting, 0, self.origin.host, self.origin.deterministic),
        )
        made.timeout = self.timeout
        return made

    def statistics(self) -> dict[str, dict[str, dict[str, int]]]:
        """How often each operation has gone which way, and the bytes that this rank gave or was
        given: ``{"all_reduce": {"ring": {"operations": 3, "bytes": 12_000_000}}}``. GroupError once
        this rank has left the group."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        with TRANSLATED:
            counted = self._group.statistics()
        for operation, way, operations, count in counted:
            found.setdefault(operation, {})[way] = {"operations": operations, "bytes": count}
        return found


def _whole(name: str, given: int) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {given!r}") from None


def join(
    store: Store | TorchStore | str | os.PathLike[str],
    rank: int,
    size: int,
    *,
    host: str | None = None,
    timeout: float | None = 1800.0,
    deterministic: bool = False,
) -> Group:
    """Joins a group: returns once all ranks have come.

    ``store``: where ranks find each other, fresh for each group: a :class:`Store`, one of
    ``torch.distributed``, a folder that all of them reach, or ``host:port`` of a server that has a
    :func:`store_service`. ``host``: the address at which ranks of other hosts reach this one; None:
    as TENSORWIRE_GROUP_HOST says, or 127.0.0.1. ``timeout``: of joining, and of each operation that
    gives none, in seconds; None: no limit. ``deterministic``, the same on all ranks: which way an
    operation goes, and so in which order it adds, depends on the operation, its bytes and type, the
    ranks and their hosts, and not on the table of ``tensorwire tune collectives``; groups that are
    made of this one are so, too. False: as TENSORWIRE_DETERMINISTIC says.

    Raises :class:`~tensorwire.collective.GroupError` when a rank does not come, or cannot be
    reached, when ``host:port`` does not answer or has no store, and when ranks differ in
    ``deterministic``, or one has TENSORWIRE_ALLREDUCE beside it; TypeError and ValueError for
    arguments that are none.
    """
    rank, size = _whole("rank", rank), _whole("size", size)
    return Group(
        store_of(store, timeout),
        rank,
        size,
        host=host,
        timeout=timeout,
        deterministic=deterministic,
    )
