# SPDX-License-Identifier: Apache-2.0
"""One attempt to open a link: asks for the data plane, and connects by the best transport."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorwire import _core, environment
from tensorwire.observe import audit
from tensorwire.observe.host import why_no_verbs
from tensorwire.rpc import bootstrap, kept, status, target
from tensorwire.rpc.choice import DATA_PLANE, Policy
from tensorwire.rpc.refusals import Refusal

_CONNECT_SECONDS: Final = 3.0

_LOCAL_SOCKET: Final = re.compile(r"/(?:[^/\0]*/)*tensorwire-[^/\0]+/s").fullmatch


@dataclass(frozen=True)
class Found:
    """What an attempt came to.

    reasons: for each transport that is better than the link's, why it is not the one. unreached:
    those of them that were tried. final: another attempt would come to the same. refusal: one with
    other metadata might not.
    """

    link: _core.Link | None
    reasons: dict[str, str]
    unreached: dict[str, str] = field(default_factory=dict)
    final: bool = False
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Opening:
    """target: as the user wrote it. ask: calls Open. better_than: a transport; it and lesser ones
    are not tried. passed_over: transports that are not tried now, with the reasons."""

    target: str
    policy: Policy
    max_message: int
    ask: Callable[[], bootstrap.Answer]
    better_than: str | None = None
    passed_over: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> Found:
        parsed = target.parse(self.target)
        several = target.why_not_one(parsed)
        if several is not None:
            return self._none(several, final=True)
        try:
            answer = self.ask()
            server = _core.parse_hello(answer.hello)
        except bootstrap.OpenError as error:
            return self._none(error.reason, error.final, error.refusal)
        except _core.StatusError as error:
            return self._none(error.details, final=True)
        reasons: dict[str, str] = {}
        unreached: dict[str, str] = {}
        final = True
        for name in DATA_PLANE:
            if name == self.better_than:
                break
            offered = [address for address in answer.addresses if address.startswith(f"{name}:")]
            why_not = self._why_not(name, server, bool(offered))
            if why_not is not None:
                reasons[name] = why_not
                final &= name not in self.passed_over
                continue
            failures = []
            for address in offered:
                address = _with_host(address, parsed)
                elsewhere = _why_not_followed(address, parsed)
                if elsewhere is not None:
                    failures.append(f"{address}: {elsewhere}")
                    continue
                try:
                    link = self._connect(address, answer)
                except _core.StatusError as error:
                    final &= error.code == status.FAILED_PRECONDITION
                    code = status.code_of(error.code).name
                    failures.append(f"{address}: {code}: {error.details}{_remedy(name, error)}")
                else:
                    return Found(link, reasons, unreached)
            reasons[name] = unreached[name] = ", ".join(failures)
        return Found(None, reasons, unreached, final)

    def _why_not(self, name: str, server: _core.Peer, offered: bool) -> str | None:
        """Why the transport is not even tried."""
        refusal = self.policy.refusal(name)
        if refusal is not None:
            return refusal
        if name == "verbs":
            here = why_no_verbs()
            if here is not None:
                return here
        if not offered:
            return _why_not_offered(name, server)
        return self.passed_over.get(name)

    def _connect(self, address: str, answer: bootstrap.Answer) -> _core.Link:
        audit.follow()
        kept.free_in_background()
        return _core.connect(
            address,
            answer.session,
            answer.secret,
            answer.instance,
            answer.hello,
            _CONNECT_SECONDS,
            self.max_message,
        )

    def _none(self, reason: str, final: bool, refusal: Refusal | None = None) -> Found:
        return Found(None, reasons(self.policy, reason), final=final, refusal=refusal)


def reasons(policy: Policy, reason: str) -> dict[str, str]:
    """The same reason for each transport that is permitted."""
    return {name: policy.refusal(name) or reason for name in DATA_PLANE}


def _why_not_offered(name: str, server: _core.Peer) -> str:
    if name == "shm" and not server.same_host:
        return "the server runs on another host, or under another kernel"
    if name == "shm" and not server.same_user:
        return "the server runs as another user: start both as one, containers with the same --user"
    return "the server does not offer it"


def _remedy(name: str, error: _core.StatusError) -> str:
    if name == "shm" or error.code not in (status.UNAVAILABLE, status.DEADLINE_EXCEEDED):
        return ""
    return "; clients need the server's data port, too (its data_port and advertise_host)"


def _with_host(address: str, parsed: target.Target) -> str:
    """An address that lacks its host gets the one that the channel dials."""
    name, _, rest = address.partition(":")
    if not rest.startswith(":") or not parsed.hosts:
        return address
    return target.address(name, parsed.hosts[0], int(rest[1:]))


def _why_not_followed(address: str, parsed: target.Target) -> str | None:
    """A server may not send its clients to ports of other hosts, nor to other programs' sockets."""
    name, _, rest = address.partition(":")
    if name == "shm":
        return None if _LOCAL_SOCKET(rest) else "not a socket of tensorwire's"
    host = rest.rpartition(":")[0].strip("[]")
    called = parsed.hosts[0] if parsed.hosts else "localhost"
    if host == called or host in target.resolve(called) or _permitted(host):
        return None
    if not parsed.hosts and target.is_loopback(host):
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
