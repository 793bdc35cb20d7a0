# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a group find each other."""

from __future__ import annotations

from concurrent import futures
from pathlib import Path

import pytest

import tensorwire as tw
from tensorwire.collective import (
    FileStore,
    Group,
    PrefixStore,
    RpcStore,
    join,
    store_service,
)


class BrokenStore:
    def set(self, key: str, value: bytes) -> None:
        raise ZeroDivisionError(key)

    def get(self, key: str, timeout: float) -> bytes:
        raise AssertionError


def test_what_a_store_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError, match="tensorwire/rank/0"):
        join(BrokenStore(), 0, 2)


def test_a_folder_where_others_write_is_no_store(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="others may write there"):
        FileStore(tmp_path)


def test_a_store_by_grpc() -> None:
    with futures.ThreadPoolExecutor(2) as pool:
        server = tw.server(pool, [store_service()])
        target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            store = PrefixStore("a", RpcStore(target))
            with pytest.raises(TimeoutError, match="nobody has set a/key"):
                store.get("key", 0.01)
            store.set("key", b"\0value")
            assert RpcStore(target).get("a/key", 1) == b"\0value"
            with futures.ThreadPoolExecutor(2) as both:
                groups = list(both.map(lambda rank: join(target, rank, 2), range(2)))
                list(both.map(lambda group: group.barrier(), groups))
                list(both.map(Group.close, groups))
        finally:
            server.stop(None)
