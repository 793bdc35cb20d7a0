# SPDX-License-Identifier: Apache-2.0
"""The settings in the environment. A value that is not permitted is refused before anything starts;
a name that is misspelt has no effect, and is told."""

from __future__ import annotations

import ipaddress
import os
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
    """What a setting holds now, as it is meant; empty: it is not set, or it is another name of one
    that is, and has no effect. Raises SettingError."""
    from tensorwire import _core

    try:
        return _core.read_setting(variable)
    except _core.StatusError as error:
        raise SettingError(error.details) from None


DATA_HOSTS: Final = "TENSORWIRE_DATA_HOSTS"
"""Hosts and networks beside the one that is called, to which servers may send their clients."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def data_hosts() -> tuple[str | Network, ...]:
    """The entries of TENSORWIRE_DATA_HOSTS as they are now: names and ``*`` as they are written,
    addresses and networks as networks. Raises SettingError."""
    return tuple(_host(entry) for entry in read(DATA_HOSTS).split(",") if entry)


def _host(entry: str) -> str | Network:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return entry  # the core has let it pass, so it is a name


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
