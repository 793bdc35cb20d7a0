# SPDX-License-Identifier: Apache-2.0
"""The process ends with its own status and without a word, whatever its threads are doing."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.rpc.exits import TIMES, WAYS, Way, go
from tests.rpc.pairings import process


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with process(kind="tensorwire") as (target, _):
        yield target


# CPython 3.11.2 crashes in _PyThreadState_SetCurrent when a thread begins while the interpreter
# ends: the state of that thread is freed by then. 3.11.7 does not.
STARTS_THREADS_AT_EXIT = {"servers_come_and_go"} if sys.version_info < (3, 11, 7) else set()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_exit(way: Way, target: str) -> None:
    if str(way) in STARTS_THREADS_AT_EXIT:
        pytest.skip("this Python crashes when threads begin while it ends")
    assert go(way, target, TIMES) == f"0 of {TIMES} went wrong"
