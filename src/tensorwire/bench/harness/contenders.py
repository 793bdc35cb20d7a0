# SPDX-License-Identifier: Apache-2.0
"""Contenders by name: each is a class that an entry point of an installed package names."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

C = TypeVar("C", bound="Contender")

Role = Literal["own", "peer", "limit"]
"""Whose figures they are: this project's, those of others, or of what limits all of them."""


class Contender(abc.ABC):
    """What every suite asks of a contender; made without arguments.

    transports: those on which it is measured. packages: whose versions the report tells. spins:
    transports on which its processes use CPU while nothing is asked of them, so that they are
    stopped while others are measured.
    """

    role: ClassVar[Role] = "peer"
    transports: tuple[str, ...]
    packages: tuple[str, ...] = ()
    spins: frozenset[str] = frozenset()

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
    found = installed(group)
    if name in found:
        return _made(found[name], kind)
    if (base := name.partition("-")[0]) in found:
        variants = _made(found[base], kind).variants()
        if name in variants:
            return variants[name]
    known = ", ".join(found) or "none, not even tensorwire's own: install tensorwire anew"
    raise ValueError(
        f"no contender is called {name!r}; there are {known}. To have another one, install the "
        f"package that brings it: one with an entry point of the group {group}"
    )


@cache
def installed(group: str) -> dict[str, list[EntryPoint]]:
    """By name, in the order of the names."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        found.setdefault(entry.name, []).append(entry)
    return found


def _made(entries: Sequence[EntryPoint], kind: type[C]) -> C:
    (entry, *others), name = entries, entries[0].name
    packages = " and ".join(each.dist.name if each.dist else each.value for each in entries)
    if others:
        raise ValueError(f"{packages} both bring a contender {name!r}: uninstall one of them")
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"the contender {name!r} of {packages} cannot be loaded ({error}): "
            "install what it needs, or uninstall that package"
        ) from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(
            f"the contender {name!r} of {packages} is {entry.value}, which is no subclass of "
            f"{kind.__module__}.{kind.__name__}"
        )
    return found()
