# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker: a transport whose links keep failing is passed over for a while."""

from __future__ import annotations

from time import monotonic
from typing import Final

from tensorwire.rpc import backoff

STEADY_SECONDS: Final = 30.0
"""A link that lived so long was a good one, whatever ended it. An adapter that nobody answers may
take 4 x 2 s to say so."""
ENOUGH: Final = 2
"""Links in a row that died young, after which the next one is not made at once."""
FIRST_PAUSE: Final = 10.0
LONGEST_PAUSE: Final = 300.0


class Breaker:
    """Closed, calls may take the transport; open, it is passed over until ``left`` is 0. Its owner
    holds a lock."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0
        self._told = False
        self.why = ""
        """What failed last."""

    def died(self, lived: float, why: str) -> bool:
        """A link has ended after ``lived`` seconds. Whether the transport is passed over now."""
        if lived >= STEADY_SECONDS:
            self.__init__()  # type: ignore[misc]
        else:
            self._fail(why, self._failures + 1 >= ENOUGH)
        return self.left() > 0.0

    def unreached(self, why: str) -> None:
        """A link could not be made. Another transport is tried at once, so this one can wait."""
        self._fail(why, True)

    def _fail(self, why: str, pause: bool) -> None:
        self._failures += 1
        self.why = why
        if pause:
            self._until = monotonic() + backoff.pause(self._failures, FIRST_PAUSE, LONGEST_PAUSE)

    def left(self) -> float:
        """Seconds until the transport may be tried again."""
        return max(0.0, self._until - monotonic())

    def news(self) -> bool:
        """Whether it has opened; once, until a link was good again."""
        new = self.left() > 0.0 and not self._told
        self._told |= new
        return new
