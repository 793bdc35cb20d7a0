# SPDX-License-Identifier: Apache-2.0
"""On which machine each operation of a program is, and in which rounds machines take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Machines = Callable[[str], str | None] | Mapping[str, str]
"""The machine of a place: a function of its path, or a mapping by the beginnings of paths."""


class ScopeError(ValueError):
    """A program that cannot be cut as asked; the text says where, and what to do."""


class Operation(NamedTuple):
    """What a program computes at once, in a word of its framework.

    place: the machine, None where nothing says so. takes: the operations whose results it uses, by
    their numbers; results of a program's own inputs are not among them.
    """

    name: str
    place: str | None
    takes: Sequence[int]


def finder(machines: Machines | None, separator: str) -> Callable[[str], str | None]:
    """The function by which a path has its machine. Of a mapping, the longest key that the path
    begins with counts, up to a separator; None: a path is its own machine."""
    if machines is None:
        return lambda path: path or None
    if callable(machines):
        return machines
    given = dict(machines)

    def find(path: str) -> str | None:
        words = path.split(separator)
        for length in range(len(words), 0, -1):
            found = given.get(separator.join(words[:length]))
            if found is not None:
                return found
        return given.get("")

    return find


def settle(operations: Sequence[Operation]) -> list[str]:
    """The machine of each operation. One without a place is where its result is used first, and
    where nobody who has a place uses it, with the last of those whose results it takes. ScopeError:
    none has a place."""
    machines = [each.place for each in operations]
    if not any(machines):
        raise ScopeError("no operation of the program has a machine: say which by machines=")
    users: list[list[int]] = [[] for _ in operations]
    for number, each in enumerate(operations):
        for taken in each.takes:
            users[taken].append(number)
    for number in reversed(range(len(operations))):
        if machines[number] is None:
            machines[number] = next(
                (machines[user] for user in users[number] if machines[user] is not None), None
            )
    for number, each in enumerate(operations):
        if machines[number] is None:
            machines[number] = next(
                (machines[taken] for taken in reversed(each.takes) if machines[taken]), None
            )
    first = next(machine for machine in machines if machine)
    return [machine or first for machine in machines]


def rounds(operations: Sequence[Operation], machines: Sequence[str]) -> list[int]:
    """Of each operation, how often what it needs has changed machines: operations of one machine
    and one round can run together, once all that they take from others is there."""
    found: list[int] = []
    for number, each in enumerate(operations):
        found.append(
            max(
                (found[taken] + (machines[taken] != machines[number]) for taken in each.takes),
                default=0,
            )
        )
    return found
