# SPDX-License-Identifier: Apache-2.0
"""Tracing and metrics tools see users' calls over each transport as on grpcio, and never Open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import monotonic
from typing import Any, NamedTuple

import grpc
import opentelemetry.trace
import prometheus_client
import pytest
import sentry_sdk
import sentry_sdk.transport
from opentelemetry.instrumentation.grpc import (
    GrpcInstrumentorClient,
    GrpcInstrumentorServer,
    client_interceptor,
    server_interceptor,
)
from opentelemetry.instrumentation.grpc.grpcext import intercept_channel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from py_grpc_prometheus.prometheus_client_interceptor import PromClientInterceptor
from py_grpc_prometheus.prometheus_server_interceptor import PromServerInterceptor
from sentry_sdk.integrations.grpc import GRPCIntegration
from tests.rpc.pairings import DATA_PLANE, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, NAME, path

import tensorwire
from tensorwire.rpc import bootstrap

STOCK = Pairing("stock", "stock", "grpc")
OURS = (Pairing("tensorwire", "tensorwire", "grpc"), *DATA_PLANE)


def own_functions(patch: pytest.MonkeyPatch) -> None:
    """What tools replace is grpcio's own again afterwards."""
    for module in (grpc, grpc.aio):
        for name in ("server", "insecure_channel", "secure_channel", "intercept_channel"):
            if hasattr(module, name):
                patch.setattr(module, name, getattr(module, name))


@contextlib.contextmanager
def connected(pairing: Pairing, **options: Any) -> Iterator[Any]:
    with local(pairing.server, **options) as server, pairing.channel(server.target) as channel:
        yield channel


CALLS = 7


def make_calls(channel: Any) -> None:
    """One of each kind, and one that fails."""
    assert channel.unary_unary(path("echo"))(b"x") == b"x"
    response, call = channel.unary_unary(path("echo")).with_call(b"x")
    assert (response, call.code()) == (b"x", grpc.StatusCode.OK)
    assert channel.unary_unary(path("echo")).future(b"y").result() == b"y"
    assert list(channel.unary_stream(path("count"))(b"2")) == [b"0", b"1"]
    assert channel.stream_unary(path("total"))(iter([b"1", b"2"])) == b"3"
    assert list(channel.stream_stream(path("chat"))(iter([b"a"]))) == [b"a"]
    with pytest.raises(grpc.RpcError):
        channel.unary_unary(path("set_code"))(b"gone")


class Seen(NamedTuple):
    kind: str
    name: str
    code: Any
    parent: str
    attributes: tuple[str, ...]


def seen(spans: tuple[ReadableSpan, ...]) -> list[Seen]:
    names = {
        span.context.span_id: f"{span.kind.name} {span.name}" for span in spans if span.context
    }
    return sorted(
        Seen(
            span.kind.name,
            span.name,
            (span.attributes or {}).get("rpc.grpc.status_code"),
            names.get(span.parent.span_id, "") if span.parent else "",
            # The peer of a call by shared memory has no number.
            tuple(name for name in sorted(span.attributes or ()) if not name.startswith("net.")),
        )
        for span in spans
    )


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    """Where OpenTelemetry's spans go: it has one provider for the process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    opentelemetry.trace.set_tracer_provider(provider)
    return exporter


def all_of(spans: InMemorySpanExporter) -> tuple[ReadableSpan, ...]:
    """Once each call has ended at both ends: that of a stream does so in another thread."""
    limit = monotonic() + LIMIT_SECONDS
    while len(finished := spans.get_finished_spans()) < 2 * CALLS:
        assert monotonic() < limit, finished
    return finished


def traced(pairing: Pairing, explicitly: bool, spans: InMemorySpanExporter) -> list[Seen]:
    """The spans of ``make_calls``."""
    spans.clear()
    if explicitly:
        interceptors = [server_interceptor()]
        with connected(pairing, interceptors=interceptors) as channel:
            make_calls(intercept_channel(channel, client_interceptor()))
        return seen(all_of(spans))
    tools = GrpcInstrumentorServer(), GrpcInstrumentorClient()
    for tool in tools:
        tool.instrument()
    try:
        with connected(pairing) as channel:
            make_calls(channel)
    finally:
        for tool in tools:
            tool.uninstrument()
    return seen(all_of(spans))


@pytest.mark.parametrize("pairing", OURS, ids=str)
@pytest.mark.parametrize("explicitly", [False, True])
def test_opentelemetry(pairing: Pairing, explicitly: bool, spans: InMemorySpanExporter) -> None:
    expected = traced(STOCK, explicitly, spans)
    names = [path(name) for name in ("echo", "count", "total", "chat", "set_code")]
    assert {(span.kind, span.name) for span in expected} == {
        (kind, name) for kind in ("CLIENT", "SERVER") for name in names
    }
    assert traced(pairing, explicitly, spans) == expected


class Kept(sentry_sdk.transport.Transport):
    """Keeps transactions instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: sentry_sdk.envelope.Envelope) -> None:
        self.events.append(envelope.get_transaction_event())


def sentry_transactions(pairing: Pairing) -> list[tuple[str, Any, tuple[str, ...]]]:
    """What Sentry was sent: operation, name, and the spans in it."""
    kept = Kept()
    client = sentry_sdk.Client(
        dsn="http://key@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        default_integrations=False,
        transport=kept,
    )
    everywhere = sentry_sdk.get_global_scope()  # handlers run in threads of their own
    everywhere.set_client(client)
    try:
        with pytest.MonkeyPatch.context() as patch:
            own_functions(patch)
            GRPCIntegration.setup_once()
            with connected(pairing) as channel, sentry_sdk.start_transaction(name="the program"):
                make_calls(channel)
    finally:
        everywhere.set_client(None)
        client.close()
    return sorted(
        (
            str(event["contexts"]["trace"].get("op")),
            event["transaction"],
            tuple(sorted(span["description"] for span in event["spans"])),
        )
        for event in kept.events
    )


@pytest.mark.parametrize("pairing", OURS, ids=str)
def test_sentry(pairing: Pairing) -> None:
    expected = sentry_transactions(STOCK)
    assert path("echo") in {name for _, name, _ in expected}
    assert sentry_transactions(pairing) == expected


def counted(pairing: Pairing) -> dict[tuple[str, ...], float]:
    """What py-grpc-prometheus counts at both ends."""
    registry = prometheus_client.CollectorRegistry()
    interceptors = [PromServerInterceptor(registry=registry)]
    with connected(pairing, interceptors=interceptors) as channel:
        make_calls(grpc.intercept_channel(channel, PromClientInterceptor(registry=registry)))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


@pytest.mark.parametrize("pairing", OURS, ids=str)
def test_py_grpc_prometheus(pairing: Pairing) -> None:
    expected = counted(STOCK)
    assert expected["grpc_server_handled_total", "UNARY", NAME, "echo", "OK"] == 3
    assert counted(pairing) == expected


class Recorder(grpc.ServerInterceptor):
    """Puts down each method and who called it."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        self.methods.append(details.method)
        return continuation(details)


@pytest.mark.parametrize("pairing", OURS, ids=str)
def test_a_tool_that_wraps_by_position(pairing: Pairing, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ddtrace and New Relic do it."""
    added, users = Recorder(), Recorder()
    asked: list[str] = []
    make_server, make_channel = grpc.server, grpc.insecure_channel

    class Client(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            asked.append(details.method)
            return continuation(details, request)

    def server(*arguments: Any, **named: Any) -> grpc.Server:
        named["interceptors"] = (added, *named.get("interceptors", ()))
        return make_server(*arguments, **named)

    def insecure_channel(*arguments: Any, **named: Any) -> grpc.Channel:
        return grpc.intercept_channel(make_channel(*arguments, **named), Client())

    monkeypatch.setattr(grpc, "server", server)
    monkeypatch.setattr(grpc, "insecure_channel", insecure_channel)
    with connected(pairing, interceptors=[users]) as channel:
        assert isinstance(channel, tensorwire.Channel)
        assert channel.unary_unary(path("echo"))(b"x") == b"x"
        assert channel.path().transport == pairing.transport
    assert added.methods == asked == [path("echo")]
    opened = [] if pairing.transport == "grpc" else [bootstrap.METHOD]
    assert users.methods == [*opened, path("echo")]


def test_a_tool_of_an_unknown_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Opaque:
        def __init__(self, hidden: Any) -> None:
            self._hidden = hidden

        def __getattr__(self, name: str) -> Any:
            if name == "_channel":
                raise AttributeError(name)
            return getattr(self._hidden, name)

    make = grpc.insecure_channel
    monkeypatch.setattr(grpc, "insecure_channel", lambda *given: Opaque(make(*given)))
    with connected(DATA_PLANE[0]) as channel:
        assert channel.unary_unary(path("echo"))(b"x") == b"x"
    assert "it does not see calls on the data plane" in caplog.text
