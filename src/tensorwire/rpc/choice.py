# SPDX-License-Identifier: Apache-2.0
"""Which transports a channel or a server may use, and what was chosen for it and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from tensorwire import _core, environment, transports
from tensorwire.log import LOGGER
from tensorwire.rpc.status import FAILED_PRECONDITION

Transport = Literal["auto", "shm", "verbs", "tcp", "grpc"]


@dataclass(frozen=True)
class Path:
    """How calls travel to one peer."""

    transport: str
    """``shm``, ``verbs``, ``tcp``, ``grpc``; ``none`` where gRPC may not be used and nothing else
    works."""
    peer: str
    """Address of the peer as gRPC writes it; the channel's target where gRPC carries the calls."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """For each better transport, why it is not the one."""
    crowded: str = ""
    """What has been copied on this way so far because an arena had no room, or no lease, for it:
    how many tensors, and the setting that mends it. Empty: nothing."""
    thresholds: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Of what this process sends on the link: bytes, and who says so (``default``, ``table``,
    ``online``, ``environment`` or ``argument``), by their names. Empty where gRPC carries the
    calls."""

    def with_statistics(self, link: Mapping[str, Any]) -> Path:
        """The same with what the statistics of its link tell."""
        return replace(self, crowded=crowded(link), thresholds=link["thresholds"])

    def __str__(self) -> str:
        remarks = [f"not {name}: {why}" for name, why in self.reasons.items()]
        remarks += [
            f"{name} {nbytes} by {source}"
            for name, (nbytes, source) in self.thresholds.items()
            if source != "default"
        ]
        if self.crowded:
            remarks.append(f"crowded: {self.crowded}")
        return f"{self.transport} to {self.peer}" + (f" ({'; '.join(remarks)})" if remarks else "")


@cache
def tell_tuning() -> None:
    """One warning in the life of the process where links cannot use the table that they should."""
    try:
        _core.link_tuning()
    except _core.StatusError as error:
        LOGGER.warning("%s", error.details)


def crowded(link: Mapping[str, object]) -> str:
    """Of the statistics of a link: what ``Path.crowded`` says."""
    found = []
    if transports.lends(link["transport"]):
        if sent := link["segments_sent_crowded"]:
            found.append(f"tensors sent as copies: {sent} (the last: {link['crowded_reason']})")
        # What this process could not map comes as copies, too.
        if not link["segments_unmappable"] and (came := link["segments_received_pushed"]):
            found.append(
                f"tensors that came as copies: {came}, most likely because the peer's arena is too "
                "small (its log names the setting and a size that is enough)"
            )
    return "; ".join(found)


@dataclass(frozen=True)
class Policy:
    """What the user permits."""

    required: str | None
    forbidden: frozenset[str]
    origin: str
    """What the user wrote, for error texts."""
    refusals: Mapping[str, str]
    """Why a transport may not carry calls, for each that may not."""
    why_not: Callable[[str], str | None] = transports.why_not
    """Why a transport that may cannot."""

    def permits(self, transport: str) -> bool:
        return transport not in self.refusals

    @property
    def data_plane(self) -> tuple[str, ...]:
        """The permitted transports beside grpc, best first."""
        return tuple(filter(self.permits, transports.names()))


def policy(transport: str | None, forbid: str | Iterable[str]) -> Policy:
    """The arguments of a channel or server; what they leave open, TENSORWIRE_TRANSPORT and
    TENSORWIRE_FORBID decide. ValueError: an unknown name, or nothing is left; SettingError, which
    is one: a setting in the environment has part in that, or any other has a value that is not
    permitted."""
    environment.check()
    names = forbid if isinstance(forbid, str) else ",".join(forbid)
    try:
        required, forbidden, origin, refusals = _core.choose_policy(transport or "", names)
    except _core.StatusError as wrong:
        error = environment.SettingError if wrong.code == FAILED_PRECONDITION else ValueError
        raise error(wrong.details) from None
    return Policy(required, frozenset(forbidden), origin, refusals)
