# SPDX-License-Identifier: Apache-2.0
"""What a contender of ``tensorwire bench weights`` has: a trainer and its receivers, and a way for
new weights. How to add one is told in ``docs/benchmarks.md``."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.fresh import FIRST
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.contender import Meeting

GROUP = "tensorwire.bench.contenders.weights"
"""Of the entry points that name classes of contenders."""

TRAINER: Final = 0
"""The rank that has new weights, or the first of those; the others receive them."""
COPIED: Final = "copied"
ADOPTED: Final = "adopted"
PUBLISHED: Final = "published"
RESHARDED: Final = "resharded"
CASES: Final = (COPIED, ADOPTED, PUBLISHED, RESHARDED, FIRST)
"""Into the receivers' own parameters; where the trainer has them; copied, and what the trainer does
to make a version of its parameters counts, too; copied, where trainers hold rows of each tensor and
receivers other parts of it; copied, the first version that processes move."""

Params = Mapping[str, np.ndarray[Any, Any]]


def shapes(nbytes: int) -> Mapping[str, int]:
    """298 tensors as a model of transformers has them, by name: bytes, which come to about
    ``nbytes``, and to 1 GiB exactly."""
    unit = nbytes / (1 << 30)

    def scaled(kib: float) -> int:
        return max(round(kib * 1024 * unit) // 64 * 64, 64)

    found = {"embed": scaled(163840)}
    for layer in range(37):
        for place, kib in enumerate((4096, 4096, 4096, 4096, 1536, 1536, 4, 4)):
            found[f"layers.{layer}.{place}"] = scaled(kib)
    return {**found, "head": scaled(163840)}


class Weights(abc.ABC):
    """Parameters that are there from ``Rank.open`` on: the trainer's are sent, the receivers' are
    filled."""

    @abc.abstractmethod
    def prepare(self, number: int) -> None:
        """What is not timed, at all ranks; the trainer's parameters have new values."""

    @abc.abstractmethod
    def move(self, number: int) -> None:
        """What is timed, at all ranks at once: a receiver returns once it holds version
        ``number``."""

    @abc.abstractmethod
    def held(self) -> Params:
        """At a receiver: the version that it holds."""

    def close(self) -> None:
        return


class Rank(abc.ABC):
    """The trainer, or a receiver.

    path: the transport that data takes. note: what a reader of the figures has to know. receives:
    whether receivers hold what the trainer has; a limit line's do not, and are not checked.
    """

    path: str
    note: str = ""
    receives: bool = True

    @abc.abstractmethod
    def barrier(self) -> None: ...

    @abc.abstractmethod
    def open(self, work: Work, params: Params) -> Weights: ...


class Contender(contenders.Contender):
    """A library. cases: those of ``CASES`` that it has, but ``FIRST``, which is ``COPIED`` to it.
    trainers: how many ranks, the first ones,
    have the weights; more than one where all of its cases are ``RESHARDED``."""

    cases: frozenset[str] = frozenset({COPIED})
    trainers: int = 1

    def supports(self, work: Work) -> bool:
        return (COPIED if work.case == FIRST else work.case) in self.cases

    @abc.abstractmethod
    def join(self, meeting: Meeting) -> AbstractContextManager[Rank]:
        """In the process of that rank; ends by leaving."""

    def launch(self, ranks: Sequence[Sequence[str]]) -> list[list[str]]:
        """The commands that start these; one that starts all of them where a launcher must."""
        return [list(rank) for rank in ranks]


def names() -> list[str]:
    """Of the contenders that are installed."""
    return contenders.names(GROUP)


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
