# SPDX-License-Identifier: Apache-2.0
"""Messages as ``bytes``: what identity serializers hand over and get, in all sizes."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.rpc.pairings import DATA_PLANE, ROOT, Pairing, local
from tests.rpc.service import path

from tensorwire.rpc import segments

KI, MI = 1 << 10, 1 << 20
UNLOCKED = MI
"""From here on the GIL is let go of while the bytes are copied."""
HUGE = 2 * MI
"""From here on huge pages are asked for."""
SHARED = 4 * MI
"""From here on two threads copy."""
STREAMED = 16 * MI
"""From here on the copy goes around the caches."""


ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(params=DATA_PLANE, ids=str)
def pairing(request: pytest.FixtureRequest) -> Pairing:
    found: Pairing = request.param
    return found


@pytest.fixture
def channel(pairing: Pairing) -> Iterator[Any]:
    with (
        local("tensorwire", options=ANY_SIZE) as server,
        pairing.channel(server.target, options=ANY_SIZE) as channel,
    ):
        yield channel


def pattern(size: int) -> bytes:
    """No page is like another."""
    block = bytes(range(256)) * 16 + b"tail"
    return (block * (size // len(block) + 1))[:size]


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        *(edge + beside for edge in (UNLOCKED, HUGE, SHARED, STREAMED) for beside in (-1, 0, 1)),
    ],
)
def test_bytes_of_any_size(channel: Any, size: int) -> None:
    data = pattern(size)
    echo = channel.unary_unary(path("echo"))
    for _ in range(2):  # what the first one left behind serves the second
        reply = echo(data)
        assert type(reply) is bytes
        assert reply == data
    assert hash(reply) == hash(data)


@pytest.mark.parametrize("parts", [(1, SHARED + 3, 0, UNLOCKED), (HUGE - 1, 1), (5 * MI, 17 * MI)])
def test_segments_become_one(channel: Any, parts: tuple[int, ...]) -> None:
    segments = [pattern(size) for size in parts]
    assert channel.unary_unary(path("echo"))(segments) == b"".join(segments)


def test_bytes_that_are_kept(channel: Any) -> None:
    echo = channel.unary_unary(path("echo"))
    sent = [bytes([i]) * (SHARED + i) for i in range(4)]
    kept = [echo(data) for data in sent]
    assert kept == sent


def different(count: int) -> list[bytes]:
    return [bytes([i]) * (SHARED + 4096) for i in range(count)]


def test_bytes_of_one_size_that_are_kept(channel: Any) -> None:
    echo = channel.unary_unary(path("echo"))
    sent = different(8)
    kept = [echo(data) for data in sent]
    assert kept == sent
    stream = channel.stream_stream(path("chat"))
    kept += stream(iter(sent))
    assert kept == sent * 2


def test_bytes_of_one_size_in_several_threads(channel: Any) -> None:
    echo = channel.unary_unary(path("echo"))
    sent = different(24)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(echo, sent)) == sent


def test_arrays_of_the_same_size_are_handed_out_as_they_come(channel: Any) -> None:
    sent = different(4)
    echo = channel.unary_unary(path("echo"))
    views = channel.unary_unary(path("echo"), response_deserializer=segments(list))
    kept = [(echo(data), views(data)) for data in sent]
    assert [reply for reply, _ in kept] == sent
    assert [b"".join(buffers) for _, buffers in kept] == sent


def run(program: str, *arguments: str) -> None:
    """In a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)


WITHOUT_ADVICE = """
    import ctypes, mmap, struct, sys
    from tests.rpc.pairings import local
    from tests.rpc.service import path
    from tests.rpc.test_bytes import ANY_SIZE

    libc = ctypes.CDLL(None, use_errno=True)

    def statement(code, yes, no, value):
        return struct.pack("HBBI", code, yes, no, value)

    # madvise(_, _, MADV_HUGEPAGE) fails with EINVAL, as where the kernel lacks it.
    program = (
        statement(0x20, 0, 0, 0)  # load the number of the system call
        + statement(0x15, 0, 3, int(sys.argv[1]))
        + statement(0x20, 0, 0, 32)  # load the third argument
        + statement(0x15, 0, 1, 14)
        + statement(0x06, 0, 0, 0x00050000 | 22)
        + statement(0x06, 0, 0, 0x7FFF0000)
    )
    code = ctypes.create_string_buffer(program, len(program))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    order = Filter(len(program) // 8, ctypes.addressof(code))
    assert libc.prctl(22, 2, ctypes.byref(order)) == 0, ctypes.get_errno()
    try:
        mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(14)
        sys.exit("the filter does not filter")
    except OSError:
        pass
    import tensorwire
    data = bytes(range(256)) * (20 << 12)
    for transport in ("shm", "tcp"):
        with (
            local("tensorwire", options=ANY_SIZE) as server,
            tensorwire.insecure_channel(
                server.target, options=ANY_SIZE, transport=transport
            ) as channel,
        ):
            assert channel.path().transport == transport
            for _ in range(2):
                assert channel.unary_unary(path("echo"))(data) == data
"""


def test_where_the_kernel_gives_no_huge_pages() -> None:
    number = {"x86_64": "28", "aarch64": "233"}.get(platform.machine())
    if number is None:
        pytest.skip("the number of madvise() is known for x86-64 and aarch64")
    run(WITHOUT_ADVICE, number)


POSTED = """
    import tensorwire
    from tests.rpc.pairings import local
    from tests.rpc.service import path
    from tests.rpc.test_bytes import ANY_SIZE, SHARED, pattern

    data = pattern(SHARED + 7)
    with (
        local("tensorwire", options=ANY_SIZE) as server,
        tensorwire.insecure_channel(server.target, options=ANY_SIZE, transport="tcp") as channel,
    ):
        echo = channel.unary_unary(path("echo"))
        for _ in range(6):
            assert echo(data) == data
            # Made ready with the first reply; each that is used is followed by another one.
            assert tensorwire.arena_stats()["pool_posted"] == len(data)
        assert echo(b"small") == b"small"
        assert echo(data[1:]) == data[1:]
        assert echo(data) == data
"""


def test_a_size_that_comes_again_finds_memory_ready() -> None:
    run(POSTED)
