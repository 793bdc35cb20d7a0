# SPDX-License-Identifier: Apache-2.0
"""By which way memory of a peer is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["mapped", "device", "frames"]


@dataclass(frozen=True)
class Path:
    """How memory of a device, or one tensor there, is reached."""

    way: Way
    """``mapped``: memory that was made to be accessed by loads and stores of this process, and the
    peer's arena, where it may only be read, by loads; other memory by frames. ``device``: by the
    device of the transport. ``frames``: by messages, which the owner's process serves. With the
    first two the owner may be asleep or stopped."""
    transport: str
    peer: str
    """Its address as gRPC writes it."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """For each better transport, why it is not the one; as ``mapped``, why memory is not."""

    def __str__(self) -> str:
        remarks = "; ".join(f"not {name}: {why}" for name, why in self.reasons.items())
        return f"{self.way} by {self.transport} to {self.peer}" + (
            f" ({remarks})" if remarks else ""
        )
