# SPDX-License-Identifier: Apache-2.0
"""The process ends with its own status and without a word, whatever its threads are doing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.rpc.exits import TIMES, WAYS, Way, go
from tests.rpc.pairings import process


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with process(kind="tensorwire") as (target, _):
        yield target


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_exit(way: Way, target: str) -> None:
    assert go(way, target, TIMES) == f"0 of {TIMES} went wrong"
