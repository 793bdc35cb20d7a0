# SPDX-License-Identifier: Apache-2.0
"""What a contender of ``tensorwire bench channels`` has: processes that average their gradients.
How to add one is told in ``docs/benchmarks.md``."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from tensorwire.bench.harness import contenders
from tensorwire.bench.harness.work import Array
from tensorwire.bench.suites.collectives.contender import Meeting

GROUP = "tensorwire.bench.contenders.channels"
"""Of the entry points that name classes of contenders."""


class Channel(abc.ABC):
    """One process of the training.

    path: the transport that gradients take, as observed where the library tells it; note: what a
    reader of the figures has to know. exchanges: whether ranks get averages; a limit line's do not.
    """

    path: str
    note: str = ""
    exchanges: bool = True


class Trainer(Channel):
    """A rank."""

    @abc.abstractmethod
    def gradients(self) -> Sequence[Array]:
        """Memory for the gradients of one step, float32, of the sizes that ``join`` was given. What
        was there before may be overwritten."""

    @abc.abstractmethod
    def average(self, gradients: Sequence[Array]) -> Sequence[Array]:
        """Those that ``gradients`` gave, averaged over all ranks; valid until the next step."""


class Server(Channel):
    """A process that is no rank, but serves them."""

    @abc.abstractmethod
    def serve(self, steps: int) -> None:
        """Returns once all ranks have their averages of so many more steps."""


class Contender(contenders.Contender):
    """A channel. servers: processes beside the ranks; their numbers follow those of the ranks."""

    servers: int = 0

    @abc.abstractmethod
    def join(
        self, meeting: Meeting, transport: str, elements: Sequence[int]
    ) -> AbstractContextManager[Channel]:
        """In the process of that rank; ends by leaving. elements: of each gradient."""

    def environment(self, transport: str) -> Mapping[str, str]:
        """Of the processes, before they load anything."""
        return {}

    def launch(self, ranks: Sequence[Sequence[str]]) -> list[list[str]]:
        """The commands that start these; one that starts all of them where a launcher must."""
        return [list(rank) for rank in ranks]


def names() -> list[str]:
    """Of the contenders that are installed."""
    return contenders.names(GROUP)


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
