# SPDX-License-Identifier: Apache-2.0
"""The ways that operations of groups can be told to go by a table, and the rules of one, as
``core/collective/tuning.h`` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tensorwire import _core, transports
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.operations import OPERATIONS

MEMORY: Final = "memory"
FABRICS: Final[Mapping[str, str]] = {
    name: MEMORY if transports.is_local(name) else name for name in transports.names()
}
"""By the transport between ranks, what a table calls their fabric."""
UNTUNED: Final = "untuned"
"""As operations go without a table."""
_MOVING: Final = ("broadcast", "all_gather", "gather")
_WITHIN: Final[Mapping[str, Sequence[str]]] = {
    "one_step": ("all_reduce", "reduce", *_MOVING),
    "stage": ("all_reduce", "reduce", *_MOVING, "scatter", "all_to_all"),
    "in_place": (*_MOVING, "scatter", "all_to_all"),
}
_BEYOND: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(_core.algorithms(), ("all_reduce",)),
    "direct": ("all_reduce", "reduce", "all_gather", "reduce_scatter"),
    "pairwise": ("all_reduce", "reduce"),
    "ring": ("all_reduce", "all_gather", "reduce_scatter"),
    "tree": ("broadcast",),
    "scatter_all_gather": ("broadcast",),
}
WAYS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    fabric: _WITHIN if fabric == MEMORY else _BEYOND for fabric in FABRICS.values()
}
"""Of each fabric, the ways with the operations that can go by them."""
CASES: Final = tuple(
    dict.fromkeys(case for ways in WAYS.values() for of in ways.values() for case in of)
)
_ONE_STEP_BYTES: Final = 64 << 10


FOREVER: Final = 1 << 48
"""More bytes than any array has."""


def at_most(way: str) -> int | None:
    """The most bytes between two ranks that can go that way."""
    return _ONE_STEP_BYTES if way == "one_step" else None


def moved(work: Work, ranks: int) -> int:
    """Bytes between two ranks, by which a table chooses; ``size`` is that of the larger array."""
    return work.size // ranks if OPERATIONS[work.case].shares else work.size


def rule(case: str, fabric: str, ranks: int, nbytes: int, way: str) -> str:
    """A line of a table: up to so many bytes, that way."""
    return f"{case:<14}  {fabric:<6}  {ranks:<5}  {nbytes:<10}  {way}\n"
