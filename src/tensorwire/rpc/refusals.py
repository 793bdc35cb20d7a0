# SPDX-License-Identifier: Apache-2.0
"""Which metadata a server has refused to open a link for.

A server's interceptors see Open with the metadata of the call that asks for a link, so that a
refusal says something about these metadata only: a call with others may ask at once. The same ones
are not offered again for a while.
"""

from __future__ import annotations

from time import monotonic
from typing import Final, NamedTuple

from tensorwire.rpc import status
from tensorwire.rpc.metadata import Metadatum, Pair

Offer = tuple[Pair, ...]
"""The metadata that Open carries."""

MOST: Final = 8
"""So many refusals are remembered. Metadata may differ in each call, by the identifier of a trace
for instance: that must not make each call ask."""


class Refusal(NamedTuple):
    """The status that Open has ended with."""

    code: int
    details: str
    initial: tuple[Metadatum, ...] = ()
    trailing: tuple[Metadatum, ...] = ()

    def error(self) -> status.CallError:
        """For the call that the link would have carried."""
        return status.CallError(*self)


class Refusals:
    """Its owner holds a lock."""

    def __init__(self) -> None:
        self._held: dict[Offer, tuple[Refusal, float]] = {}  # oldest first
        self.in_a_row = 0
        """Refusals since a link was opened."""

    def add(self, offer: Offer, refusal: Refusal, pause: float) -> None:
        """pause: seconds for which the same metadata are not offered again."""
        self.in_a_row += 1
        self._held.pop(offer, None)
        while len(self._held) >= MOST:
            del self._held[next(iter(self._held))]
        self._held[offer] = refusal, monotonic() + pause

    def find(self, offer: Offer) -> Refusal | None:
        """The refusal of the same metadata, while these are not to be offered again."""
        self._forget()
        held = self._held.get(offer)
        return None if held is None else held[0]

    @property
    def full(self) -> bool:
        """So many metadata were refused lately that others are not offered at once, either."""
        self._forget()
        return len(self._held) >= MOST

    def clear(self) -> None:
        self._held.clear()
        self.in_a_row = 0

    def _forget(self) -> None:
        now = monotonic()
        for offer in [offer for offer, (_, until) in self._held.items() if until <= now]:
            del self._held[offer]
