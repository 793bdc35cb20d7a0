# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a group find each other."""

from __future__ import annotations

import re
import socket
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.collective.ranks import LIMIT_SECONDS

import tensorwire as tw
from tensorwire.collective import (
    FileStore,
    Group,
    GroupError,
    GroupTimeoutError,
    PrefixStore,
    RpcStore,
    join,
    rejoin,
    store_service,
)
from tensorwire.collective.stores import store_of


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


def test_keys_that_are_not_for_the_server_wait_for_the_next_one() -> None:
    def served(prefix: str, port: int = 0) -> tuple[grpc.Server, int]:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((store_service(prefix),))
        found = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        return server, found

    with futures.ThreadPoolExecutor(4) as pool:
        server, port = served("first/")
        store = RpcStore(f"127.0.0.1:{port}")
        store.set("first/key", b"1")
        with pytest.raises(TimeoutError, match="nobody has set second/key"):
            store.get("second/key", 0)
        setting = pool.submit(store.set, "second/key", b"2")
        with pytest.raises(GroupTimeoutError, match="only keys of 'first/' are here"):
            RpcStore(f"127.0.0.1:{port}", timeout=0.05).set("second/key", b"2")
        assert not setting.done()
        server.stop(None).wait()
        server, _ = served("second/", port)
        setting.result(60)
        assert store.get("second/key", 1) == b"2"
        server.stop(None).wait()


def test_a_store_that_nobody_serves_is_waited_for_as_long_as_the_group() -> None:
    with socket.socket() as nobody:  # it is bound, and does not listen
        nobody.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{nobody.getsockname()[1]}"
        text = (
            f"no store answers at {target} within 0.2 s; see whether the server runs, and has "
            "collective.store_service() among its services"
        )
        with pytest.raises(GroupTimeoutError, match=f"^{re.escape(text)}$"):
            join(target, 0, 2, timeout=0.2)
        with pytest.raises(GroupTimeoutError, match=re.escape(text)):
            rejoin(target, timeout=0.2)


def test_a_server_without_a_store_is_told_so() -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        text = f"the server at {target} is no store: add collective.store_service() to its services"
        with pytest.raises(GroupError, match=f"^{re.escape(text)}$"):
            join(target, 0, 2, timeout=LIMIT_SECONDS)
        server.stop(None).wait()


class Leaving(PrefixStore):
    """Tells that a key was asked for."""

    def __init__(self, store: RpcStore) -> None:
        super().__init__("a", store)
        self.asked = threading.Event()

    def get(self, key: str, timeout: float) -> bytes:
        self.asked.set()
        return super().get(key, timeout)


def test_a_store_that_goes_while_ranks_meet_is_told_so() -> None:
    with futures.ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((store_service(),))
        target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        store = Leaving(RpcStore(target, timeout=0.5))
        joining = pool.submit(join, store, 0, 2, timeout=LIMIT_SECONDS)
        assert store.asked.wait(LIMIT_SECONDS)
        server.stop(None).wait()
        with pytest.raises(GroupTimeoutError, match=f"no store answers at {target}"):
            joining.result(LIMIT_SECONDS)


class Stopping(grpc.GenericRpcHandler):
    """Cancels the first call, as a server does that stops, and is the next one's store."""

    def __init__(self) -> None:
        self.cancelled = 0
        self._next = store_service()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if self.cancelled:
            return self._next.service(details)
        self.cancelled += 1
        return grpc.unary_unary_rpc_method_handler(
            lambda _request, context: context.abort(grpc.StatusCode.CANCELLED, "")
        )


def test_what_a_server_cancels_when_it_stops_is_asked_again() -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        stopping = Stopping()
        server.add_generic_rpc_handlers((stopping,))
        store = RpcStore(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        server.start()
        store.set("key", b"1")
        assert stopping.cancelled == 1
        assert store.get("key", 1) == b"1"
        server.stop(None).wait()


@pytest.mark.parametrize("kind", ["FileStore", "TCPStore", "PrefixStore"])
def test_a_store_of_torch(kind: str, tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    if kind == "FileStore":
        ends = [distributed.FileStore(str(tmp_path / "store"), 2) for _ in range(2)]
    elif kind == "TCPStore":
        server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ends = [server, distributed.TCPStore("127.0.0.1", server.port, is_master=False)]
    else:
        ends = [distributed.PrefixStore("a", distributed.HashStore())] * 2  # of both threads
    store = store_of(ends[0])
    for seconds in (0.0, 0.01):
        with pytest.raises(TimeoutError, match="nobody has set key"):
            store.get("key", seconds)
    store.set("key", b"\0\xff")
    assert store_of(ends[1]).get("key", 0) == b"\0\xff"

    def run(rank: int) -> float:
        with join(ends[rank], rank, 2, timeout=LIMIT_SECONDS) as group:
            half = group.split(0)
            assert half is not None
            with half:
                return float(half.all_reduce(np.full(1, rank + 1.0))[0])

    with futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [3, 3]
