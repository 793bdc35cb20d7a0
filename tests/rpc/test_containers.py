# SPDX-License-Identifier: Apache-2.0
"""Server and client in containers of one host, as far as the kernel's namespaces make them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.rpc.pairings import ROOT, process
from tests.rpc.service import LIMIT_SECONDS, path

# Who may not do it otherwise is root in a user namespace of its own: the same user to all of them.
USERS = ((), ("--user", "--map-root-user"))

# Says what way its calls take, once there is one, and then how a call ends that the server keeps.
CLIENT = """
import json, os, sys
import grpc, numpy, tensorwire
from tests.rpc.service import path

target, forbid, key = sys.argv[1:]
channel = tensorwire.insecure_channel(target, forbid=forbid)
echo = channel.unary_unary(path("echo"))
while channel.stats()["opened"] == 0:
    echo(b"")
way = channel.path()
data = numpy.arange(4 << 20, dtype=numpy.uint32).view(numpy.uint8)
same = echo(data) == data.tobytes()
print(json.dumps([os.getpid(), way.transport, dict(way.reasons), same]), flush=True)
try:
    channel.unary_unary(path("wait"))(key.encode())
except grpc.RpcError as error:
    print(error.code().name, error.details(), flush=True)
"""


# What `tensorwire doctor` says of shared memory to the server, once a link has been tried.
DOCTOR = """
import sys
from tensorwire.observe import doctor

report = doctor.examine_peer(sys.argv[1])
while report.transport == "grpc":
    report = doctor.examine_peer(sys.argv[1])
print(report.reasons["shm"])
"""


@cache
def _user() -> tuple[str, ...]:
    for user in USERS:
        command = ["unshare", *user, "--pid", "--mount", "--fork", "true"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            pytest.skip(str(error))
        if done.returncode == 0:
            return user
    pytest.skip(f"no namespaces for this user: {done.stderr.strip()}")


def unshared(*flags: str) -> list[str]:
    """The command that runs another in namespaces of its own, and kills it when it is killed."""
    return ["unshare", *_user(), *flags, "--fork", "--kill-child"]


@contextlib.contextmanager
def client(
    within: Sequence[str], target: str, key: str, *, forbid: str = "", **env: str
) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """The process, and what it said first: its pid, transport, reasons, and whether bytes came back
    as they went."""
    with subprocess.Popen(
        [*within, sys.executable, "-c", CLIENT, target, forbid, key],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        try:
            yield child, json.loads(child.stdout.readline())
        finally:
            child.kill()


def recall(target: str, key: str) -> bytes:
    """Waits until the server has something to say of it."""
    with grpc.insecure_channel(target) as channel:
        method: Any = channel.unary_unary(path("recall"))
        said: bytes = method(key.encode(), timeout=LIMIT_SECONDS)
        return said


@pytest.mark.parametrize(("way", "forbid"), [("shm", ""), ("tcp", "shm,verbs")])
@pytest.mark.parametrize("contained", ["server", "client", "server and client"])
def test_pid_namespaces(contained: str, way: str, forbid: str) -> None:
    """They are no obstacle to shared memory, and a pid of another one is taken for nobody's."""
    within = {
        end: unshared("--pid") if end in contained else unshared() for end in ("server", "client")
    }
    with process(within=within["server"], kind="tensorwire") as (target, server):
        with client(within["client"], target, "one", forbid=forbid) as (killed, said):
            pid, taken, reasons, same = said
            assert (taken, same) == (way, True), reasons
            assert (pid == 1) == ("client" in contained)
            assert recall(target, "one started") == b""
            killed.kill()
            assert recall(target, "one") == b"active=False"
        with client(within["client"], target, "two", forbid=forbid) as (last, said):
            assert said[1] == way
            assert recall(target, "two started") == b""
            server.kill()
            assert last.stdout is not None
            assert last.stdout.readline().startswith("UNAVAILABLE")
            assert last.wait(LIMIT_SECONDS) == 0


@pytest.fixture
def folders() -> Iterator[Path]:
    """With ``server`` and ``client`` in it; its name leaves room for the address of a socket."""
    with tempfile.TemporaryDirectory(prefix="tw", dir="/tmp") as name:
        for end in ("server", "client"):
            Path(name, end).mkdir()
        yield Path(name)


def mounting(folders: Path) -> list[str]:
    """A container that has the server's folder at ``client``, and an empty one in its place."""
    script = 'mount --bind "$0" "$1" && mount -t tmpfs none "$0" && shift && exec "$@"'
    within = unshared("--mount")
    return [*within, "sh", "-c", script, str(folders / "server"), str(folders / "client")]


def test_folder_at_another_path(folders: Path) -> None:
    """It is found by the client's own setting. Without that the reason says what is missing."""
    within = mounting(folders)
    with process(
        within=unshared("--pid"),
        env={"TENSORWIRE_RUNTIME_DIR": str(folders / "server")},
        kind="tensorwire",
    ) as (target, _):
        (made,) = os.listdir(folders / "server")
        assert made.startswith("tensorwire-link-")
        here = str(folders / "client")
        with client(within, target, "one", TENSORWIRE_RUNTIME_DIR=here) as (_, said):
            assert said[1:] == ["shm", {}, True]
        with client(within, target, "two", forbid="verbs") as (_, said):
            _, way, reasons, same = said
            assert (way, same) == ("tcp", True)
        told = subprocess.run(
            [*within, sys.executable, "-c", DOCTOR, target],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for why in (reasons["shm"], told.stdout):
            assert f"{made}/s: No such file or directory" in why
            assert "-v tw:/run/tw -e TENSORWIRE_RUNTIME_DIR=/run/tw" in why
    assert os.listdir(folders / "server") == []


def test_a_folder_that_was_asked_for_and_cannot_be_had(folders: Path) -> None:
    program = """
from concurrent.futures import ThreadPoolExecutor
import tensorwire
try:
    tensorwire.server(ThreadPoolExecutor(1)).add_insecure_port("127.0.0.1:0")
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TENSORWIRE_RUNTIME_DIR": str(folders / "nowhere")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{folders}/nowhere/tensorwire-link-" in done.stdout
    assert "(TENSORWIRE_RUNTIME_DIR): No such file or directory" in done.stdout
