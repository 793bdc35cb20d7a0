# SPDX-License-Identifier: Apache-2.0
"""The settings in the environment. A value that is not permitted is refused before anything starts;
a name that is misspelt has no effect, and is told."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Final

from tensorwire.log import LOGGER


@cache
def names() -> frozenset[str]:
    """Of all settings, as they are called in the environment."""
    from tensorwire import _core

    return frozenset(setting["variable"] for setting in _core.each_setting())


# From one of our processes to the next.
_OWN: Final = frozenset(
    ["TENSORWIRE_REJOIN", "TENSORWIRE_RUN", "TENSORWIRE_SOCKETS", "TENSORWIRE_STORE"]
)


_PREFIXES: Final = ("TENSORWIRE_", "TF_RDMA_")


def _words(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def unknown(found: Iterable[str]) -> dict[str, str]:
    """Names that look like settings and are none, each with the one that was probably meant, ""
    where no name is near."""
    by_words = {_words(name): name for name in sorted(names())}
    result = {}
    for name in sorted(set(found) - names() - _OWN):
        if name.startswith(_PREFIXES):
            near = get_close_matches(_words(name), by_words, 1, 0.75)
            result[name] = by_words[near[0]] if near else ""
    return result


def given() -> dict[str, str]:
    """What looks like a setting in the environment of this process, known or not."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}


class SettingError(ValueError):
    """A value in the environment that is not permitted. It says of which setting, and what is."""


def settings() -> dict[str, int | str]:
    """Those that the runtime keeps, as they are in force. Raises SettingError."""
    from tensorwire import _core

    try:
        return _core.settings()
    except _core.StatusError as error:
        raise SettingError(error.details) from None


def read(variable: str) -> str:
    """What a setting holds now, as it is meant; empty: it is not set. Raises SettingError."""
    from tensorwire import _core

    try:
        return _core.read_setting(variable)
    except _core.StatusError as error:
        raise SettingError(error.details) from None


DATA_HOSTS: Final = "TENSORWIRE_DATA_HOSTS"
"""Hosts and networks beside the one that is called, to which servers may send their clients."""

_HOST_NAME: Final = re.compile(r"(?:[\w-]+\.)*[\w-]*[^\W\d][\w-]*\.?", re.ASCII).fullmatch
"""Its last label is no number: what has one is an address, or a mistake in one."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def data_hosts() -> tuple[str | Network, ...]:
    """The entries of TENSORWIRE_DATA_HOSTS as they are now: names and ``*`` as they are written,
    addresses and networks as networks. Raises SettingError."""
    value = os.environ.get(DATA_HOSTS, "")
    return tuple(_host(entry, value) for entry in value.replace(",", " ").split())


def _host(entry: str, value: str) -> str | Network:
    if entry == "*" or _HOST_NAME(entry):
        return entry
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        raise SettingError(
            f"{DATA_HOSTS}={value!r}: {entry!r} is neither a host nor a network: "
            "set names, addresses and networks with commas between (10.0.0.0/8,node7), or *"
        ) from None


def check() -> None:
    """Raises SettingError. The first time in a process that nothing is wrong, unknown names are
    told."""
    _check_once()
    data_hosts()


@cache
def _check_once() -> None:
    """What the core has read once, it does not read again."""
    settings()
    tell_unknown()


@cache
def tell_unknown() -> None:
    """One warning for each, once in a process."""
    for name, near in unknown(os.environ).items():
        meant = f"; did you mean {near}?" if near else ""
        LOGGER.warning("%s in the environment is no setting and has no effect%s", name, meant)
