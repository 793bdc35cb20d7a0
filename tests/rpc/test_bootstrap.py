# SPDX-License-Identifier: Apache-2.0
"""Bootstrap/Open: what the server answers to whom, and what the client makes of each answer."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
import msgspec
import pytest
from tests.rpc.pairings import Local, local
from tests.rpc.service import LIMIT_SECONDS, path

import tensorwire
from tensorwire import _core, environment
from tensorwire.observe import audit
from tensorwire.rpc import bootstrap, choice, grpc_internals, target
from tensorwire.rpc.client import opening
from tensorwire.transports import names, why_not

# ------------------------------------------------------------------------------- the server's side


OFFERED = [name for name in names() if why_not(name) is None]


def ask(target: str, request: bytes) -> Any:
    with grpc.insecure_channel(target) as channel:
        method: Any = channel.unary_unary(bootstrap.METHOD)
        return method(request)


def refused(target: str, request: bytes) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        ask(target, request)
    return caught.value


def test_answer() -> None:
    with local("tensorwire") as server:
        answers = [msgspec.msgpack.decode(ask(server.target, _core.hello())) for _ in range(2)]
    first, second = answers
    assert set(first) == {
        "hello",
        "instance",
        "session",
        "secret",
        "ttl",
        "connections",
        "addresses",
    }
    assert [len(first[name]) for name in ("instance", "session", "secret")] == [16, 16, 32]
    assert _core.parse_hello(first["hello"]).same_host
    assert [address.partition(":")[0] for address in first["addresses"]] == OFFERED
    assert first["addresses"] == second["addresses"]
    assert first["instance"] == second["instance"]
    assert first["session"] != second["session"]
    assert first["secret"] != second["secret"]
    assert first["ttl"] == 30


@pytest.mark.parametrize("request_", [b"", b"hello", b"\0" * 96, b"\xff" * 5000])
def test_request_that_is_no_hello(request_: bytes) -> None:
    with local("tensorwire") as server:
        error = refused(server.target, request_)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details()
        with tensorwire.insecure_channel(server.target) as channel:
            assert channel.path().transport == "shm"


def test_request_in_versions_that_the_server_does_not_speak() -> None:
    hello = bytearray(_core.hello())
    hello[8:12] = struct.pack("<HH", 60_000, 60_001)
    with local("tensorwire") as server:
        error = refused(server.target, bytes(hello))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "60000" in error.details()


def test_secure_port_mints_nothing() -> None:
    """Also when the same server has an insecure port."""
    with local("tensorwire") as server:
        credentials = grpc.local_server_credentials()
        with ThreadPoolExecutor(2) as pool:
            both = tensorwire.server(pool)
            both.add_insecure_port("127.0.0.1:0")
            secure = both.add_secure_port("127.0.0.1:0", credentials)
            both.start()
            try:
                with grpc.secure_channel(
                    f"127.0.0.1:{secure}", grpc.local_channel_credentials()
                ) as channel:
                    method: Any = channel.unary_unary(bootstrap.METHOD)
                    with pytest.raises(grpc.RpcError) as caught:
                        method(_core.hello())
            finally:
                both.stop(None)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "secure" in error.details()
        assert server.server.paths() == []


class Facts(NamedTuple):
    same_host: bool
    same_user: bool


class Core:
    """A native server that only says where it listens."""

    def listen_local(self) -> str:
        return "/tmp/x/data"

    def listen_tcp(self, host: str, port: int) -> int:
        return 4000


ANYWHERE = Facts(False, True)
HERE = Facts(True, True)


@pytest.mark.parametrize(
    ("bound", "client", "peer", "addresses"),
    [
        ("127.0.0.1:1", HERE, "127.0.0.1", ["shm:/tmp/x/data", "tcp:127.0.0.1:4000"]),
        ("127.0.0.1:1", Facts(True, False), "127.0.0.1", ["tcp:127.0.0.1:4000"]),
        ("127.0.0.1:1", ANYWHERE, "10.9.9.9", []),
        ("10.0.0.7:1", ANYWHERE, "10.9.9.9", ["tcp:10.0.0.7:4000"]),
        ("10.0.0.7:1", HERE, "10.0.0.7", ["shm:/tmp/x/data", "tcp:10.0.0.7:4000"]),
        ("0.0.0.0:1", ANYWHERE, "127.0.0.1", ["tcp:127.0.0.1:4000"]),
        ("[::]:1", ANYWHERE, "127.0.0.1", ["tcp:127.0.0.1:4000"]),
        ("[::]:1", ANYWHERE, "::1", ["tcp:[::1]:4000"]),
        ("[::]:1", ANYWHERE, "not a number", ["tcp::4000"]),
        ("unix:/a", HERE, "", ["shm:/tmp/x/data"]),
    ],
)
def test_addresses(bound: str, client: Any, peer: str, addresses: list[str]) -> None:
    listeners = bootstrap.Listeners(Core(), choice.policy(None, ["verbs"]), 0)  # type: ignore[arg-type]
    listeners.listen(bound)
    assert listeners.addresses(client, peer) == addresses


@pytest.mark.parametrize(
    ("bound", "client", "peer", "addresses"),
    [
        ("127.0.0.1:1", ANYWHERE, "10.9.9.9", []),
        ("10.0.0.7:1", ANYWHERE, "10.9.9.9", ["tcp:node7:4000"]),
        ("0.0.0.0:1", ANYWHERE, "10.9.9.9", ["tcp:node7:4000"]),
        ("0.0.0.0:1", HERE, "10.9.9.9", ["shm:/tmp/x/data", "tcp:node7:4000"]),
        ("0.0.0.0:1", ANYWHERE, "127.0.0.1", ["tcp:127.0.0.1:4000", "tcp:node7:4000"]),
    ],
)
def test_advertised_host(bound: str, client: Any, peer: str, addresses: list[str]) -> None:
    listeners = bootstrap.Listeners(
        Core(),  # type: ignore[arg-type]
        choice.policy(None, ["verbs"]),
        0,
        "node7",
    )
    listeners.listen(bound)
    assert listeners.addresses(client, peer) == addresses


@pytest.mark.parametrize(("transport", "data_port"), [("tcp", 0), (None, 4000)])
def test_unix_server_opens_a_port_that_is_asked_for(transport: str | None, data_port: int) -> None:
    listeners = bootstrap.Listeners(
        Core(),  # type: ignore[arg-type]
        choice.policy(transport, ["verbs"]),
        data_port,
    )
    listeners.listen("unix:/a")
    assert "tcp:127.0.0.1:4000" in listeners.addresses(HERE, "")  # type: ignore[arg-type]


def test_wildcard_names_the_dialled_host_and_the_interface() -> None:
    listeners = bootstrap.Listeners(Core(), choice.policy("tcp", ()), 0)  # type: ignore[arg-type]
    listeners.listen("0.0.0.0:1")
    dialled, *interfaces = listeners.addresses(ANYWHERE, "192.0.2.1")  # type: ignore[arg-type]
    assert dialled == "tcp::4000"
    for interface in interfaces:  # none on a machine without any route
        assert interface.startswith("tcp:")
        assert interface.endswith(":4000")


class BrokenCore:
    """A native server that cannot listen anywhere."""

    def listen_local(self) -> str:
        _core.parse_hello(b"")  # any error of the runtime
        raise AssertionError

    def listen_tcp(self, host: str, port: int) -> int:
        _core.parse_hello(b"")
        raise AssertionError


def test_server_that_cannot_listen_goes_without(caplog: pytest.LogCaptureFixture) -> None:
    listeners = bootstrap.Listeners(BrokenCore(), choice.policy(None, ()), 0)  # type: ignore[arg-type]
    listeners.listen("127.0.0.1:1")
    assert listeners.addresses(HERE, "127.0.0.1") == []  # type: ignore[arg-type]
    assert len(caplog.records) == 2
    assert "clients are not offered " in caplog.text
    assert "tcp there" in caplog.text


@pytest.mark.parametrize(("transport", "data_port"), [("shm", 0), ("tcp", 0), (None, 4000)])
def test_server_that_cannot_listen_where_it_has_to(transport: str | None, data_port: int) -> None:
    listeners = bootstrap.Listeners(
        BrokenCore(),  # type: ignore[arg-type]
        choice.policy(transport, ()),
        data_port,
    )
    with pytest.raises(RuntimeError, match="cannot listen at"):
        listeners.listen("127.0.0.1:1")


# ------------------------------------------------------------------------------- the client's side


class FakeServer:
    """A stock server whose Open is the test's."""

    def __init__(self) -> None:
        self.opens = 0
        self.answer: Callable[[bytes, grpc.ServicerContext], bytes] = lambda _, __: b""

    def open(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.opens += 1
        return self.answer(request, context)

    def handler(self) -> grpc.GenericRpcHandler:
        service, _, method = bootstrap.METHOD[1:].partition("/")
        return grpc.method_handlers_generic_handler(
            service, {method: grpc.unary_unary_rpc_method_handler(self.open)}
        )


@pytest.fixture
def fake() -> Iterator[Any]:
    fake: Any = FakeServer()
    with local("stock", handlers=[fake.handler()]) as server:
        fake.target = server.target
        yield fake


def echo(channel: Any, **options: Any) -> Any:
    return channel.unary_unary(path("echo"))(b"x", **options)


def aborting(code: grpc.StatusCode) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, "not today")
        raise AssertionError

    return answer


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INTERNAL,
    ],
)
def test_refusal_is_for_the_metadata(fake: Any, code: grpc.StatusCode) -> None:
    refuse = aborting(code)
    with local("tensorwire") as real, tensorwire.insecure_channel(fake.target) as channel:

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if ("x-token", "secret") not in context.invocation_metadata():
                return refuse(request, context)
            reply: bytes = ask(real.target, request)
            return reply

        fake.answer = answer
        assert echo(channel) == b"x"
        assert channel.path().transport == "grpc"
        assert f"{code.name}: not today" in channel.path().reasons["shm"]
        assert echo(channel, metadata=(("x-token", "secret"),)) == b"x"
        assert channel.path().transport == "shm"


def test_a_server_without_a_data_plane_is_not_asked_again(fake: Any) -> None:
    fake.answer = aborting(grpc.StatusCode.UNIMPLEMENTED)
    with tensorwire.insecure_channel(fake.target) as channel:
        for _ in range(3):
            assert echo(channel) == b"x"
        assert channel.path().transport == "grpc"
        assert "not today" in channel.path().reasons["shm"]
    assert fake.opens == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xc1",
        b"not msgpack at all",
        msgspec.msgpack.encode({"hello": b""}),
        msgspec.msgpack.encode([1, 2, 3]),
    ],
)
def test_malformed_answer(fake: Any, answer: bytes) -> None:
    fake.answer = lambda _, __: answer
    with tensorwire.insecure_channel(fake.target) as channel:
        assert echo(channel) == b"x"
        assert "malformed" in channel.path().reasons["tcp"]


def answer_with(**changed: Any) -> bytes:
    fields = {
        "hello": _core.hello(),
        "instance": bytes(16),
        "session": bytes(16),
        "secret": bytes(32),
        "ttl": 30.0,
        "connections": 1,
        "addresses": [],
    }
    return msgspec.msgpack.encode(fields | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"secret": bytes(31)},
        {"instance": bytes(17)},
        {"session": b""},
        {"hello": bytes(5000)},
        {"addresses": ["tcp:127.0.0.1:1"] * 33},
        {"addresses": ["tcp:" + "x" * 600]},
        {"addresses": [b"tcp:1"]},
        {"connections": "many"},
    ],
)
def test_answer_with_a_wrong_field(fake: Any, changed: dict[str, Any]) -> None:
    fake.answer = lambda _, __: answer_with(**changed)
    with tensorwire.insecure_channel(fake.target) as channel:
        assert echo(channel) == b"x"
        assert "malformed" in channel.path().reasons["tcp"]


def test_hello_that_the_client_does_not_understand(fake: Any) -> None:
    fake.answer = lambda _, __: answer_with(hello=b"what?")
    with tensorwire.insecure_channel(fake.target) as channel:
        assert echo(channel) == b"x"
        assert channel.path().transport == "grpc"


def test_addresses_that_nobody_listens_at(fake: Any, tmp_path: Any) -> None:
    fake.answer = lambda _, __: answer_with(
        addresses=[f"shm:{tmp_path}/nothing", "tcp:127.0.0.1:1", "pigeon:loft"]
    )
    with tensorwire.insecure_channel(fake.target) as channel:
        assert echo(channel) == b"x"
        path = channel.path()
        assert path.transport == "grpc"
        assert "nothing" in path.reasons["shm"]
        assert "127.0.0.1:1" in path.reasons["tcp"]


def test_another_server_at_the_address() -> None:
    """The data plane that answers there does not know the secret, and is not believed."""
    fake = FakeServer()
    with local("tensorwire") as other, local("stock", handlers=[fake.handler()]) as server:
        theirs = msgspec.msgpack.decode(ask(other.target, _core.hello()))
        wrong = answer_with(addresses=theirs["addresses"], instance=theirs["instance"])
        fake.answer = lambda _, __: wrong
        with tensorwire.insecure_channel(server.target) as channel:
            assert echo(channel) == b"x"
            assert channel.path().transport == "grpc"
            assert "UNAUTHENTICATED" in channel.path().reasons["tcp"]


def test_slow_open_holds_the_first_call_up_for_a_while_only(fake: Any) -> None:
    """Later calls do not wait at all; the channel is upgraded once the answer has come."""
    go = threading.Event()

    with local("tensorwire") as real, contextlib.ExitStack() as stack:
        stack.callback(go.set)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            go.wait(LIMIT_SECONDS)
            reply: bytes = ask(real.target, request)
            return reply

        fake.answer = answer
        channel = stack.enter_context(tensorwire.insecure_channel(fake.target))
        for _ in range(3):
            assert echo(channel) == b"x"
        assert fake.opens == 1
        assert channel.stats()["transport"] is None
        go.set()
        while channel.stats()["opened"] == 0:
            echo(channel)
        assert echo(channel) == b"x"
        assert channel.path().transport == "shm"


def test_short_timeouts_leave_time_for_the_call(fake: Any) -> None:
    go = threading.Event()
    fake.answer = lambda _, __: str(go.wait(LIMIT_SECONDS)).encode()
    try:
        with tensorwire.insecure_channel(fake.target) as channel:
            assert echo(channel, timeout=0.6) == b"x"
    finally:
        go.set()


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ],
)
def test_transient_refusal_is_tried_again(fake: Any, code: grpc.StatusCode) -> None:
    with local("tensorwire") as real:
        real_answer = lambda request, _: ask(real.target, request)  # noqa: E731
        unavailable = aborting(code)
        fake.answer = lambda request, context: (unavailable if fake.opens <= 2 else real_answer)(
            request, context
        )
        with tensorwire.insecure_channel(fake.target) as channel:
            assert echo(channel) == b"x"
            assert channel.path().transport == "grpc"
            assert f"{code.name}: not today" in channel.path().reasons["shm"]
            while channel.stats()["opened"] == 0:
                assert echo(channel) == b"x"
            assert channel.path().transport == "shm"
    assert fake.opens == 3


def test_text_of_a_refusal_stays_on_its_line(fake: Any, caplog: pytest.LogCaptureFixture) -> None:
    def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no\nERROR forged \x1b[2J")
        raise AssertionError

    fake.answer = answer
    with (
        caplog.at_level("INFO", "tensorwire"),
        tensorwire.insecure_channel(fake.target) as channel,
    ):
        assert channel.path().transport == "grpc"
    (told,) = [line for line in caplog.messages if "forged" in line]
    assert r"no\nERROR forged \x1b[2J" in told


@pytest.mark.parametrize(
    ("dialled", "address", "followed"),
    [
        ("127.0.0.1:1", "tcp:127.0.0.1:4000", True),
        ("localhost:1", "tcp:127.0.0.1:4000", True),
        ("dns:///localhost:1", "verbs:127.0.0.1:4000", True),
        ("10.0.0.7:1", "tcp:10.0.0.7:4000", True),
        ("ipv6:[2001:db8::7]:1", "tcp:[2001:db8::7]:4000", True),
        ("unix:/a", "tcp:127.0.0.1:4000", True),
        ("unix:/a", "tcp:10.0.0.7:4000", False),
        ("10.0.0.7:1", "tcp:10.0.0.8:4000", False),
        ("10.0.0.7:1", "tcp:127.0.0.1:4000", False),
        ("10.0.0.7:1", "tcp:169.254.169.254:80", False),
        ("10.0.0.7:1", "tcp:192.0.2.9:4000", True),
        ("10.0.0.7:1", "tcp:[2001:db8::8]:4000", True),
        ("10.0.0.7:1", "shm:/run/user/1000/tensorwire-link-ab12cd/s", True),
        ("10.0.0.7:1", "shm:/var/run/docker.sock", False),
        ("10.0.0.7:1", "shm:/tmp/tensorwire-link-ab12cd/../../var/run/docker/s", False),
    ],
)
def test_addresses_are_followed_on_the_host_that_was_called(
    monkeypatch: pytest.MonkeyPatch, dialled: str, address: str, followed: bool
) -> None:
    monkeypatch.setenv(environment.DATA_HOSTS, "192.0.2.0/24, 2001:db8::8")
    why_not = opening._why_not_followed(address, target.parse(dialled))
    assert (why_not is None) == followed


def test_addresses_elsewhere_are_not_called(fake: Any) -> None:
    fake.answer = lambda _, __: answer_with(addresses=["tcp:192.0.2.1:9", "tcp:192.0.2.1:10"])
    with tensorwire.insecure_channel(fake.target) as channel:
        assert echo(channel) == b"x"
        assert "TENSORWIRE_DATA_HOSTS=192.0.2.1" in channel.path().reasons["tcp"]


def why_not_tcp(channel: Any) -> str:
    """Once an address has been tried, however long that takes."""
    while "tcp:127." not in (why := str(channel.path().reasons["tcp"])):
        assert echo(channel) == b"x"
    return why


def test_advertised_host_is_followed_where_the_client_permits_it(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a load balancer: the data plane is at another address than the one dialled."""
    with local("tensorwire", address="0.0.0.0:0", forbid="shm", advertise_host="127.0.0.2") as real:

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            fields = msgspec.msgpack.decode(ask(real.target, request))
            assert fields["addresses"][-1].startswith("tcp:127.0.0.2:")
            return msgspec.msgpack.encode(fields | {"addresses": fields["addresses"][-1:]})

        fake.answer = answer
        with tensorwire.insecure_channel(fake.target) as channel:
            assert f"{environment.DATA_HOSTS}=127.0.0.2" in why_not_tcp(channel)
        monkeypatch.setenv(environment.DATA_HOSTS, "127.0.0.2")
        with tensorwire.insecure_channel(fake.target) as channel:
            while channel.stats()["opened"] == 0:
                assert echo(channel) == b"x"
            assert channel.path().peer.startswith("ipv4:127.0.0.2:")


def test_a_data_port_that_is_closed_comes_with_its_remedy(fake: Any) -> None:
    fake.answer = lambda _, __: answer_with(addresses=["tcp:127.0.0.1:1"])
    with tensorwire.insecure_channel(fake.target) as channel:
        assert "its data_port and advertise_host" in why_not_tcp(channel)


def test_a_secret_opens_one_link() -> None:
    with local("tensorwire") as server:
        answer = msgspec.msgpack.decode(ask(server.target, _core.hello()))
        assert answer["connections"] == 1

        def connect(name: str) -> _core.Peer:
            address = next(a for a in answer["addresses"] if a.startswith(f"{name}:"))
            return _core.connect(
                address,
                answer["session"],
                answer["secret"],
                answer["instance"],
                answer["hello"],
                LIMIT_SECONDS,
            )

        link = connect("tcp")
        for name in ("tcp", "shm"):
            with pytest.raises(_core.StatusError) as caught:
                connect(name)
            assert caught.value.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
        assert link.alive
        link.close()


def test_whoever_asks_for_invitations_without_end_shuts_nobody_out() -> None:
    """Even one from the same address, which is the nearest that it can get."""
    with local("tensorwire") as server:
        core = server.server._core
        evicted = audit.counts()["eviction", "session"]
        for _ in range(5000):
            core.admit(_core.hello(), 1, 30.0, "127.0.0.1")
        assert audit.counts()["eviction", "session"] >= evicted + 5000 - 4096
        for transport in OFFERED:
            with tensorwire.insecure_channel(
                server.target,
                transport=transport,  # type: ignore[arg-type]
            ) as channel:
                assert echo(channel) == b"x"


def test_one_open_for_many_first_calls(fake: Any) -> None:
    with local("tensorwire") as real:
        fake.answer = lambda request, _: ask(real.target, request)
        with (
            tensorwire.insecure_channel(fake.target) as channel,
            ThreadPoolExecutor(16) as pool,
        ):
            assert list(pool.map(lambda _: echo(channel), range(16))) == [b"x"] * 16
            assert channel.stats()["opened"] == 1
    assert fake.opens == 1


def test_open_is_answered_while_all_threads_are_busy() -> None:
    with (
        local("tensorwire", workers=1) as server,
        grpc.insecure_channel(server.target) as stock,
        tensorwire.insecure_channel(server.target) as channel,
    ):
        pass_gate: Any = stock.unary_unary(path("pass_gate"))
        busy = pass_gate.future(b"gate")
        server.service.diary.read("gate started")
        assert channel.path().transport == "shm"
        server.service.gates["gate"].set()
        assert busy.result(LIMIT_SECONDS) == b"passed"


class Around(grpc.ServerInterceptor):
    """As tools do that wrap each handler."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: handler.unary_unary(request, context),
            handler.request_deserializer,
            handler.response_serializer,
        )


@pytest.fixture(params=["ours", "wrapped", "unknown grpcio"])
def answering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """A server. Of a grpcio that it does not know, threads wait for the requests of Open."""
    if request.param == "unknown grpcio":
        monkeypatch.setattr(grpc_internals, "_RESPOND", None)
    interceptors = [Around()] if request.param == "wrapped" else []
    with local("tensorwire", interceptors=interceptors) as server:
        yield server


def test_open_is_answered_whoever_stands_around_it(answering: Local) -> None:
    for _ in range(3):
        assert "addresses" in msgspec.msgpack.decode(ask(answering.target, _core.hello()))
    assert refused(answering.target, b"no hello").code() is grpc.StatusCode.INVALID_ARGUMENT


@contextlib.contextmanager
def half_opens(target: str, count: int) -> Iterator[list[Any]]:
    """Calls of Open whose request does not come."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with grpc.insecure_channel(target) as channel:
        begin: Any = channel.stream_unary(bootstrap.METHOD)
        calls = [begin.future(nothing()) for _ in range(count)]
        try:
            yield calls
        finally:
            for call in calls:
                call.cancel()
            over.set()


@pytest.mark.parametrize("answering", ["ours", "wrapped"], indirect=True)
def test_an_open_whose_request_does_not_come_keeps_nobody_out(answering: Local) -> None:
    with (
        half_opens(answering.target, 20) as calls,
        grpc.insecure_channel(answering.target) as stock,
    ):
        method: Any = stock.unary_unary(bootstrap.METHOD)
        for _ in range(2):
            assert method(_core.hello(), timeout=LIMIT_SECONDS)
            assert not any(call.done() for call in calls)
            for call in calls[::2]:  # nor do those that are given up
                call.cancel()
            calls = calls[1::2]


def test_an_open_without_a_request_is_refused_as_any_call(answering: Local) -> None:
    ends = []
    with grpc.insecure_channel(answering.target) as stock:
        for name in (bootstrap.METHOD, path("echo")):
            with pytest.raises(grpc.RpcError) as caught:
                stock.stream_unary(name)(iter(()), timeout=LIMIT_SECONDS)
            error: Any = caught.value
            ends.append((error.code(), error.details().replace(name, "")))
    assert ends[0] == ends[1]


def test_open_starts_no_thread() -> None:
    with local("tensorwire") as server, grpc.insecure_channel(server.target) as stock:
        method: Any = stock.unary_unary(bootstrap.METHOD)
        method(_core.hello())
        before = set(threading.enumerate())
        futures = [method.future(_core.hello()) for _ in range(50)]
        assert all(future.result(LIMIT_SECONDS) for future in futures)
        started = {thread.name for thread in set(threading.enumerate()) - before}
        assert not {name for name in started if name.startswith("tensorwire")}
