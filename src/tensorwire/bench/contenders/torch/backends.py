# SPDX-License-Identifier: Apache-2.0
"""Back ends of ``torch.distributed``: Tensorwire's, and gloo, which is PyTorch's own for the CPU;
and ranks that exchange nothing, whose steps are the limit that computing sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tensorwire.bench.suites.collectives import contender as collectives
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.torch.contender import Contender


class _Joined(Contender):
    """library: the contender of ``tensorwire bench collectives`` that joins the same group."""

    library: str

    @property
    def transports(self) -> tuple[str, ...]:  # type: ignore[override]
        return collectives.find(self.library).transports

    def viable(self, transport: str) -> str | None:
        return collectives.find(self.library).viable(transport)

    @contextmanager
    def join(self, meeting: Meeting, transport: str) -> Iterator[None]:
        with collectives.find(self.library).join(meeting):
            yield


class Tensorwire(_Joined):
    role = "own"
    library = "tensorwire-torch"


class Gloo(_Joined):
    library = "gloo"


class Nothing(Contender):
    """The same program in groups of one rank."""

    role = "limit"
    transports = ("none",)

    def viable(self, transport: str) -> str | None:
        return collectives.find(Tensorwire.library).viable("shm")

    @contextmanager
    def join(self, meeting: Meeting, transport: str) -> Iterator[None]:
        own = replace(meeting, rank=0, size=1, folder=f"{meeting.folder}-{meeting.rank}")
        with collectives.find(Tensorwire.library).join(own):
            yield
