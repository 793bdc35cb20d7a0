# SPDX-License-Identifier: Apache-2.0
"""What is open in this process, for whoever watches all of it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from tensorwire.observe.measure import Labels, Measure
from tensorwire.rpc.lifetime import PerProcess
from tensorwire.rpc.weak import WeakMembers

if TYPE_CHECKING:
    from tensorwire.rpc.client.channel import Channel
    from tensorwire.rpc.serving.server import Server


class Tally:
    """Counts by name, from the start of the process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


class Numbers(Protocol):
    """A named tuple."""

    def _asdict(self) -> dict[str, Any]: ...


class Watched(Protocol):
    """What is built on links, and has numbers of its own."""

    @property
    def name(self) -> str:
        """Several may have one: their numbers are added up, but for the version."""

    def stats(self) -> Numbers: ...


class Watch:
    """What there is of a kind of these, and its metrics, of which each number is part.

    label: of its name; empty: it has none.
    """

    def __init__(self, label: str, numbers: type[Numbers], measures: tuple[Measure, ...]) -> None:
        self.label = label
        self.numbers = numbers
        self.measures = measures
        self.members: Final[PerProcess[WeakMembers[Watched]]] = PerProcess(WeakMembers)
        WATCHES.append(self)

    @property
    def labels(self) -> Labels:
        return (self.label,) if self.label else ()

    def sums(self) -> dict[Labels, Counter[str]]:
        found: dict[Labels, Counter[str]] = {}
        for member in self.members.get().members():
            sums = found.setdefault((member.name,) if self.label else (), Counter())
            for fact, value in member.stats()._asdict().items():
                sums[fact] = max(sums[fact], value) if fact == "version" else sums[fact] + value
        return found


WATCHES: Final[list[Watch]] = []
"""Of all kinds whose modules have been imported."""
CHANNELS: Final[PerProcess[WeakMembers[Channel]]] = PerProcess(WeakMembers)
SERVERS: Final[PerProcess[WeakMembers[Server]]] = PerProcess(WeakMembers)
LOST: Final = PerProcess(Tally)
"""Links of channels that have ended without being closed, by transport."""
FAILED: Final = PerProcess(Tally)
"""Links of channels that could not be made although the server offered them, by transport."""
