# SPDX-License-Identifier: Apache-2.0
"""The choice of a transport: arguments, environment, what is said of it, and what is an error."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, get_args

import grpc
import pytest
from tests.rpc import channels
from tests.rpc.channels import all_work, having
from tests.rpc.pairings import Local, local
from tests.rpc.service import path

import tensorwire
from tensorwire import transports
from tensorwire.rpc import choice


@pytest.fixture
def server() -> Any:
    with local("tensorwire") as server:
        yield server


def echo(channel: Any) -> Any:
    return channel.unary_unary(path("echo"))(b"x", timeout=20)


NOT_OFFERED = dict.fromkeys(("shm", "verbs"), "the server does not offer it")


def failure(channel: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        echo(channel)
    return caught.value


# --------------------------------------------------------------------------------- the policy


def test_the_type_names_what_the_core_has() -> None:
    assert get_args(choice.Transport) == ("auto", *transports.names(), "grpc")
    assert transports.why_not(transports.names()[-1]) is None
    assert transports.why_not("pigeon") == "there is no such transport"


def test_auto_permits_everything() -> None:
    permitted = choice.policy(None, ())
    assert permitted.data_plane == ("shm", "verbs", "tcp")
    assert permitted.permits("grpc")


def test_required_and_forbidden() -> None:
    assert choice.policy("tcp", ()).data_plane == ("tcp",)
    assert not choice.policy("tcp", ()).permits("grpc")
    assert choice.policy("grpc", ()).data_plane == ()
    assert choice.policy("auto", ["shm"]).data_plane == ("verbs", "tcp")
    assert choice.policy("auto", "shm, verbs, tcp").data_plane == ()
    assert choice.policy("verbs", ()).data_plane == ("verbs",)
    assert not choice.policy("verbs", ()).permits("tcp")


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "tcp")
    monkeypatch.setenv("TENSORWIRE_FORBID", "shm,verbs,grpc")
    assert choice.policy(None, ()).data_plane == ("tcp",)
    assert choice.policy("auto", ()).data_plane == ("tcp",)
    assert choice.policy("auto", ["tcp"]).data_plane == ("shm", "verbs")
    assert choice.policy("shm", ["tcp"]).data_plane == ("shm",)
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "")
    monkeypatch.setenv("TENSORWIRE_FORBID", "")
    assert choice.policy(None, ()).data_plane == ("shm", "verbs", "tcp")


@pytest.mark.parametrize(
    ("transport", "forbid", "sentence"),
    [
        ("carrier pigeon", (), "transport='carrier pigeon'.*none of auto, shm, verbs, tcp, grpc"),
        (None, ["shn"], "'shn' is none of shm, verbs, tcp, grpc"),
        ("shm", ["shm"], "leave no transport"),
        ("auto", ["shm", "verbs", "tcp", "grpc"], "leaves no transport"),
    ],
)
def test_bad_arguments(transport: Any, forbid: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        tensorwire.insecure_channel("localhost:1", transport=transport, forbid=forbid)
    with pytest.raises(ValueError, match=sentence):
        tensorwire.server(None, transport=transport, forbid=forbid)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "error", "sentence"),
    [(None, TypeError, "and not None"), (b"a:1", TypeError, "is text"), ("", ValueError, "empty")],
)
def test_a_target_is_text(target: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        tensorwire.insecure_channel(target)


def test_bad_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "pigeon")
    with pytest.raises(ValueError, match="TENSORWIRE_TRANSPORT=pigeon"):
        tensorwire.insecure_channel("localhost:1")


# ---------------------------------------------------------------------------------- the choice


def test_best_transport_on_one_host(server: Local) -> None:
    with tensorwire.insecure_channel(server.target) as channel:
        path = channel.path()  # waits for the choice
        assert (path.transport, path.peer, path.reasons) == ("shm", "unix:", {})
        assert [*path.thresholds] == ["coalesce_bytes", "eager_bytes", "chunk_bytes"]
        assert echo(channel) == b"x"
        (served,) = server.server.paths()
        assert served.transport == "shm"
        with pytest.raises(dataclasses.FrozenInstanceError):
            path.transport = "tcp"  # type: ignore[misc]


def test_forbidden_transports(server: Local) -> None:
    with tensorwire.insecure_channel(server.target, forbid=["shm", "verbs"]) as channel:
        assert echo(channel) == b"x"
        path = channel.path()
        assert path.transport == "tcp"
        assert path.peer.startswith("ipv4:127.0.0.1:")
        assert path.reasons == {"shm": "forbidden", "verbs": "forbidden"}
    names = ["shm", "verbs", "tcp"]
    with tensorwire.insecure_channel(server.target, forbid=names) as channel:
        assert echo(channel) == b"x"
        reasons = dict.fromkeys(names, "forbidden")
        assert channel.path() == tensorwire.Path("grpc", server.target, reasons)


def test_environment_decides(server: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "tcp")
    with tensorwire.insecure_channel(server.target) as channel:
        assert echo(channel) == b"x"
        assert channel.path().transport == "tcp"
        assert "TENSORWIRE_TRANSPORT=tcp" in channel.path().reasons["shm"]


@pytest.mark.parametrize(
    ("offered", "expected", "reasons"),
    [
        ({"transport": "tcp"}, "tcp", NOT_OFFERED),
        ({"transport": "shm"}, "shm", {}),
        ({"forbid": ["shm", "verbs"]}, "tcp", NOT_OFFERED),
    ],
)
def test_server_that_offers_less(offered: Any, expected: str, reasons: dict[str, str]) -> None:
    with (
        local("tensorwire", prepare=having(all_work), **offered) as server,
        channels.channel(server.target, why_not=all_work) as channel,
    ):
        assert echo(channel) == b"x"
        assert channel.path().transport == expected
        assert channel.path().reasons == reasons


@pytest.mark.parametrize("kind", ["stock", "tensorwire"])
def test_server_without_data_plane(kind: str) -> None:
    options: Any = {"transport": "grpc"} if kind == "tensorwire" else {}
    with local(kind, **options) as server, tensorwire.insecure_channel(server.target) as channel:
        assert echo(channel) == b"x"
        path = channel.path()
        assert path.transport == "grpc"
        assert set(path.reasons) == {"shm", "verbs", "tcp"}
        assert "has no data plane" in path.reasons["shm"]


def test_required_transport_that_is_missing() -> None:
    """UNAVAILABLE with the reason on each call, of each kind, and never a detour."""
    with (
        local("tensorwire", transport="tcp") as server,
        tensorwire.insecure_channel(server.target, transport="shm") as channel,
    ):
        for _ in range(2):
            error = failure(channel)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "transport='shm'" in error.details()
            assert "does not offer it" in error.details()
            assert server.target in error.details()
        future = channel.unary_unary(path("echo")).future(b"x")
        assert future.code() is grpc.StatusCode.UNAVAILABLE
        stream = channel.unary_stream(path("count"))(b"1")
        with pytest.raises(grpc.RpcError):
            next(stream)
        assert stream.code() is grpc.StatusCode.UNAVAILABLE
        assert channel.path().transport == "none"


def test_forbidden_grpc_is_no_fallback() -> None:
    with (
        local("stock") as server,
        tensorwire.insecure_channel(server.target, forbid=["grpc"]) as channel,
    ):
        error = failure(channel)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "gRPC is forbidden" in error.details()


def test_one_log_line_for_the_choice(server: Local, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tensorwire"):
        with tensorwire.insecure_channel(server.target, forbid=["shm", "verbs"]) as channel:
            for _ in range(5):
                echo(channel)
        lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith(f"{server.target}: calls go by tcp to ipv4:127.0.0.1:")
    assert lines[0].endswith("(not shm: forbidden; not verbs: forbidden)")


def test_stats(server: Local) -> None:
    with tensorwire.insecure_channel(server.target) as channel:
        assert channel.stats() == {
            "target": server.target,
            "transport": None,
            "peer": None,
            "opened": 0,
            "lost": 0,
            "failures": 0,
            "link": None,
        }
        echo(channel)
        stats = channel.stats()
        assert stats["transport"] == "shm"
        assert stats["opened"] == 1
        link: Any = stats["link"]
        assert link["messages_sent"] >= 1
        (other_end,) = server.server.stats()
        assert other_end["messages_received"] >= 1


# --------------------------------------------------------------------- what stays on stock gRPC


def test_secure_channel_stays_on_grpc(caplog: pytest.LogCaptureFixture) -> None:
    credentials = grpc.local_channel_credentials()
    with local("tensorwire") as server:
        port = server.server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
        with caplog.at_level(logging.INFO, logger="tensorwire"):
            channel = tensorwire.secure_channel(f"127.0.0.1:{port}", credentials)
        with channel:
            assert len(caplog.records) == 1
            assert "calls go by grpc" in caplog.text
            assert "the channel is secure" in caplog.text
            assert channel.path().transport == "grpc"
            assert channel.path().reasons["shm"] == "the channel is secure"


@pytest.mark.parametrize(
    "arguments", [{"transport": "shm"}, {"transport": "verbs"}, {"forbid": ["grpc"]}]
)
def test_secure_channel_refuses_other_transports(arguments: Any) -> None:
    with pytest.raises(ValueError, match="do not encrypt"):
        tensorwire.secure_channel("h:1", grpc.local_channel_credentials(), **arguments)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("ipv4:127.0.0.1:{port},127.0.0.1:{port}", "lists 2 servers"),
        ("localhost:{port}", ""),
        ("dns:///localhost:{port}", ""),
        ("ipv4:127.0.0.1:{port}", ""),
    ],
)
def test_targets(server: Local, target: str, reason: str) -> None:
    target = target.format(port=server.target.rpartition(":")[2])
    with tensorwire.insecure_channel(target) as channel:
        assert echo(channel) == b"x"
        if reason:
            assert channel.path().transport == "grpc"
            assert reason in channel.path().reasons["shm"]
        else:
            assert channel.path().transport == "shm"


@pytest.mark.parametrize("forbid", [(), ("shm", "verbs")])
def test_unix_target(tmp_path: Any, forbid: tuple[str, ...]) -> None:
    address = f"unix:{tmp_path}/socket"
    with (
        local("tensorwire", address=address),
        tensorwire.insecure_channel(address, forbid=forbid) as channel,
    ):
        assert echo(channel) == b"x"
        assert channel.path().transport == ("grpc" if forbid else "shm")


def test_service_config_stays_on_grpc(server: Local) -> None:
    options = [("grpc.service_config", '{"methodConfig": []}')]
    with tensorwire.insecure_channel(server.target, options) as channel:
        assert echo(channel) == b"x"
        assert channel.path().transport == "grpc"
        assert "grpc.service_config" in channel.path().reasons["tcp"]


@pytest.mark.parametrize("address", ["[::]:0", "0.0.0.0:0", "[::1]:0", "localhost:0"])
def test_addresses_to_listen_at(address: str) -> None:
    with local("tensorwire", address=address) as server:
        port = server.target.rpartition(":")[2]
        host = "[::1]" if "::" in address else "127.0.0.1"
        with tensorwire.insecure_channel(f"{host}:{port}", transport="tcp") as channel:
            assert echo(channel) == b"x"


def test_data_port() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=str(port)), local("tensorwire", data_port=port):
            pass
    with (
        local("tensorwire", data_port=port) as server,
        tensorwire.insecure_channel(server.target, transport="tcp") as channel,
    ):
        assert echo(channel) == b"x"
        assert channel.path().peer == f"ipv4:127.0.0.1:{port}"


@pytest.mark.parametrize("transport", ["shm", "tcp", "grpc"])
def test_channels_and_servers_say_which_way_calls_go(server: Local, transport: Any) -> None:
    assert repr(server.server) == "<tensorwire.Server: links none>"
    with tensorwire.insecure_channel(server.target, transport=transport) as channel:
        said = f"<tensorwire.Channel to {server.target}: "
        assert repr(channel) in (f"{said}no call yet>", f"{said}grpc>")
        echo(channel)
        assert repr(channel) == f"{said}{transport}>"
        by = "none" if transport == "grpc" else f"1 by {transport}"
        assert repr(server.server) == f"<tensorwire.Server: links {by}>"
