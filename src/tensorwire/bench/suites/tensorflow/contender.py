# SPDX-License-Identifier: Apache-2.0
"""What a contender of ``tensorwire bench tensorflow`` is: a protocol of TensorFlow's servers, and
how one knows which way the tensors went. How to add one is told in ``docs/benchmarks.md``."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.work import Work

GROUP = "tensorwire.bench.contenders.tensorflow"
"""Of the entry points that name classes of contenders."""

Counts = Mapping[str, int]


class PathError(AgentError):
    """The tensors did not go the way that the figures would be about."""


@dataclass(frozen=True)
class Taken:
    """in_place: the share of the bytes that were read in the sender's memory; None where that is
    not counted."""

    transport: str
    in_place: float | None = None


class Contender(contenders.Contender):
    """A server protocol.

    alone: whether each worker of the case ``mirrored`` is a cluster of its own: a limit line, which
    has no other case.
    """

    alone: bool = False

    @abc.abstractmethod
    def protocol(self, transport: str) -> str:
        """Called in each process of a cluster before TensorFlow is imported: the protocol of its
        server, ready to be used."""

    def counts(self) -> Counts:
        """What this process has counted so far."""
        return {}

    @abc.abstractmethod
    def taken(self, work: Work, transport: str, steps: int, counts: Counts) -> Taken:
        """The way of at least ``steps`` steps of ``work``.

        counts: how much those of both processes together have grown meanwhile.
        Raises PathError when it was not ``transport``, or not for all of the bytes.
        """


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
