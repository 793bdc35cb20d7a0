# SPDX-License-Identifier: Apache-2.0
"""What is measured: the operations, what each rank gives and takes, and what it must find then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.work import Work

Array = npt.NDArray[Any]

NUMPY_TYPES: Final = ("float32", "float64", "float16", "int8", "int32", "int64", "uint8")
DTYPES: Final = (*NUMPY_TYPES, "bfloat16")
DEVICES: Final = ("cpu", "cuda")
ROOT: Final = 0
PAIR: Final = (0, 1)
"""The ranks between which messages go, where not all ranks take part."""
WINDOW: Final = 64
"""Messages of a stream that are under way at once, as in OSU's benchmarks."""
WINDOW_BYTES: Final = 64 << 20
"""Of all of them, where that leaves at least two."""
PARTS: Final = 16
"""Arrays of a coalesced operation, all of one size."""
PERIOD: Final = 65521
"""Elements after which a pattern comes again: a prime, so that no chunk or share is a multiple."""


@dataclass(frozen=True)
class Operation:
    """given, taken: how many of the ``size`` bytes a rank gives and takes: all, its share of them,
    or none; in_place: both are the same array.

    rooted: one rank gives or takes for all of them, so that others may be done before it is.
    paired: messages between the ranks of ``PAIR``; the others do nothing.
    reduces: elements are added up.
    uneven: shares grow with the rank, as ``portions`` tells.
    coalesced: one call for ``PARTS`` arrays, which lie one after the other in those of a rank.
    form_of: the operation of which this is the uneven or the coalesced form.
    bus: what algorithm bandwidth is multiplied with, for that many ranks, to tell what each rank's
    way carries: the bytes that have to leave or reach a rank, as a part of ``size``.
    """

    name: str
    bus: Callable[[int], float]
    in_place: bool = False
    gives_share: bool = False
    takes_share: bool = False
    rooted: bool = False
    reduces: bool = False
    paired: bool = False
    uneven: bool = False
    coalesced: bool = False
    form_of: str = ""

    @property
    def shares(self) -> bool:
        return not (self.in_place or self.paired) and self.name != "barrier"

    @property
    def plain(self) -> str:
        """The name of the operation, whatever its form."""
        return self.form_of or self.name


def _all(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _most_uneven(ranks: int) -> float:
    return 1 - 1 / _portions(ranks)


def _portions(ranks: int) -> int:
    """Rank r has r + 1 of them."""
    return ranks * (ranks + 1) // 2


_PLAIN: Final = {
    each.name: each
    for each in (
        Operation("all_reduce", _twice, in_place=True, reduces=True),
        Operation("broadcast", _all, in_place=True, rooted=True),
        Operation("all_gather", _others, gives_share=True),
        Operation("reduce_scatter", _others, takes_share=True, reduces=True),
        Operation("all_to_all", _others),
        Operation("reduce", _all, in_place=True, rooted=True, reduces=True),
        Operation("gather", _others, gives_share=True, rooted=True),
        Operation("scatter", _others, takes_share=True, rooted=True),
        Operation("barrier", _all),
        Operation("ping_pong", _all, paired=True),
        Operation("stream", _all, paired=True),
    )
}


def _uneven(plain: str) -> Operation:
    return replace(_PLAIN[plain], name=f"{plain}_v", bus=_most_uneven, uneven=True, form_of=plain)


def _coalesced(plain: str) -> Operation:
    return replace(_PLAIN[plain], name=f"{plain}_many", coalesced=True, form_of=plain)


OPERATIONS: Final = _PLAIN | {
    each.name: each
    for each in (
        *map(_uneven, ("all_gather", "reduce_scatter", "all_to_all")),
        *map(_coalesced, ("all_reduce", "broadcast", "all_gather", "reduce_scatter")),
    )
}


def portions(count: int, ranks: int) -> list[int]:
    """Elements of each rank's share, where shares are uneven: rank r has r + 1 times as many as
    rank 0."""
    return [count // _portions(ranks) * (rank + 1) for rank in range(ranks)]


def exchanged(count: int, rank: int, ranks: int) -> list[int]:
    """Elements that the rank gives to each rank in an uneven all-to-all, and takes from each: as
    many from one that it gives to that one. All ranks have as many of their own."""
    shares = portions(count, ranks)
    return [shares[(rank + other) % ranks] for other in range(ranks)]


def parts(array: Array) -> list[Array]:
    """The arrays of a coalesced operation, as views."""
    return np.split(array, PARTS)


def messages(case: str, size: int) -> int:
    """How many are timed as one call, whose time is then divided: of a ping-pong both ways, of a
    stream all that are under way at once. 1 for what is not made of messages."""
    if case == "stream":
        return min(WINDOW, max(WINDOW_BYTES // size, 2))
    return 2 if case == "ping_pong" else 1


def type_of(dtype: str) -> np.dtype[Any]:
    """Raises ImportError: NumPy has bfloat16 by the package ml_dtypes."""
    if dtype in NUMPY_TYPES:
        return np.dtype(dtype)
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_of(work: Work, only: str) -> str:
    """Of its elements. only: that of all works, where their payloads do not name any."""
    return work.payload if work.payload in DTYPES else only


def whole(case: str, size: int, ranks: int, dtype: str) -> int:
    """The size, with as many bytes more as give each rank the same number of elements."""
    if case == "barrier":
        return 0
    operation = OPERATIONS[case]
    unit = type_of(dtype).itemsize
    if operation.shares:
        unit *= _portions(ranks) if operation.uneven else ranks
    if operation.coalesced:
        unit *= PARTS
    return -(-size // unit) * unit


@dataclass(frozen=True)
class Arrays:
    """Of one rank; the same array twice where an operation is in place."""

    given: Array
    taken: Array


def arrays(case: str, size: int, rank: int, ranks: int, dtype: str) -> Arrays:
    """What this rank gives, and memory for what it takes, every page of it touched."""
    operation = OPERATIONS[case]
    kind = type_of(dtype)
    count = size // kind.itemsize
    if operation.paired:
        return _messages(case, count, rank, kind)
    share = portions(count, ranks)[rank] if operation.uneven else count // ranks
    given = np.empty(share if operation.gives_share else count, kind)
    if operation.rooted and operation.takes_share and rank != ROOT:
        given = np.empty(0, kind)
    _write(given, rank, 0)
    if operation.in_place:
        return Arrays(given, given)
    taken = np.zeros(share if operation.takes_share else count, kind)
    if operation.rooted and operation.gives_share and rank != ROOT:
        taken = np.zeros(0, kind)
    taken.fill(0)
    return Arrays(given, taken)


def _messages(case: str, count: int, rank: int, kind: np.dtype[Any]) -> Arrays:
    """Of a stream from the first rank of the pair, which takes an answer of one element."""
    gives, takes = (count, count) if rank in PAIR else (0, 0)
    if case == "stream" and rank in PAIR:
        gives, takes = (count, 1) if rank == PAIR[0] else (1, count)
    given, taken = np.empty(gives, kind), np.empty(takes, kind)
    _write(given, rank, 0)
    taken.fill(0)
    return Arrays(given, taken)


def check(case: str, found: Arrays, rank: int, ranks: int) -> None:
    """After one call. Raises WrongAnswerError."""
    everyone = range(ranks)
    taken = found.taken
    if OPERATIONS[case].uneven:
        _check_uneven(case, found, rank, ranks)
        return
    if OPERATIONS[case].coalesced and OPERATIONS[case].shares:
        _check_parts(case, found, rank, ranks)
        return
    plain = OPERATIONS[case].plain
    share = taken.size // ranks
    if plain == "all_reduce" or (plain == "reduce" and rank == ROOT):
        _compare(case, taken, everyone, 0)
    elif plain == "broadcast":
        _compare(case, taken, [ROOT], 0)
    elif plain in ("ping_pong", "stream") and rank in PAIR:
        _compare(case, taken, [PAIR[1 - rank]], 0)
    elif plain == "reduce_scatter":
        _compare(case, taken, everyone, rank * taken.size)
    elif plain == "scatter":
        _compare(case, taken, [ROOT], rank * taken.size)
    elif plain in ("all_gather", "gather", "all_to_all"):
        start = rank * share if plain == "all_to_all" else 0
        for other in everyone:
            _compare(case, taken[other * share : (other + 1) * share], [other], start)


def _check_uneven(case: str, found: Arrays, rank: int, ranks: int) -> None:
    taken, count = found.taken, max(found.given.size, found.taken.size)
    if case == "reduce_scatter_v":
        _compare(case, taken, range(ranks), sum(portions(count, ranks)[:rank]))
        return
    swaps = case == "all_to_all_v"
    shares = exchanged(count, rank, ranks) if swaps else portions(count, ranks)
    for other, piece in enumerate(np.split(taken, np.cumsum(shares[:-1]))):
        start = sum(exchanged(count, other, ranks)[:rank]) if swaps else 0
        _compare(case, piece, [other], start)


def _check_parts(case: str, found: Arrays, rank: int, ranks: int) -> None:
    """Of operations whose parts are not simply those of the whole."""
    given = found.given.size // PARTS
    for number, part in enumerate(parts(found.taken)):
        if OPERATIONS[case].reduces:
            _compare(case, part, range(ranks), number * given + rank * part.size)
            continue
        for other, piece in enumerate(np.split(part, ranks)):
            _compare(case, piece, [other], number * given)


@cache
def _tile(dtype: np.dtype[Any]) -> Array:
    """Numbers so small that all types hold sums of many of them exactly."""
    return np.random.default_rng(1).integers(0, 4, PERIOD).astype(dtype)


def _pattern(rank: int, start: int, dtype: np.dtype[Any]) -> Array:
    """A period of what that rank gives, from element ``start`` on."""
    return np.roll(_tile(dtype), rank * 4099 - start)


def _write(array: Array, rank: int, start: int) -> None:
    pattern = _pattern(rank, start, array.dtype)
    for at in range(0, array.size, PERIOD):
        piece = array[at : at + PERIOD]
        piece[:] = pattern[: piece.size]


def _compare(case: str, array: Array, ranks: Iterable[int], start: int) -> None:
    expected = np.zeros(PERIOD, array.dtype)
    for rank in ranks:
        expected += _pattern(rank, start, array.dtype)
    for at in range(0, array.size, PERIOD):
        piece = array[at : at + PERIOD]
        if not np.array_equal(piece, expected[: piece.size]):
            wrong = int(np.argmax(piece != expected[: piece.size]))
            raise WrongAnswerError(
                f"the {case} of {array.nbytes} bytes is wrong: element {at + wrong} is "
                f"{piece[wrong]}, expected {expected[wrong]}"
            )
