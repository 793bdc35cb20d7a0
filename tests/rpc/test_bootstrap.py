# SPDX-License-Identifier: Apache-2.0
"""Bootstrap/Open: what a client makes of each answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgspec
import pytest
from tests.rpc.pairings import local
from tests.rpc.service import LIMIT_SECONDS, path
from tests.rpc.test_open import ask

import tensorwire
from tensorwire import _core, environment
from tensorwire.rpc import bootstrap, target
from tensorwire.rpc.client import attempt


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
        ("10.0.0.7:1", "tcp:10.0.0.7", False),
        ("10.0.0.7:1", "tcp:10.0.0.7:0", False),
        ("10.0.0.7:1", "tcp:10.0.0.7:4000\n", False),
        ("::1", "tcp:::1:4000", False),
        ("unix:/a", "tcp::4000", False),
        ("10.0.0.7:1", "shm:/run/user/1000/tensorwire-link-ab12cd/s", True),
        ("10.0.0.7:1", "shm:/var/run/docker.sock", False),
        ("10.0.0.7:1", "shm:/tmp/tensorwire-link-ab12cd/../../var/run/docker/s", False),
    ],
)
def test_addresses_are_followed_on_the_host_that_was_called(
    monkeypatch: pytest.MonkeyPatch, dialled: str, address: str, followed: bool
) -> None:
    monkeypatch.setenv(environment.DATA_HOSTS, "192.0.2.0/24, 2001:db8::8")
    why_not = attempt._why_not_followed(address, target.parse(dialled))
    assert (why_not is None) == followed


@pytest.mark.parametrize("rest", [":x", ":-1", "::1:1", ":" + "9" * 400, "127.0.0.1:70000"])
def test_addresses_that_are_none_are_said_so(fake: Any, rest: str) -> None:
    """The channel stays with gRPC, and tells why."""
    fake.answer = lambda _, __: answer_with(addresses=[f"tcp:{rest}"])
    with tensorwire.insecure_channel(fake.target) as channel:
        assert echo(channel) == b"x"
        assert "is no address of a data plane" in channel.path().reasons["tcp"]


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
