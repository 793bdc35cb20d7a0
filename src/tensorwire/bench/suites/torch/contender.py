# SPDX-License-Identifier: Apache-2.0
"""What a contender of ``tensorwire bench torch`` is: a back end of ``torch.distributed``. How to
add one is told in ``docs/benchmarks.md``."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager

from tensorwire.bench.harness import contenders
from tensorwire.bench.suites.collectives.contender import Meeting

GROUP = "tensorwire.bench.contenders.torch"
"""Of the entry points that name classes of contenders."""


class Contender(contenders.Contender):
    """A back end."""

    packages = ("torch",)

    @abc.abstractmethod
    def join(self, meeting: Meeting, transport: str) -> AbstractContextManager[None]:
        """In the process of that rank: makes the default group of ``torch.distributed``; ends by
        leaving it. A limit line's ranks have a group each."""


def names() -> list[str]:
    """Of the contenders that are installed."""
    return contenders.names(GROUP)


def find(name: str) -> Contender:
    """Raises ValueError for a name that no installed package has."""
    return contenders.find(GROUP, Contender, name)  # type: ignore[type-abstract]
