# SPDX-License-Identifier: Apache-2.0
"""Loading into the lists and dicts that an optimizer has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept(optimizer: Any) -> Iterator[None]:
    """What ``load_state_dict()`` replaces inside goes to where it was before. A distributed
    optimizer shares its groups and its state with the one that it was made of, and that may be the
    one that a learning rate scheduler has."""
    groups, state = optimizer.param_groups, optimizer.state
    yield
    loaded, values = optimizer.param_groups, optimizer.state
    if loaded is not groups:
        for old, new in zip(groups, loaded, strict=True):
            old.clear()
            old.update(new)
        optimizer.param_groups = groups
    if values is not state:
        state.clear()
        state.update(values)
        optimizer.state = state
