# SPDX-License-Identifier: Apache-2.0
"""Contenders by name: each is a class that an entry point of an installed package names."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

C = TypeVar("C", bound="Contender")


class Contender(abc.ABC):
    """What every suite asks of a contender; made without arguments.

    transports: those on which it is measured. packages: whose versions the report tells.
    """

    transports: tuple[str, ...]
    packages: tuple[str, ...] = ()

    @abc.abstractmethod
    def viable(self, transport: str) -> str | None:
        """None, or the reason why this cannot be measured here, with the command that mends it."""

    def variants(self) -> Mapping[str, Self]:
        """The same with other settings, each under a name ``NAME-SETTING`` of its own."""
        return {}


def names(group: str) -> list[str]:
    """Of the contenders that are installed."""
    return [*installed(group)]


def find(group: str, kind: type[C], name: str) -> C:
    """The contender of that name, or the variant.

    Raises ValueError where no installed package has it, and where it cannot be had from the one
    that says so.
    """
    entries = installed(group)
    if name in entries:
        return _made(entries[name], kind)
    if (base := name.partition("-")[0]) in entries:
        variants = _made(entries[base], kind).variants()
        if name in variants:
            return variants[name]
    raise ValueError(
        f"no contender is called {name!r}; there are {', '.join(entries)}. To have another one, "
        f"install the package that brings it: one with an entry point of the group {group}"
    )


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """By name, in the order of their names."""
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        if entry.name in found:
            both = " and ".join(map(_package, (found[entry.name], entry)))
            raise ValueError(f"{both} both bring a contender {entry.name!r}: uninstall one of them")
        found[entry.name] = entry
    return found


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def _made(entry: EntryPoint, kind: type[C]) -> C:
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"the contender {entry.name!r} of {_package(entry)} cannot be loaded ({error}): "
            "install what it needs, or uninstall that package"
        ) from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(
            f"the contender {entry.name!r} of {_package(entry)} is {entry.value}, which is no "
            f"subclass of {kind.__module__}.{kind.__name__}"
        )
    return found()
