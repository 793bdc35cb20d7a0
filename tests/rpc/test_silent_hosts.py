# SPDX-License-Identifier: Apache-2.0
"""A peer that is stopped is waited for, and one whose host says nothing any more is not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.networks import ADDRESSES, Networks
from tests.pausing import paused
from tests.rpc.pairings import ROOT, process
from tests.rpc.service import LIMIT_SECONDS

LARGE = 64 << 20
SILENCE_SECONDS = "1"
PROBES = "04"
"""The timer of a connection in /proc/net/tcp that runs while the peer has no room."""

CLIENT = """
    import sys
    import grpc
    import tensorwire
    from tests.rpc.service import path
    channel = tensorwire.insecure_channel(sys.argv[1], transport="tcp")
    length = channel.unary_unary(path("length"))
    for size in sys.stdin:
        call = length.future(bytes(int(size)))
        print("begun", flush=True)
        try:
            print(call.result().decode(), flush=True)
        except grpc.RpcError as error:
            print(error.code().name, error.details(), flush=True)
"""


class Client:
    """Calls the server with messages of any size, without a deadline."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def finds_no_room(self) -> None:
        """Returns once its kernel only asks the peer's, now and then, whether there is room."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not any(
            line.split()[5].startswith(f"{PROBES}:")
            for line in Path(f"/proc/{self._child.pid}/net/tcp").read_text().splitlines()
        ):
            assert time.monotonic() < deadline, "the peer takes all"
            time.sleep(0.001)

    def calls(self, size: int) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{size}\n")
        self._child.stdin.flush()
        assert self.hears() == "begun"

    def hears(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()


@contextlib.contextmanager
def client(target: str, within: Sequence[str] = ()) -> Iterator[Client]:
    with subprocess.Popen(
        [*within, sys.executable, "-c", textwrap.dedent(CLIENT), target],
        cwd=ROOT,
        env={**os.environ, "TENSORWIRE_SILENCE_SECONDS": SILENCE_SECONDS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            made = Client(child)
            made.calls(1)
            assert made.hears() == "1"
            yield made
        finally:
            child.kill()


def waits_for_one_that_is_stopped(
    target: str, server: subprocess.Popen[str], within: Sequence[str] = ()
) -> None:
    with client(target, within) as caller:
        with paused(server.pid):
            caller.calls(LARGE)  # more than the kernels of both ends take
            time.sleep(4)  # what a host may be silent, and much more
        assert caller.hears() == str(LARGE)


def test_a_peer_of_this_host_that_is_stopped_with_full_buffers_is_waited_for() -> None:
    with process(kind="tensorwire") as (target, server):
        waits_for_one_that_is_stopped(target, server)


@contextlib.contextmanager
def server_of_another_host(networks: Networks) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its target, for clients in the second network, and its process."""
    with process(
        within=["nsenter", networks.files[0]], kind="tensorwire", address=f"{ADDRESSES[0]}:0"
    ) as (target, server):
        yield target.replace("127.0.0.1", ADDRESSES[0]), server


def test_a_peer_of_another_host_that_is_stopped_with_full_buffers_is_waited_for(
    networks: Networks,
) -> None:
    with server_of_another_host(networks) as (target, server):
        waits_for_one_that_is_stopped(target, server, ["nsenter", networks.files[1]])


@pytest.mark.timeout(3 * LIMIT_SECONDS)
@pytest.mark.parametrize("size", [1, LARGE])
def test_a_host_that_answers_nothing_loses_its_links(networks: Networks, size: int) -> None:
    """Whether all that was sent has left this host, or not."""
    with (
        server_of_another_host(networks) as (target, _),
        client(target, ["nsenter", networks.files[1]]) as caller,
    ):
        networks.lose_all()
        caller.calls(size)
        said = caller.hears()
        networks.mend()
    assert said.startswith("UNAVAILABLE")
    assert f"TENSORWIRE_SILENCE_SECONDS is {SILENCE_SECONDS}" in said


@pytest.mark.timeout(3 * LIMIT_SECONDS)
def test_a_host_that_goes_silent_while_its_process_takes_nothing_loses_its_links(
    networks: Networks,
) -> None:
    with (
        server_of_another_host(networks) as (target, server),
        client(target, ["nsenter", networks.files[1]]) as caller,
    ):
        with paused(server.pid):
            caller.calls(LARGE)
            caller.finds_no_room()
            networks.lose_all()
            said = caller.hears()
        networks.mend()
    assert said.startswith("UNAVAILABLE")
    assert f"TENSORWIRE_SILENCE_SECONDS is {SILENCE_SECONDS}" in said
