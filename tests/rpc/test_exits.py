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


# Once the main thread has ended, these start no threads, and a grpcio server whose thread is not to
# be had hangs as it is freed, with the GIL: a stock one as well.
GRPC_HANGS = {"servers_come_and_go"} if (3, 12) <= sys.version_info < (3, 12, 2) else set()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_exit(way: Way, target: str) -> None:
    if str(way) in GRPC_HANGS:
        pytest.skip("grpcio hangs with this Python when a server is started at the end")
    assert go(way, target, TIMES) == f"0 of {TIMES} went wrong"
