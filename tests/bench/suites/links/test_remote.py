# SPDX-License-Identifier: Apache-2.0
"""``tensorwire tune links`` to another host: a server for who has the secret, and for nobody
else."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.suites.links.curves import Link, Shape
from tensorwire.bench.suites.links.remote import reached
from tensorwire.bench.suites.links.service import Server
from tensorwire.bench.suites.links.tuning import DEFAULT
from tensorwire.cli import app

HOST = "127.0.0.1"
SECRET = "a-secret-of-some-length"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(SECRET)
    return file


@pytest.fixture
def serving(token: Path) -> Iterator[int]:
    """The port of a command that serves until Ctrl-C."""
    where = ("--serve", f"{HOST}:0", "--token-file", str(token))
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorwire", "tune", "links", *where],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    try:
        found = re.search(rf"serving at {HOST}:(\d+);", process.stderr.readline())
        assert found is not None
        yield int(found[1])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def visited(server: Server) -> float:
    link = Link(server, "tcp", DEFAULT)
    with link.channel:
        return link.visit(Shape("call", "ordinary", 4096), 0.001)


def test_who_has_the_secret_has_a_server_while_it_stays(serving: int) -> None:
    with pytest.raises(AgentError, match="the secrets differ"), reached((HOST, serving), b"no"):
        pass
    with socket.create_connection((HOST, serving)) as stranger:  # says nothing, and keeps nobody
        with reached((HOST, serving), SECRET.encode()) as server:
            assert visited(server) > 0
            for token in (None, "another"):
                with pytest.raises(AgentError, match="not the server's token"):
                    visited(Server(server.address, token))
        assert len(stranger.recv(64)) == 32, "a nonce, and nothing else"
    with reached((HOST, serving), SECRET.encode()) as again:
        assert visited(again) > 0
        with pytest.raises(AgentError, match=r"not the server's token"):
            visited(Server(again.address, server.token))


def test_nobody_is_there(token: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        served = CliRunner().invoke(
            app, ["tune", "links", "--serve", f"{HOST}:{port}", "--token-file", str(token)]
        )
    assert served.exit_code == 1
    assert "cannot listen at" in served.output
    done = CliRunner().invoke(
        app, ["tune", "links", "--connect", f"{HOST}:{port}", "--token-file", str(token)]
    )
    assert done.exit_code == 1
    assert "--serve running there" in " ".join(done.output.split())
