# SPDX-License-Identifier: Apache-2.0
"""Who may open what, what peers may allocate, and requests that are wrong."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from contextlib import suppress
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from tests.remote.pairs import ALL, PATIENCE, Pair, ending, pair, served
from tests.transports import HERE
from tests.weights.other import eventually

import tensorwire as tw
from tensorwire import remote
from tensorwire.remote import Add, Handle, Rights, messages
from tensorwire.remote.errors import FAILED_PRECONDITION
from tensorwire.remote.exposed import conceal


def test_a_path_says_how_and_why(shared: Pair) -> None:
    path = shared.device.path()
    transport = shared.device.peer.transport
    assert path.transport == transport
    _, tensor = shared.opened(4)
    assert path.way == {"shm": "mapped", "verbs": "device", "tcp": "frames"}[transport]
    assert tensor.mapped == (path.way == "mapped")
    if transport == "verbs":
        assert "not shm: verbs is required" in str(path)
    if transport == "tcp":
        assert "shm" in path.reasons
        assert "not shm: tcp is required" in str(path)
    assert str(path) in repr(shared.device)


def test_names(shared: Pair) -> None:
    with shared.host.empty(3, "int32", rights=Rights.READ, name="weights") as exposed:
        exposed.array[:] = 5
        assert "'weights' int32[3]" in repr(exposed)
        tensor = shared.device.open("weights")
        assert tensor.read().tolist() == [5, 5, 5]
        assert "int32[3] at" in repr(tensor)
        with pytest.raises(remote.AlreadyExistsError, match="'weights'"):
            shared.host.empty(3, rights=Rights.READ, name="weights")
        with pytest.raises(ValueError, match="for reading only"):
            _ = exposed.signal
    with pytest.raises(remote.NotFoundError, match="nothing called 'weights'"):
        shared.device.open("weights")
    shared.host.empty(3, rights=Rights.READ, name="weights").conceal()  # the name is free
    for wrong, error in (("", ValueError), (5, TypeError), ("x" * 257, remote.RemoteError)):
        with pytest.raises(error):
            shared.device.open(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="characters"):
        shared.host.empty(3, rights=Rights.READ, name="x" * 257)


def test_a_handle_names_a_part(shared: Pair) -> None:
    exposed, tensor = shared.opened((10, 20), "int32")
    exposed.array[:] = np.arange(200).reshape(10, 20)
    part = tensor[2:8:2, 5:]
    again = shared.device.open(Handle.from_bytes(part.handle.to_bytes()))
    np.testing.assert_array_equal(again.read(), exposed.array[2:8:2, 5:])
    assert shared.device.open(exposed.handle).handle == exposed.handle


@pytest.mark.parametrize(
    "changed",
    [
        {"offset": 800},
        {"shape": (11, 20)},
        {"strides": (80, 80)},
        {"strides": (80,)},
        {"dtype": "int64"},
        {"shape": (1 << 62, 1 << 62)},
    ],
)
def test_a_handle_of_a_part_outside_is_refused(shared: Pair, changed: dict[str, Any]) -> None:
    exposed, tensor = shared.opened((10, 20), "int32")
    fields = {name: getattr(exposed.handle, name) for name in Handle.__struct_fields__}
    with pytest.raises(ValueError, match="does not lie within"):
        shared.device.open(Handle(**{**fields, **changed}))
    assert tensor.read().shape == (10, 20)


def test_stale_handles_are_not_found(shared: Pair) -> None:
    with pair("shm") as other:
        exposed, _ = other.opened(4)
        foreign = exposed.handle
    with pytest.raises(remote.NotFoundError, match="of another host"):
        shared.device.open(foreign)
    exposed, _ = shared.opened(4)
    exposed.conceal()
    with pytest.raises(remote.NotFoundError, match="concealed, or never there"):
        shared.device.open(exposed.handle)


def test_each_peer_has_rights_of_its_own() -> None:
    with (
        pair("shm") as first,
        remote.connect(first.target, transport="tcp") as second,
        remote.connect(first.target, transport="shm") as third,
    ):
        peers = {peer.path().transport: peer for peer in first.server.peers()}
        by_shm = [peer for peer in first.server.peers() if peer.transport == "shm"]
        assert len(by_shm) == 2
        tcp = peers["tcp"]
        exposed = first.host.empty(
            4, "uint64", rights=ALL, peers={by_shm[0]: ALL, tcp: Rights.READ}
        )
        tensor = second.open(exposed.handle)
        assert tensor.rights == Rights.READ
        assert tensor.read().tolist() == [0, 0, 0, 0]
        with pytest.raises(remote.PermissionDeniedError):
            tensor.write(np.zeros(4, np.uint64))
        opened, refused = [], []
        for device in (first.device, third):
            with suppress(remote.PermissionDeniedError):
                opened.append(device.open(exposed.handle))
                continue
            refused.append(device)
        assert len(opened) == len(refused) == 1
        assert opened[0].rights == ALL
        opened[0].write(np.ones(4, np.uint64))
        # Rights change: what was opened is concealed.
        exposed.grant(tcp, Rights.READ | Rights.WRITE)
        with pytest.raises(remote.NotFoundError):
            tensor.read()
        tensor = second.open(exposed.handle)
        tensor.write(np.full(4, 2, np.uint64))
        assert opened[0].read().tolist() == [2, 2, 2, 2]
        exposed.grant(tcp, Rights.NONE)
        with pytest.raises(remote.PermissionDeniedError, match="any right"):
            second.open(exposed.handle)
        constant = first.host.empty(4, rights=Rights.READ, peers=[tcp])
        with pytest.raises(ValueError, match="more than"):
            constant.grant(tcp, Rights.WRITE)
        with pytest.raises(ValueError, match="more than"):
            first.host.empty(4, rights=Rights.READ, peers={tcp: Rights.WRITE})


@pytest.mark.skipif("verbs" not in HERE, reason="needs an RDMA device")
@pytest.mark.parametrize("transport", ["verbs"])
def test_peers_share_what_the_device_knows_of_a_tensor(transport: Any) -> None:
    """One registration of the tensor, and one of its signal, for all of them."""

    def registrations() -> Any:
        """Of this process, which has all ends."""
        link: Any = first.device.stats()["link"]
        return link["registrations"]

    def permitted(device: remote.Device) -> bool:
        with suppress(remote.PermissionDeniedError):
            return bool((device.open(exposed.handle).read() == len(tensors) - 1).all())
        return False

    with (
        pair(transport) as first,
        remote.connect(first.target, transport=transport, timeout=PATIENCE) as second,
        remote.connect(first.target, transport=transport, timeout=PATIENCE) as third,
    ):
        devices = [first.device, second, third]
        with first.host.empty(1 << 16, "uint8", rights=ALL) as earlier:  # for what is made once
            for device in devices:
                device.open(earlier.handle).write(np.ones(1 << 16, np.uint8), signal=Add())
        exposed = first.host.empty(1 << 16, "uint8", rights=ALL)
        before = registrations()
        tensors = [device.open(exposed.handle) for device in devices]
        assert registrations() == before + 2
        for number, tensor in enumerate(tensors):
            tensor.write(np.full(1 << 16, number, np.uint8), signal=Add())
            assert (exposed.array == number).all()
        assert registrations() == before + 2
        assert exposed.signal.value == len(tensors)
        exposed.grant(first.server.peers()[0], Rights.NONE)
        assert registrations() == before + 2
        assert [permitted(device) for device in devices].count(False) == 1
        exposed.conceal()
        assert registrations() == before


def test_peers_allocate_within_a_budget() -> None:
    page = 4096
    with pair("tcp", may_allocate=True, budget=8 * page, budget_per_peer=6 * page) as there:
        with remote.connect(there.target, transport="shm") as other:
            first = there.device.allocate((2, page // 4))  # and a page for its signal
            first.write(np.ones((2, page // 4), np.float32))
            assert first.rights == ALL
            found = there.host.stats()
            assert (found.tensors, found.allocations, found.peers) == (1, 1, 2)
            assert (found.nbytes, found.allocated, found.budget) == (2 * page, 3 * page, 8 * page)
            with pytest.raises(
                remote.ResourceExhaustedError, match=r"budget_per_peer of remote\.host: 12288 of"
            ):
                there.device.allocate(3 * page, "uint8")
            second = other.allocate(4 * page, "uint8")
            with pytest.raises(remote.ResourceExhaustedError, match=r"budget of remote\.host"):
                there.device.allocate(1)
            second.close()
            second.close()
            with pytest.raises(remote.NotFoundError):
                second.read()
            there.device.allocate(1)
            with pytest.raises(remote.ResourceExhaustedError):
                other.allocate(page * 4)
        with pytest.raises(remote.ResourceExhaustedError):
            there.device.allocate((1 << 40,))
        with pytest.raises(ValueError, match="negative"):
            there.device.allocate(-1)
        with pytest.raises(TypeError):
            there.device.allocate(4, "object")
        with first:
            assert first.read().all()
        with pytest.raises(remote.NotFoundError):
            first.read()


def test_operations_are_counted_by_their_way(shared: Pair) -> None:
    def counted(stats: Any) -> list[int]:
        ways = ("mapped", "by_frames", "by_device")
        names = [f"{what}_{way}" for way in ways for what in ("operations", "operation_bytes")]
        return [stats["link"][name] for name in names]

    _, tensor = shared.opened(100, "uint64")
    before = shared.device.stats()
    tensor.write(np.ones(100, np.uint64))
    tensor[:10].read()
    tensor.fetch_add(0, 1)
    after = shared.device.stats()
    way = ("mapped", "frames", "device").index(shared.device.path().way)
    more = [new - old for old, new in zip(counted(before), counted(after), strict=True)]
    assert more == [3 * (at == 2 * way) + 888 * (at == 2 * way + 1) for at in range(6)]
    assert (after["way"], after["opened"]) == (shared.device.path().way, before["opened"])
    tensor.close()
    assert shared.device.stats()["opened"] == int(str(before["opened"])) - 1


def test_an_allocation_ends_with_its_link() -> None:
    with pair("shm", may_allocate=True, budget=17 << 16) as there:
        with remote.connect(there.target, transport="tcp") as other:
            mine = other.allocate(1 << 18, name="pool", shared=Rights.READ)
            mine[5:7].write(np.ones(2, np.float32))
            theirs = there.device.open("pool")
            assert theirs.rights == Rights.READ
            assert theirs[4:8].read().tolist() == [0, 1, 1, 0]
            with pytest.raises(remote.AlreadyExistsError):
                there.device.allocate(1, name="pool")
            private = other.allocate(4)
            with pytest.raises(remote.PermissionDeniedError):
                there.device.open(private.handle)
            gone = there.server.peers()
        for peer in gone:
            assert peer.transport == "shm" or peer.wait_gone(PATIENCE)
        _wait_until_free(there.device)
        with pytest.raises(remote.NotFoundError):
            theirs.read()


def _wait_until_free(device: remote.Device) -> None:
    """What a lost peer held is given back by a thread."""
    for _ in range(10_000):
        try:
            device.allocate(1 << 17).close()
        except remote.ResourceExhaustedError:
            continue
        return
    raise AssertionError("never given back")


def test_memory_of_this_process_has_a_limit(shared: Pair) -> None:
    with pytest.raises(remote.ResourceExhaustedError, match="TENSORWIRE_SHARED_MEMORY_BYTES"):
        shared.host.empty(1 << 50, "uint8", rights=Rights.READ)
    for shape in ((1 << 62, 1 << 62), (-1,)):
        with pytest.raises(ValueError, match="shape"):
            shared.host.empty(shape, rights=Rights.READ)


def test_a_host_that_lends_no_memory() -> None:
    with (
        pair("shm") as there,
        pytest.raises(remote.PermissionDeniedError, match="may_allocate"),
    ):
        there.device.allocate(4)


def test_a_tensor_is_open_until_it_is_closed_as_often(shared: Pair) -> None:
    exposed, one = shared.opened(4)
    two = shared.device.open(exposed.handle)
    one.close()
    one.close()
    assert two.read().tolist() == [0, 0, 0, 0]
    two.close()
    with pytest.raises(remote.NotFoundError):
        two.read()
    assert shared.device.open(exposed.handle).read().tolist() == [0, 0, 0, 0]


def test_what_was_not_concealed_in_time_is_opened_anew(
    shared: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed, tensor = shared.opened(4)

    def late(*arguments: Any) -> None:
        conceal(*arguments)
        raise remote.DeadlineExceededError("amid an access")

    with monkeypatch.context() as patch:
        patch.setattr("tensorwire.remote.exposed.conceal", late)
        with pytest.raises(remote.DeadlineExceededError):
            tensor.close()
    again = shared.device.open(exposed.handle)
    tensor.close()  # waits on, and takes nothing from what was opened since
    again.write(np.ones(4, np.float32), signal=remote.Add())
    assert exposed.signal.wait(1, PATIENCE) == 1
    again.close()
    assert not exposed._grants
    assert not exposed._leaving


def test_what_was_not_given_back_in_time_is_given_back_again(
    shared: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(shared.host._allocations)
    device = remote.connect(shared.device.peer)
    tensors = [device.allocate(4, "float32") for _ in range(3)]
    ask = remote.Device._ask
    late = [True, True]

    def asked(*arguments: Any) -> Any:
        if late:
            late.pop()
            raise remote.DeadlineExceededError("no answer in time")
        return ask(*arguments)

    monkeypatch.setattr(remote.Device, "_ask", asked)
    with pytest.raises(remote.DeadlineExceededError):
        tensors[2].close()
    with pytest.raises(remote.DeadlineExceededError):
        device.close()
    assert len(set(shared.host._allocations) - before) == 1  # one went though another did not
    tensors[2].close()
    device.close(PATIENCE)
    assert set(shared.host._allocations) == before


@pytest.mark.parametrize("interrupt", [False, True], ids=["late", "interrupt"])
@pytest.mark.parametrize("what", ["open", "allocate"])
def test_what_is_opened_too_late_is_given_back(
    shared: Pair, monkeypatch: pytest.MonkeyPatch, what: str, interrupt: bool
) -> None:
    before = set(shared.host._allocations)
    exposed = shared.host.empty(4, "float32", rights=ALL)
    go, done = threading.Event(), threading.Event()
    real = getattr(remote.Host, what)

    def late(*arguments: Any) -> Any:
        assert go.wait(PATIENCE)
        try:
            return real(*arguments)
        finally:
            done.set()

    with monkeypatch.context() as patch:
        patch.setattr(remote.Host, what, late)
        with ending(interrupt):
            if what == "open":
                shared.device.open(exposed.handle, timeout=0.01)
            else:
                shared.device.allocate(4, "float32", name="late", timeout=0.01)
        go.set()
        assert done.wait(PATIENCE)
    eventually(lambda: not exposed._grants and set(shared.host._allocations) == before)
    shared.device.allocate(4, "float32", name="late").close()
    exposed.conceal()


def test_what_a_coroutine_opens_too_late_is_given_back(
    shared: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(shared.host._allocations)
    go, done = threading.Event(), threading.Event()
    real = remote.Host.allocate

    def late(*arguments: Any) -> Any:
        assert go.wait(PATIENCE)
        try:
            return real(*arguments)
        finally:
            done.set()

    with monkeypatch.context() as patch:
        patch.setattr(remote.Host, "allocate", late)
        with pytest.raises(remote.DeadlineExceededError):
            asyncio.run(shared.device.allocate_async(4, "float32", timeout=0.01))
        go.set()
        assert done.wait(PATIENCE)
    eventually(lambda: set(shared.host._allocations) == before)


def test_a_device_is_closed_without_a_limit(shared: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the owner says again and again that a peer is amid an access."""
    before = set(shared.host._allocations)
    device = remote.connect(shared.device.peer)
    device.allocate(4, "float32")
    ask = remote.Device._ask
    late = [True] * 3

    def asked(*arguments: Any) -> Any:
        if late:
            late.pop()
            raise remote.DeadlineExceededError("amid an access")
        return ask(*arguments)

    monkeypatch.setattr(remote.Device, "_ask", asked)
    device.close(None)
    assert not late
    assert set(shared.host._allocations) == before


def test_a_close_whose_answer_was_late_takes_no_other_tensor_away(
    shared: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed, one = shared.opened(4)
    two = shared.device.open(exposed.handle)
    ask = remote.Device._ask

    def asked(*arguments: Any) -> Any:
        ask(*arguments)
        raise remote.DeadlineExceededError("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(remote.Device, "_ask", asked)
        with pytest.raises(remote.DeadlineExceededError):
            one.close()
    one.close()
    assert two.read().tolist() == [0, 0, 0, 0]
    two.close()
    assert not exposed._grants


def test_what_devices_on_one_link_open_is_counted(shared: Pair) -> None:
    exposed, one = shared.opened(4)
    again = remote.connect(shared.device.peer)
    two = again.open(exposed.handle)
    again.close()
    assert one.read().tolist() == two.read().tolist() == [0, 0, 0, 0]
    one.close()
    with pytest.raises(remote.NotFoundError):
        two.read()


def test_a_host_is_closed_and_another_made() -> None:
    with served() as (server, target):
        host = remote.host(server)
        with pytest.raises(ValueError, match="has a host"):
            remote.host(server)
        with remote.connect(target) as device:
            exposed = host.empty(4, rights=Rights.READ)
            tensor = device.open(exposed.handle)
            host.close()
            for call in (tensor.read, lambda: device.open("x")):
                with pytest.raises(remote.RemoteError):
                    call()
            with pytest.raises(remote.RemoteError, match="the host was closed"):
                host.empty(4, rights=Rights.READ)
        with remote.host(server) as again, remote.connect(target) as device:
            with again.empty(2, rights=Rights.READ) as exposed:
                assert device.open(exposed.handle).read().tolist() == [0, 0]
            with pytest.raises(remote.NotFoundError, match="another host"):
                device.open(tensor.handle)


def test_a_process_without_a_host_says_so() -> None:
    with served() as (_, target), pytest.raises(remote.RemoteError, match=r"no remote\.host"):
        remote.connect(target, timeout=PATIENCE)


def test_nobody_there() -> None:
    with pytest.raises(remote.RemoteError, match=r"127\.0\.0\.1:1"):
        remote.connect("127.0.0.1:1", timeout=0.5)


def test_a_link_is_needed() -> None:
    with served() as (server, target), remote.host(server):
        with pytest.raises(ValueError, match="none is permitted"):
            remote.connect(target, transport="grpc")
        with (
            tw.insecure_channel(target, transport="grpc") as channel,
            pytest.raises(remote.RemoteError, match="came by gRPC"),
        ):
            remote.connect(channel)
        with tw.insecure_channel(target, transport="tcp") as channel:
            with remote.connect(channel) as device:
                assert device.path().way == "frames"
            assert channel.peer() == device.peer  # it stays open: it is not ours


def test_a_client_serves_its_memory_to_the_server() -> None:
    """The same link, the other way round."""
    arrived: list[tw.Peer] = []
    with served() as (home, _), served() as (server, target), remote.host(home) as host:

        def meet(request: bytes, context: grpc.ServicerContext) -> bytes:
            peer = tw.peer_of(context)
            assert peer is not None
            arrived.append(peer)
            return b""

        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "t.Meet", {"Meet": grpc.unary_unary_rpc_method_handler(meet)}
                )
            ]
        )
        exposed = host.empty(4, "int32", rights=Rights.READ, name="mine")
        exposed.array[:] = 9
        with tw.insecure_channel(target, transport="shm", serves=home) as channel:
            method: Any = channel.unary_unary("/t.Meet/Meet")
            method(b"", timeout=PATIENCE)
            with remote.connect(arrived[0]) as device:
                assert device.open("mine").read().tolist() == [9, 9, 9, 9]


def test_who_does_not_answer_is_told_with_the_reason() -> None:
    said = r"127\.0\.0\.1:1 does not answer \(Connection refused\): see whether the server"
    for forbid in ((), "shm"):
        with pytest.raises(remote.DeadlineExceededError, match=said):
            remote.connect("127.0.0.1:1", forbid=forbid, timeout=0.1)
    with (
        tw.insecure_channel("127.0.0.1:1") as channel,
        pytest.raises(remote.DeadlineExceededError, match=said),
    ):
        remote.connect(channel, timeout=0.1)


def test_a_server_of_stock_grpc_is_told_what_it_lacks() -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            with tw.insecure_channel(target) as channel:
                for way in (target, channel):
                    with pytest.raises(
                        remote.RemoteError, match=rf"{target} is no tensorwire server .* needs"
                    ) as raised:
                        remote.connect(way, timeout=PATIENCE)
                    assert raised.value.code == FAILED_PRECONDITION
        finally:
            server.stop(None)
    with (
        served() as (_, target),
        pytest.raises(remote.RemoteError, match=r"has no remote\.host\(server\)"),
    ):
        remote.connect(target, timeout=PATIENCE)


def test_an_interceptor_refuses_strangers() -> None:
    class Guard(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            if details.method.startswith("/tensorwire.v1.Remote/Open"):
                return grpc.unary_unary_rpc_method_handler(
                    lambda _, context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
                )
            return continuation(details)

    with served(interceptors=[Guard()]) as (server, target), remote.host(server) as host:
        exposed = host.empty(4, rights=Rights.READ)
        with (
            remote.connect(target) as device,
            pytest.raises(remote.PermissionDeniedError, match="not you"),
        ):
            device.open(exposed.handle)


@pytest.mark.parametrize("method", ["Open", "Allocate", "Close", "Attach", "Detach"])
@pytest.mark.parametrize("request_", [b"", b"\xc1", b"\x80" * 20, bytes(1 << 20)])
def test_a_request_that_is_none_is_refused(shared: Pair, method: str, request_: bytes) -> None:
    call: Any = shared.device.peer.unary_unary(f"/{messages.SERVICE}/{method}")
    with pytest.raises(grpc.RpcError) as raised:
        call(request_, timeout=PATIENCE)
    if not (method == "Open" and request_ == b"\x80" * 20):
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    exposed, tensor = shared.opened(2)
    assert tensor.read().tolist() == exposed.array.tolist()


@pytest.mark.parametrize(
    "asked",
    [
        messages.Open(),
        messages.Open("name", Handle(b"i" * 16, 1, 0, (1,), (4,), "float32")),
        messages.Allocate((1,), "object"),
        messages.Allocate((1,), "no such"),
        messages.Allocate((1 << 62, 1 << 62), "float32"),
        messages.Allocate((1,), "float32", "x" * 300),
        messages.Allocate((1,), "float32", None, 9),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(shared: Pair, asked: msgspec.Struct) -> None:
    call: Any = shared.device.peer.unary_unary(f"/{messages.SERVICE}/{type(asked).__name__}")
    with pytest.raises(grpc.RpcError) as raised:
        call(messages.encode(asked), timeout=PATIENCE)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_giving_back_what_is_another_ones_has_no_effect(shared: Pair) -> None:
    mine = shared.device.allocate(4)
    with remote.connect(shared.target, transport="tcp") as other:
        other._ask("Close", messages.Close(mine.handle.number, 1), None, PATIENCE)
        other._ask("Close", messages.Close(12345, 1), None, PATIENCE)
    assert mine.read().tolist() == [0, 0, 0, 0]


def test_an_owner_that_lies_of_its_tensors_is_not_believed(
    shared: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed, _ = shared.opened(4)
    handle = Handle(exposed.handle.instance, 1, 0, (1 << 40,), (4,), "float32")
    whole = remote.Exposed.open

    def lying(self: remote.Exposed, native: Any) -> messages.Opened:
        said = whole(self, native)
        return messages.Opened(handle, said.region, said.signal, said.rights, said.opening)

    monkeypatch.setattr(remote.Exposed, "open", lying)
    with pytest.raises(remote.RemoteError, match="has opened 16 bytes as a tensor of"):
        shared.device.open(exposed.handle)
