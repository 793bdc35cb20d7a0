# SPDX-License-Identifier: Apache-2.0
"""Versions of which readers have had a part, and will ask for more."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Final

from tensorwire.weights.versions import Stored

_SECONDS: Final = 60.0
"""So long a reader may take for a part, until it asks for the next one."""
_MOST_VERSIONS: Final = 4
_MOST: Final = 1024


class Holds:
    """By the tickets of the readers. The publisher's lock is held."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Stored, float]] = {}  # in the order of their ends

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def keep(self, ticket: int, version: Stored) -> None:
        """Beyond a few versions the oldest one is let go of: its readers begin again."""
        self._held[ticket] = (version, monotonic() + _SECONDS)
        self.expire()
        numbers = sorted({held.number for held, _ in self._held.values()})
        oldest = numbers[-_MOST_VERSIONS:][0]
        for each, (held, _) in list(self._held.items()):
            if held.number < oldest or len(self._held) > _MOST:
                del self._held[each]

    def take(self, ticket: int) -> Stored | None:
        version, _ = self._held.pop(ticket, (None, 0.0))
        return version

    def expire(self) -> None:
        now = monotonic()
        for each, (_, ends) in list(self._held.items()):
            if ends > now:
                return
            del self._held[each]

    def clear(self) -> None:
        self._held.clear()
