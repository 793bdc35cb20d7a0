# SPDX-License-Identifier: Apache-2.0
"""One attempt to open a link: asks for the data plane, and connects by the best transport."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tensorwire import _core, environment, transports
from tensorwire.observe import audit
from tensorwire.rpc import bootstrap, kept, status
from tensorwire.rpc import target as targets
from tensorwire.rpc.choice import Policy, tell_tuning
from tensorwire.rpc.options import Limits
from tensorwire.rpc.refusals import Refusal

_CONNECT_SECONDS: Final = 3.0

_LOCAL_SOCKET: Final = re.compile(r"/(?:[^/\0]*/)*tensorwire-[^/\0]+/s").fullmatch


@dataclass(frozen=True)
class AttemptResult:
    """What an attempt came to.

    reasons: for each transport that is better than the link's, why it is not the one. unreached:
    those of them that were tried. failure: where there is no link, what that means for the next
    attempt (``_core.ATTEMPT_...``). refusal: one with other metadata might come to more.
    """

    link: _core.Peer | None
    reasons: dict[str, str]
    unreached: tuple[str, ...] = ()
    failure: int = _core.ATTEMPT_UNREACHED
    refusal: Refusal | None = None

    @property
    def final(self) -> bool:
        return self.failure == _core.ATTEMPT_FINAL


class LinkAttempt:
    """target: as the user wrote it. ask: calls Open. serves: the calls that the server begins.
    connect: makes a link, as ``_core.connect``."""

    def __init__(
        self,
        target: str,
        policy: Policy,
        limits: Limits,
        ask: Callable[[], bootstrap.Answer],
        serves: _core.Server | None = None,
        connect: Callable[..., _core.Peer] = _core.connect,
    ) -> None:
        self._target = targets.parse(target)
        self._policy = policy
        self._limits = limits
        self._ask = ask
        self._serves = serves
        self._dial = connect
        self._link: _core.Peer | None = None

    def run(self, route: _core.Route) -> AttemptResult:
        several = targets.why_not_one(self._target)
        if several is not None:
            return self._none(several, _core.ATTEMPT_FINAL)
        try:
            answer = self._ask()
            server = _core.parse_hello(answer.hello)
        except bootstrap.OpenError as error:
            return self._none(error.reason, error.failure, error.refusal)
        except _core.StatusError as error:
            return self._none(error.details, _core.ATTEMPT_FINAL)
        _, final, reasons = route.attempt(
            server.same_host,
            server.same_user,
            [_with_host(address, self._target) for address in answer.addresses],
            self._policy.why_not,
            lambda transport, address: self._connect(transport, address, answer),
        )
        return AttemptResult(
            self._link,
            {transport: why for transport, why, _ in reasons},
            tuple(transport for transport, _, tried in reasons if tried),
            _core.ATTEMPT_FINAL if final else _core.ATTEMPT_UNREACHED,
        )

    def _connect(self, transport: str, address: str, answer: bootstrap.Answer) -> None:
        elsewhere = _why_not_followed(address, self._target)
        if elsewhere is not None:
            raise _core.StatusError(status.FAILED_PRECONDITION, elsewhere)
        audit.follow()
        tell_tuning()
        kept.free_in_background()
        try:
            self._link = self._dial(
                address,
                answer.session,
                answer.secret,
                answer.instance,
                answer.hello,
                _CONNECT_SECONDS,
                self._limits.receive,
                self._serves,
                self._limits.thresholds,
            )
        except _core.StatusError as error:
            code = status.code_of(error.code).name
            told = f"{code}: {error.details}{_remedy(transport, error)}"
            raise _core.StatusError(error.code, told) from None

    def _none(self, reason: str, failure: int, refusal: Refusal | None = None) -> AttemptResult:
        return AttemptResult(None, reasons(self._policy, reason), failure=failure, refusal=refusal)


def reasons(policy: Policy, reason: str) -> dict[str, str]:
    """The same reason for each transport that is permitted."""
    return {name: policy.refusals.get(name, reason) for name in transports.names()}


def _remedy(name: str, error: _core.StatusError) -> str:
    unreached = error.code in (status.UNAVAILABLE, status.DEADLINE_EXCEEDED)
    if transports.is_local(name) or not unreached:
        return ""
    return "; clients need the server's data port, too (its data_port and advertise_host)"


def _with_host(address: str, parsed: targets.Target) -> str:
    """An address that lacks its host gets the one that the channel dials."""
    found = targets.data_address(address)
    if found is None or found.host or not parsed.hosts:
        return address
    return targets.address(found.transport, parsed.hosts[0], found.port)


def _why_not_followed(address: str, parsed: targets.Target) -> str | None:
    """A server may not send its clients to ports of other hosts, nor to other programs' sockets."""
    name, _, rest = address.partition(":")
    if transports.is_local(name):
        return None if _LOCAL_SOCKET(rest) else "not a socket of tensorwire's"
    found = targets.data_address(address)
    if found is None:
        return f"{address[:80]!r} is no address of a data plane"
    host = found.host
    if not host:
        return f"{address!r} names no host, and neither does the target"
    called = parsed.hosts[0] if parsed.hosts else "localhost"
    if host == called or host in targets.resolve(called) or _permitted(host):
        return None
    if not parsed.hosts and targets.is_loopback(host):
        return None
    return f"not on the host that was called ({environment.DATA_HOSTS}={host} would permit it)"


def _permitted(host: str) -> bool:
    try:
        entries = environment.data_hosts()
    except environment.SettingError:
        return False  # set since the channel was made, which would have refused it
    if "*" in entries or host in entries:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in entry for entry in entries if not isinstance(entry, str))
