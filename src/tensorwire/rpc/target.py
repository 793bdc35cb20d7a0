# SPDX-License-Identifier: Apache-2.0
"""What a channel's target or a server's address says about the machines behind it."""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections import Counter
from typing import Final, NamedTuple

# Whatever gRPC does not know as a scheme is the beginning of a host name.
_SCHEME: Final = re.compile(
    r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|google-c2p)(?:-experimental)?:(.*)", re.DOTALL
).fullmatch
_AUTHORITY: Final = re.compile(r"//[^/]*/").match

# As core/wire/address.h says it; the host may be missing here.
_DATA_ADDRESS: Final = re.compile(
    r"([a-z0-9_-]{1,32}):(?:\[([0-9A-Fa-f:.]{2,45})(%[A-Za-z0-9_.-]{1,15})?\]"
    r"|([A-Za-z0-9_.-]{0,253})):([1-9][0-9]{0,4})"
).fullmatch

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}").fullmatch

WILDCARDS: Final = ("0.0.0.0", "::")


class Target(NamedTuple):
    """``hosts``: names or numbers, without ports; empty for a scheme without any."""

    scheme: str
    hosts: tuple[str, ...]


def checked(target: str) -> str:
    """``target``; TypeError for what is no text, such as a variable that is not set, and ValueError
    for an empty one."""
    if not isinstance(target, str):
        raise TypeError(f"a target is text, as 'localhost:50051', and not {target!r}")
    if not target:
        raise ValueError("the target is empty: name a server, as 'localhost:50051'")
    return target


def parse(target: str) -> Target:
    match = _SCHEME(target)
    scheme, rest = (match[1], match[2]) if match else ("dns", target)
    if scheme in ("ipv4", "ipv6"):
        return Target(scheme, tuple(map(_host, rest.lstrip("/").split(","))))
    if scheme == "dns":
        authority = _AUTHORITY(rest)
        return Target(scheme, (_host(rest[authority.end() :] if authority else rest),))
    return Target(scheme, ())


def _host(address: str) -> str:
    """Without the port and without the brackets of an IPv6 number."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address if address.count(":") > 1 else address.partition(":")[0]


def why_not_one(target: Target) -> str | None:
    """Why the target may stand for several servers, among which gRPC then chooses; None when it
    is one. Resolves names, hence may take a while."""
    if target.scheme in ("unix", "unix-abstract"):
        return None
    if not target.hosts:
        return f"{target.scheme} targets are resolved by gRPC"
    if len(target.hosts) > 1:
        return f"the target lists {len(target.hosts)} servers"
    addresses = resolve(target.hosts[0])
    # One number for each family is how a host with both is written down; `localhost` has two.
    families = Counter(ipaddress.ip_address(a).version for a in addresses if not is_loopback(a))
    if max(families.values(), default=0) > 1:
        return f"{target.hosts[0]} resolves to {families.total()} addresses"
    return None


def resolve(host: str) -> tuple[str, ...]:
    """Numbers of a host, IPv4 first; empty when it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    numbers = {str(entry[4][0]).partition("%")[0]: None for entry in found}
    return tuple(sorted(numbers, key=lambda number: ":" in number))


@functools.lru_cache(256)
def is_loopback(address: str) -> bool:
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(number, "ipv4_mapped", None)
    return bool(mapped.is_loopback if mapped else number.is_loopback)


def one_host(name: str) -> str:
    """A name or a number under which clients can reach one host, an IPv6 number without brackets.
    ValueError: it is none, or stands for all interfaces."""
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    try:
        number = ipaddress.ip_address(bare)
    except ValueError:
        if _HOST_NAME(name) is None:
            raise ValueError(
                f"{name!r} is neither the name nor the address of a host (without a port)"
            ) from None
        return name
    if number.is_unspecified or "%" in bare:
        raise ValueError(f"{name!r} means no host to clients on other hosts")
    return bare


def peer_host(peer: str) -> str:
    """The number in gRPC's name of a peer, as in ``ipv4:10.0.0.1:4242`` and
    ``ipv6:%5B::1%5D:4242``; empty for a unix socket."""
    target = parse(peer.replace("%5B", "[").replace("%5D", "]").replace("%25", "%"))
    return target.hosts[0].partition("%")[0] if target.hosts else ""


@functools.lru_cache(256)
def source(host: str) -> str:
    """What may be one greedy program: a host, which is 64 bits of an IPv6 address."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host or "unix"
    if isinstance(number, ipaddress.IPv4Address) or number.ipv4_mapped:
        return host
    return str(ipaddress.ip_network((number, 64), strict=False))


def address_towards(host: str) -> str | None:
    """The local number from which this machine talks to ``host``. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


class DataAddress(NamedTuple):
    """``host``: an IPv6 number without brackets; empty for the host that the client dialled."""

    transport: str
    host: str
    port: int


def data_address(text: str) -> DataAddress | None:
    """What `address` made, as a peer sent it; None for what is none. Each text is read in one way
    or not at all, as the core reads it when it dials."""
    match = _DATA_ADDRESS(text)
    if match is None:
        return None
    transport, number, zone, name, digits = match.groups()
    if number is not None:
        try:
            ipaddress.IPv6Address(number)
        except ValueError:
            return None
        name = number + (zone or "")
    port = int(digits)
    return DataAddress(transport, name, port) if port < 65536 else None


def address(transport: str, host: str, port: int) -> str:
    """Of the data plane: ``tcp:10.0.0.1:4242``, ``verbs:[::1]:4242``; an empty host stands for the
    one that the client dialled."""
    return f"{transport}:[{host}]:{port}" if ":" in host else f"{transport}:{host}:{port}"
