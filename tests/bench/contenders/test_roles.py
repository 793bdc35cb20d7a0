# SPDX-License-Identifier: Apache-2.0
"""Whose figures contenders make: a report tells who of the others is ahead of ours."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from tensorwire.bench.harness.contenders import Contender

LIMITS = {"memcpy", "memory", "nothing", "sockets"}
"""What no library does."""
OURS = {"horovod", "hybrid", "ring"}
"""Of ours that do not have its name."""


def contenders() -> list[tuple[str, str]]:
    groups = [group for group in entry_points().groups if group.startswith("tensorwire.bench.")]
    return [(group, entry.name) for group in sorted(groups) for entry in entry_points(group=group)]


@pytest.mark.parametrize(("group", "name"), contenders())
def test_roles(group: str, name: str) -> None:
    (entry,) = entry_points(group=group, name=name)
    kind = entry.load()
    assert issubclass(kind, Contender)
    own = name in OURS or "tensorwire" in name
    assert kind.role == ("own" if own else "limit" if name in LIMITS else "peer")


def test_variants_have_the_role_of_what_they_vary() -> None:
    for group, name in contenders():
        (entry,) = entry_points(group=group, name=name)
        contender = entry.load()()
        assert {each.role for each in contender.variants().values()} <= {contender.role}
