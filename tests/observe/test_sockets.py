# SPDX-License-Identifier: Apache-2.0
"""What programs send by stock gRPC, found by the library that is loaded before the C library."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.observe.test_trace import MAIN

from tensorwire.observe import sockets

SIZES = (700, 10 << 10, 100 << 10)

STOCK = """
import os, select, socket, struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"r" * 333)
server = grpc.server(ThreadPoolExecutor(2))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"Take": handler}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
for size in %r:
    channel.unary_unary("/t/Take")(b"x" * size)

# These outlive gRPC's own descriptors, so that what the kernel says is the last word.
connections = []
for number in map(int, os.listdir("/proc/self/fd")):
    with suppress(OSError):  # no socket, or one that only listens
        found = socket.socket(fileno=os.dup(number))
        found.getpeername()
        if found.family != socket.AF_UNIX:
            connections.append(found)
channel.close()
server.stop(None).wait()
for each in connections:
    waiting = select.poll()
    waiting.register(each, 0)
    while not any(events & select.POLLHUP for _, events in waiting.poll()):
        pass
    # Of struct tcp_info: tcpi_bytes_sent, and tcpi_bytes_retrans after it.
    told = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    sent, again = struct.unpack_from("=QQ", told, 200)
    print(sent - again)
"""

# A client of HTTP/2, as far as its first bytes go, that sends as gRPC does: what the kernel has not
# taken of a buffer is sent again from there.
PARTS = """
import os, socket, subprocess, sys

PREFACE = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"

def connected():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        client.connect(listening.getsockname())
        return client, listening.accept()[0]

def send(client, reader, parts):
    client.setblocking(False)
    parts, cuts, unread = [memoryview(part) for part in parts], 0, len(PREFACE)
    while parts:
        try:
            taken = client.sendmsg(parts)
        except BlockingIOError:
            unread -= len(reader.recv(1 << 20))
            continue
        unread += taken
        while parts and taken >= len(parts[0]):
            taken -= len(parts.pop(0))
        if parts and taken:
            parts[0], cuts = parts[0][taken:], cuts + 1
    reader.recv(unread, socket.MSG_WAITALL)
    return cuts

client, reader = connected()
if len(sys.argv) == 1:
    client.sendall(PREFACE)
    assert send(client, reader, [bytes(size) for size in (9, 3 << 20, 0, 17, 5 << 20, 300)]) > 2
    other, end = connected()
    other.sendall(b"no HTTP/2")
    secret, end = connected()
    secret.sendall(b"\\x16\\x03\\x01" + bytes(97))
    if os.fork() == 0:
        client.sendall(b"not read, so that the parent's next call fails")
        mine, end = connected()
        os.writev(mine.fileno(), [PREFACE, bytes(1000)])
        mine.send(bytes(2000))
        mine.sendto(bytes(2001), ("127.0.0.1", 1))
        os.write(mine.fileno(), bytes(2002))
        os._exit(0)
    os.wait()
    subprocess.run([sys.executable, "-S", __file__, "image"], check=True)
    reader.close()
    try:
        client.send(b"in vain")
    except ConnectionError:
        sys.exit(7)
if sys.argv[1] == "image":
    os.execv(sys.executable, [sys.executable, "-S", __file__, "next image"])
client.sendall(PREFACE)
"""


def profile(*arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "profile", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done, json.loads(done.stdout)


def test_a_program_of_stock_grpc() -> None:
    """Its messages in their sizes, and every byte that the kernel has sent."""
    done, told = profile("--", sys.executable, "-c", STOCK % (SIZES,))
    assert done.returncode == 0, done.stderr
    assert {each["transport"] for each in told["trace"]} == {"grpc"}
    sizes = Counter(size for each in told["trace"] for size in each["buffers"])
    assert {size for size in sizes if size > 200} == {333, *SIZES}
    assert all(sizes[size] == 1 for size in SIZES)
    assert sizes[333] == len(SIZES)
    kernel = sorted(map(int, filter(str.isdigit, done.stderr.splitlines())))
    assert sorted(each["bytes"] for each in told["grpc"]["connections"]) == kernel
    assert told["bytes"] == sum(kernel)


def test_parts_children_and_images_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PARTS)
    done, told = profile("--", sys.executable, "-S", str(program))
    assert done.returncode == 7, done.stderr
    assert done.stderr == ""
    by_pid: dict[int, list[int]] = {}
    for each in told["trace"]:
        by_pid.setdefault(each["pid"], []).extend(each["buffers"])
    first, child, image = by_pid.values()
    assert first == [24, 9, 3 << 20, 17, 5 << 20, 300], "each buffer once, in its size"
    assert child == [24, 1000, 2000, 2001, 2002], "nothing of its parent's connection"
    assert image == [24]
    protocols = {each["protocol"] for each in told["classes"]}
    assert protocols == {"sendmsg", "writev", "sendto", "send", "write"}
    (secret,) = [each for each in told["grpc"]["connections"] if each["tls"]]
    assert (secret["calls"], secret["bytes"]) == (1, 100)
    assert len(told["grpc"]["connections"]) == 4, "and no other one that begins otherwise"


def test_what_had_no_room_is_counted(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PARTS)
    _, told = profile("--keep", "2", "--", sys.executable, "-S", str(program))
    kept = Counter(each["pid"] for each in told["trace"] for _ in each["buffers"])
    assert list(kept.values()) == [2, 2, 1]
    assert told["grpc"]["left_out"]["buffers"] >= 4 + 3


STATIC = """
#ifdef __x86_64__
extern "C" void _start() { asm volatile("syscall" : : "a"(60), "D"(0)); }
#else
extern "C" void _start() { asm volatile("mov x8, 93; mov x0, 0; svc 0"); }
#endif
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")
def test_a_program_without_a_loader(tmp_path: Path) -> None:
    compiler = ["c++", "-x", "c++", "-", "-nostdlib", "-static", "-o", str(tmp_path / "static")]
    subprocess.run(compiler, input=STATIC, text=True, check=True)
    done, told = profile("--", str(tmp_path / "static"))
    assert done.returncode == 0
    assert told["grpc"]["recorded"] is False
    assert "linked statically" in told["grpc"]["why"]


@pytest.mark.parametrize("name", ["no such library.so", "missing.so"])
def test_a_library_that_cannot_be_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "LIBRARY", tmp_path / name)
    with pytest.raises(ValueError, match="space" if " " in name else "install tensorwire"):
        sockets.environment(tmp_path, 1)


def test_libraries_of_the_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "one.so two.so")
    added = sockets.environment(tmp_path, 1)["LD_PRELOAD"]
    assert added.split() == ["one.so", "two.so", str(sockets.LIBRARY)]


def test_the_library_needs_the_c_library_only() -> None:
    """It is loaded into programs of any language."""
    lines = subprocess.run(
        ["readelf", "-d", sockets.LIBRARY], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    needed = [line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line]
    assert needed
    assert all(name.startswith(("libc.", "libdl.", "libpthread.", "ld-")) for name in needed)


def test_nothing_is_left_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "1-0.sockets").write_bytes(b"")
    (tmp_path / "2-0.sockets").write_bytes(bytes(4096))
    assert sockets.read(tmp_path) == sockets.Sockets(frozenset(), [], 0, 0, 0)
