# SPDX-License-Identifier: Apache-2.0
"""Generated stubs and servicers with the codec at both ends, at one, and with stock gRPC."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from tests.protobuf.conftest import Generated
from tests.rpc.pairings import PAIRINGS, Pairing, local
from tests.rpc.service import path

import tensorwire
from tensorwire import _core, protobuf
from tensorwire.protobuf import LARGE, Attached
from tensorwire.protobuf.codec import Codec

SIZE = LARGE + 1000


def everything(code: Generated, seed: int = 0) -> Any:
    """An ordinary message with small and large bytes in all kinds of places."""
    large = bytes(range(seed, seed + 100)) * (SIZE // 100 + 1)
    return code.everything.Everything(
        name="name",
        data=large,
        maybe=b"",
        parts=[b"small", large, b"", large[1:]],
        blob={"data": large, "name": "blob"},
        blobs=[{"name": "first"}, {"data": large[2:]}],
        table={"x": large, "": b"", "y": b"small"},
        numbered={-3: {"data": large}, 4: {"name": "none"}},
        chosen=large,
        inner={"inner": {"parts": [large], "text": "text"}},
        floats=[1.5] * 10,
    )


def attach_all(message: Any) -> Any:
    """The same with what is large attached."""
    large = {name: getattr(message, name) for name in ("data", "chosen")}
    parts, blob, inner = message.parts[:], message.blob.data, message.inner.inner.parts[0]
    table, numbered, second = dict(message.table), message.numbered[-3].data, message.blobs[1].data
    attached = Attached(message)
    for name, value in large.items():
        attached[name] = value
    attached["parts"] = parts
    attached["blob", "data"] = blob
    attached["inner", "inner", "parts", 0] = np.frombuffer(inner, np.uint8)
    message.inner.inner.parts[0] = b""
    attached["table"] = table
    attached["numbered", -3, "data"] = numbered
    attached["blobs", 1, "data"] = second
    return attached


def plain(message: Any) -> Any:
    return message.plain() if isinstance(message, Attached) else message


class Servicer:
    """Sends back what it was given, in the way that it is served."""

    def __init__(self, code: Generated, coded: bool) -> None:
        self.code = code
        self.coded = coded
        self.seen: list[type] = []

    def _again(self, request: Any) -> Any:
        assert isinstance(request, Attached) is self.coded
        return request

    def Echo(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._again(request)

    def Split(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        message = plain(self._again(request))
        for part in message.parts:
            reply = self.code.everything.Everything()
            if self.coded:
                reply = Attached(reply)
                reply["data"] = part
            else:
                reply.data = part
            yield reply

    def Join(self, requests: Iterable[Any], context: grpc.ServicerContext) -> Any:
        joined = self.code.everything.Everything()
        if not self.coded:
            joined.parts.extend(request.data for request in requests)
            return joined
        reply = Attached(joined)
        reply["parts"] = [request["data"] for request in requests]
        return reply

    def Each(self, requests: Iterable[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            yield self._again(request)

    def Fail(self, request: Any, context: grpc.ServicerContext) -> Any:
        if plain(request).name == "abort":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as was asked")
        reply = Attached(self.code.everything.Everything())
        reply["chosen"] = b"chosen"
        reply.message.ClearField("chosen")
        return reply

    def Ping(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert isinstance(request, self.code.everything.Nothing)
        return request


class Ends(NamedTuple):
    stub: Any
    pairing: Pairing
    client_coded: bool
    server_coded: bool

    @property
    def direct(self) -> bool:
        """Whether segments come as they were sent."""
        return self.pairing.transport != "grpc"

    def send(self, message: Any) -> Any:
        return attach_all(message) if self.client_coded else message

    def received(self, message: Any) -> Any:
        assert isinstance(message, Attached) is self.client_coded
        return plain(message)


CODED = [(True, True), (True, False), (False, True)]


@pytest.fixture(
    params=[(pairing, *coded) for pairing in PAIRINGS for coded in CODED],
    ids=lambda param: (
        f"{param[0]}-{'coded' if param[1] else 'plain'}-{'coded' if param[2] else 'plain'}"
    ),
    scope="module",
)
def ends(request: pytest.FixtureRequest, code: Generated) -> Iterator[Ends]:
    pairing, client_coded, server_coded = request.param
    add = code.everything_grpc.add_CallsServicer_to_server
    servicer = Servicer(code, server_coded)

    def prepare(server: Any) -> None:
        if server_coded:
            protobuf.add_to_server(add, servicer, server, views=True)
        else:
            add(servicer, server)

    with (
        local(pairing.server, prepare=prepare) as server,
        pairing.channel(server.target) as channel,
    ):
        make = code.everything_grpc.CallsStub
        stub = protobuf.stub(make, channel, views=True) if client_coded else make(channel)
        yield Ends(stub, pairing, client_coded, server_coded)


def test_unary(ends: Ends, code: Generated) -> None:
    expected = everything(code)
    reply = ends.stub.Echo(ends.send(everything(code)), timeout=20)
    assert ends.received(reply) == expected
    assert ends.received(ends.stub.Echo.future(everything(code, 3)).result(20)) == everything(
        code, 3
    )
    reply, call = ends.stub.Echo.with_call(code.everything.Everything(name="small"))
    assert ends.received(reply) == code.everything.Everything(name="small")
    assert call.code() is grpc.StatusCode.OK


def test_streams(ends: Ends, code: Generated) -> None:
    kind = code.everything.Everything
    message = everything(code)
    replies = list(ends.stub.Split(ends.send(everything(code)), timeout=20))
    assert [ends.received(reply).data for reply in replies] == message.parts[:]

    def requests() -> Iterator[Any]:
        for part in message.parts:
            request = kind()
            if ends.client_coded:
                request = Attached(request)
                request["data"] = part
            else:
                request.data = part
            yield request

    assert ends.received(ends.stub.Join(requests(), timeout=20)) == kind(parts=message.parts)
    replies = list(ends.stub.Each(requests(), timeout=20))
    assert [ends.received(reply).data for reply in replies] == message.parts[:]


def test_methods_whose_messages_hold_no_bytes(ends: Ends, code: Generated) -> None:
    assert ends.stub.Ping(code.everything.Nothing()) == code.everything.Nothing()


def test_failures(ends: Ends, code: Generated) -> None:
    kind = code.everything.Everything
    with pytest.raises(grpc.RpcError) as caught:
        ends.stub.Fail(kind(name="abort"))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == "as was asked"
    with pytest.raises(grpc.RpcError) as caught:
        ends.stub.Fail(kind())  # its reply cannot be serialized
    error = caught.value
    assert error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    if ends.client_coded:
        broken = Attached(kind())
        broken["parts"] = [b"x"]
        broken.message.parts.pop()
        with pytest.raises(grpc.RpcError) as caught:
            ends.stub.Echo(broken)
        error = caught.value
        assert error.code() is grpc.StatusCode.INTERNAL
    assert ends.received(ends.stub.Echo(kind(name="on"))).name == "on"


def test_views_are_what_was_received(ends: Ends, code: Generated) -> None:
    reply = ends.stub.Echo(everything(code))
    if not ends.client_coded:
        assert reply == everything(code)
        return
    assert reply.message.data == b""
    for view in (reply["data"], reply["parts", 1], reply["numbered", -3, "data"]):
        assert view == everything(code).data
        assert view.readonly
        assert isinstance(view.obj, _core.Buffer if ends.direct else bytes), "nothing was copied"


OURS = [pairing for pairing in PAIRINGS if pairing.client == pairing.server == "tensorwire"]


@pytest.mark.parametrize("pairing", OURS, ids=str)
def test_views_outlive_message_channel_and_server(pairing: Pairing, code: Generated) -> None:
    add = code.everything_grpc.add_CallsServicer_to_server
    data = tensorwire.publish(np.arange(1 << 20, dtype=np.uint8))
    with (
        local(
            "tensorwire",
            prepare=lambda server: protobuf.add_to_server(
                add, Servicer(code, True), server, views=True
            ),
        ) as server,
        pairing.channel(server.target) as channel,
    ):
        stub = protobuf.stub(code.everything_grpc.CallsStub, channel, views=["data"])
        request = Attached(code.everything.Everything())
        request["data"] = data
        array = np.frombuffer(stub.Echo(request)["data"], np.uint8)
    assert not array.flags.writeable
    assert (array == data).all()


def test_the_lease_ends_with_the_last_view(code: Generated) -> None:
    class Servicer:
        def Echo(self, request: Any, context: grpc.ServicerContext) -> Any:
            reply = Attached(code.everything.Everything())
            reply["data"] = tensorwire.publish(np.zeros(1 << 20, np.uint8))
            return reply

        Split = Join = Each = Fail = Ping = Echo

    add = code.everything_grpc.add_CallsServicer_to_server
    with (
        local(
            "tensorwire", prepare=lambda server: protobuf.add_to_server(add, Servicer(), server)
        ) as server,
        tensorwire.insecure_channel(server.target, transport="shm") as channel,
    ):
        stub = protobuf.stub(code.everything_grpc.CallsStub, channel, views=True)
        reply = stub.Echo(code.everything.Everything())
        array = np.frombuffer(reply["data"], np.uint8)
        del reply
        held = tensorwire.arena_stats()["leased"]
        assert held >= array.nbytes
        assert not array.any()
        del array
        for _ in range(1000):  # each call takes along what is given back
            if tensorwire.arena_stats()["leased"] < held:
                break
            channel.unary_unary(path("echo"))(b"")
        assert tensorwire.arena_stats()["leased"] < held


def test_asyncio(code: Generated) -> None:
    class Servicer:
        async def Echo(self, request: Any, context: Any) -> Any:
            return request

        async def Each(self, requests: Any, context: Any) -> Any:
            async for request in requests:
                yield request

        Split = Each
        Join = Fail = Ping = Echo

    async def talk() -> None:
        server = grpc.aio.server()
        add = code.everything_grpc.add_CallsServicer_to_server
        protobuf.add_to_server(add, Servicer(), server, views=True)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = protobuf.stub(code.everything_grpc.CallsStub, channel, views=True)
            request = attach_all(everything(code))
            assert (await stub.Echo(request)).plain() == everything(code)
            replies = [reply.plain() async for reply in stub.Each(iter([request] * 2))]
            assert replies == [everything(code)] * 2
        await server.stop(None)

    asyncio.run(talk())


def test_what_a_deserializer_of_the_users_does_stays(code: Generated) -> None:
    kind = code.everything.Everything

    def checked(data: bytes) -> Any:
        message = kind.FromString(data)
        if message.name == "bad":
            raise ValueError("bad")
        return message

    take: Any = Codec(True, segments=True).deserializer(checked)
    assert take([kind(name="good", data=bytes(SIZE)).SerializeToString()])["data"] == bytes(SIZE)
    with pytest.raises(ValueError, match="bad"):
        take([kind(name="bad", data=bytes(SIZE)).SerializeToString()])


@pytest.fixture
def coded(code: Generated) -> Iterator[Any]:
    """A server with the codec: what makes stubs, with options."""
    add = code.everything_grpc.add_CallsServicer_to_server
    with (
        local(
            "tensorwire",
            prepare=lambda server: protobuf.add_to_server(
                add, Servicer(code, True), server, views=True
            ),
        ) as server,
        tensorwire.insecure_channel(server.target) as channel,
    ):
        yield lambda **options: protobuf.stub(code.everything_grpc.CallsStub, channel, **options)


def test_calls_to_a_peer_do_not_join_segments(code: Generated) -> None:
    class Servicer:
        def Echo(self, request: Any, context: grpc.ServicerContext) -> Any:
            return request

        Split = Join = Each = Fail = Ping = Echo

    add = code.everything_grpc.add_CallsServicer_to_server
    with (
        local(
            "tensorwire", prepare=lambda server: protobuf.add_to_server(add, Servicer(), server)
        ) as server,
        tensorwire.insecure_channel(server.target, transport="shm") as channel,
    ):
        peer: Any = channel.peer()
        stub = protobuf.stub(code.everything_grpc.CallsStub, peer)
        request = Attached(code.everything.Everything())
        request["data"] = tensorwire.publish(np.zeros(1 << 20, np.uint8))
        assert len(stub.Echo(request).data) == 1 << 20
        assert peer.stats()["copied_bytes"] == 0


def test_without_views_replies_are_messages(coded: Any, code: Generated) -> None:
    assert coded().Echo(attach_all(everything(code))) == everything(code)
    assert coded(views=()).Echo(everything(code)) == everything(code)


def test_named_fields_are_views_of_any_length(coded: Any, code: Generated) -> None:
    kind = code.everything.Everything
    for names in (["data"], "test.everything.Everything.data", {"Blob", "data"} - {"Blob"}):
        reply = coded(views=names).Echo(kind(data=b"x", chosen=b"y" * SIZE))
        assert reply.message == kind(data=b"", chosen=b"y" * SIZE)
        assert reply["data"] == b"x"


class Watch(grpc.UnaryUnaryClientInterceptor):
    """Sees requests as the caller gave them."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        self.seen.append(request)
        return continuation(details, request)


class CountSegments(Servicer):
    def Echo(self, request: Any, context: grpc.ServicerContext) -> Any:
        owners = {id(request["parts", index].obj) for index in (0, 1)}
        return self.code.everything.Everything(number=len(owners))


def test_interceptors_see_what_is_attached_and_copy_nothing(code: Generated) -> None:
    add = code.everything_grpc.add_CallsServicer_to_server
    watch = Watch()
    with (
        local(
            "tensorwire",
            prepare=lambda server: protobuf.add_to_server(
                add, CountSegments(code, True), server, views=True
            ),
        ) as server,
        tensorwire.insecure_channel(server.target, transport="shm") as channel,
    ):
        intercepted: Any = grpc.intercept_channel(channel, watch, Watch())
        request = Attached(code.everything.Everything())
        request["parts"] = [np.zeros(SIZE), np.ones(SIZE)]
        for each in (channel, intercepted):
            reply = protobuf.stub(code.everything_grpc.CallsStub, each).Echo(request)
            assert reply.number == 2, "the buffers were joined"
    assert watch.seen == [request]


def test_names_that_no_message_has(coded: Any, code: Generated) -> None:
    with pytest.raises(ValueError, match="no reply has a bytes field dta"):
        coded(views=["data", "dta"])
    with pytest.raises(ValueError, match="no reply has a bytes field name"):
        coded(views=["name"])  # a string
    servicer = Servicer(code, True)
    with (
        pytest.raises(ValueError, match="no request has a bytes field dta"),
        local(
            "tensorwire",
            prepare=lambda server: protobuf.add_to_server(
                code.everything_grpc.add_CallsServicer_to_server, servicer, server, views="dta"
            ),
        ),
    ):
        pass


def test_received_messages_travel_on(coded: Any, code: Generated) -> None:
    stub = coded(views=True)
    reply = stub.Echo(stub.Echo(everything(code)))
    assert reply.plain() == everything(code)


def test_a_stock_stub_refuses_what_it_would_lose(coded: Any, code: Generated) -> None:
    with local("stock") as server, grpc.insecure_channel(server.target) as channel:
        request = Attached(code.everything.Everything())
        request["data"] = b"data"
        with pytest.raises(grpc.RpcError) as caught:
            code.everything_grpc.CallsStub(channel).Echo(request)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INTERNAL


def test_other_serializers_are_left_alone() -> None:
    class Stub:
        def __init__(self, channel: Any) -> None:
            self.raw = channel.unary_unary(path("echo"))
            self.text = channel.unary_unary(path("echo"), str.encode, bytes.decode)

    with local("tensorwire") as server, tensorwire.insecure_channel(server.target) as channel:
        stub = protobuf.stub(Stub, channel, views=True)
        assert stub.raw(b"bytes") == b"bytes"
        assert stub.text("text") == "text"


def script(text: str) -> None:
    subprocess.run([sys.executable, "-c", text], check=True, timeout=50)


def test_protobuf_is_no_dependency_of_the_rest() -> None:
    script(
        "import sys; sys.modules['google.protobuf'] = None\n"
        "import tensorwire, tensorwire.rpc, tensorwire.service, tensorwire.tensors\n"
        "try:\n    tensorwire.protobuf\n"
        "except ImportError as error:\n    assert 'tensorwire[protobuf]' in str(error), error\n"
        "else:\n    raise SystemExit('no error')"
    )
    script(
        "import sys, tensorwire; tensorwire.insecure_channel('127.0.0.1:1').close()\n"
        "assert 'google.protobuf' not in sys.modules, 'imported for nothing'"
    )
