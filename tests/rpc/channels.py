# SPDX-License-Identifier: Apache-2.0
"""Channels with other pauses, transports or links than those that users get."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tensorwire import _core, transports
from tensorwire.rpc import choice
from tensorwire.rpc.client.channel import Channel
from tensorwire.rpc.client.uplink import Uplink
from tensorwire.rpc.options import limits

WhyNot = Callable[[str], str | None]


def channel(
    target: str,
    *,
    transport: str | None = None,
    forbid: Any = (),
    why_not: WhyNot = transports.why_not,
    connect: Callable[..., Any] = _core.connect,
    pauses: Sequence[float] | None = None,
) -> Any:
    """As ``insecure_channel`` makes it."""
    policy = dataclasses.replace(choice.policy(transport, forbid), why_not=why_not)
    uplink = Uplink(target, (), None, policy, limits(()), None, connect=connect, pauses=pauses)
    return Channel(uplink)


def having(why_not: WhyNot) -> Callable[[Any], None]:
    """Has a server, before it has ports, offer other transports than the host's."""

    def prepare(server: Any) -> None:
        server._policy = dataclasses.replace(server._policy, why_not=why_not)

    return prepare


def all_work(transport: str) -> None:
    """As if this host had what each transport needs."""
