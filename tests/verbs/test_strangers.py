# SPDX-License-Identifier: Apache-2.0
"""Strangers at the data port and at the queue pairs get nothing, and disturb nobody."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator

import pytest
from tests.verbs import kernel
from tests.verbs.processes import ROOT, Linked, RefusedError, connect, linked

UNAUTHENTICATED = 16


@pytest.fixture(scope="module")
def victims() -> Iterator[Linked]:
    with linked() as link:
        yield link


def assert_unharmed(victims: Linked) -> None:
    sizes = [10, 20_000, 1_000_000]
    said = victims.client.do("check", link=victims.link, sizes=sizes)
    assert said == {"code": 0, "details": "", "bad": []}


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0" * 10_000,
        b"\xff" * 10_000,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_garbage_at_the_data_port(victims: Linked, garbage: bytes) -> None:
    """A refusal at most: no queue pair is made of which it could tell."""
    before = kernel.resources(victims.server.pid)
    _, host, port = victims.address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as stranger:
        said = b""
        with contextlib.suppress(ConnectionError):
            stranger.sendall(garbage)
            with contextlib.suppress(OSError):  # not connected any more
                stranger.shutdown(socket.SHUT_WR)
            while chunk := stranger.recv(4096):
                said += chunk
    assert len(said) < 512
    assert kernel.resources(victims.server.pid) == before
    assert_unharmed(victims)


@pytest.mark.parametrize("wrong", ["secret", "session", "instance"])
def test_the_right_format_and_a_wrong_proof(victims: Linked, wrong: str) -> None:
    before = kernel.resources(victims.server.pid)
    size = {"secret": 32}.get(wrong, 16)
    with pytest.raises(RefusedError) as caught:
        connect(victims.client, victims.server, victims.address, **{wrong: "5a" * size})
    assert caught.value.code == UNAUTHENTICATED
    assert kernel.eventually(lambda: kernel.resources(victims.server.pid) == before)
    assert_unharmed(victims)


def test_a_secret_admits_no_more_connections_than_it_says(victims: Linked) -> None:
    client, server = victims.client, victims.server
    invitation = server.do("admit", hello=client.do("hello"), connections=1)
    link = client.do("connect", address=victims.address, **invitation)["link"]
    with pytest.raises(RefusedError) as caught:
        client.do("connect", address=victims.address, **invitation)
    assert caught.value.code == UNAUTHENTICATED
    client.do("close", link=link)
    assert_unharmed(victims)


@pytest.mark.parametrize("operation", ["send", "read", "write"])
def test_a_guessed_queue_pair(victims: Linked, operation: str) -> None:
    """By a stranger on the same host, with the same address, who knows the number of the server's
    queue pair and even a remote key, and has to guess the number of the next packet."""
    # Links that were closed before give theirs back in the background.
    assert kernel.eventually(lambda: len(kernel.objects("qp", victims.server.pid)) == 1)
    (qp,) = kernel.objects("qp", victims.server.pid)
    (device,) = {one["ifname"] for one in kernel.objects("qp", victims.server.pid)}
    keys = [
        int(mr["rkey"], 16) for mr in kernel.objects("mr", victims.server.pid) if mr["rkey"] != "0"
    ]
    for key in keys or [1]:
        order = [device, str(qp["lqpn"]), operation, str(key)]
        # The distribution's own interpreter, for which its bindings of libibverbs are made.
        stranger = subprocess.run(
            ["/usr/bin/python3", ROOT / "tests/verbs/stranger.py", *order],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert stranger.returncode == 0, stranger.stderr
        assert stranger.stdout.startswith("refused"), stranger.stdout
        assert_unharmed(victims)
