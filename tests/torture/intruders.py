# SPDX-License-Identifier: Apache-2.0
"""Those who are somebody: links that were proved as they should be, whose owners then misbehave.

Each kind gets a fresh link and does its worst. What must end the link is looked at; whatever else
happens is judged by what the good clients notice. Guests do nothing bad: they show what as many
links cost in any case.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from tests.torture import http2, service, wire
from tests.torture.strangers import BreachError, Kind, Scene
from tests.torture.wire import Link, ShmLink

Mischief = Callable[[Link, random.Random], None]

_ECHO: Final = f"/{service.NAME}/Echo"
_FILL: Final = f"/{service.NAME}/Fill"
_BATCH: Final = 8


def _often(rng: random.Random, usual: int, rare: int) -> int:
    """A number that is large once in a hundred times."""
    return rng.randrange(1, rare if rng.random() < 0.01 else usual)


def _must_end(link: Link, what: str) -> None:
    if not link.ended(5):
        raise BreachError(f"the link has survived {what}")


# ----------------------------------------------------------------------------------- on every link


def guest(link: Link, rng: random.Random) -> None:
    """Who behaves: a call, and its reply."""
    link.send(wire.unary(1, 1, _ECHO, service.sealed(rng.randbytes(100))))
    link.frame()


def garbage(link: Link, rng: random.Random) -> None:
    link.send(rng.randbytes(rng.randrange(32, 4096)))


def damaged(link: Link, rng: random.Random) -> None:
    """A call of which some bits have tipped over."""
    frames = bytearray(wire.unary(1, 1, _ECHO, service.sealed(rng.randbytes(100))))
    for _ in range(rng.randrange(1, 5)):
        frames[rng.randrange(len(frames))] ^= 1 << rng.randrange(8)
    link.send(bytes(frames))


def oversized(link: Link, rng: random.Random) -> None:
    kind, least = rng.choice(
        ((wire.MESSAGE, 4 << 20), (wire.EAGER, 4 << 20), (wire.DATA, (64 << 20) + 8))
    )
    length = rng.randrange(least + 1, 1 << 32)
    link.send(wire.header(kind, length, stream=1, message=1, segments=1))
    _must_end(link, f"a frame of {length} bytes of type {kind}")


def announcements(link: Link, rng: random.Random) -> None:
    """Payload that is announced and never comes, a gigabyte with each frame."""
    call = wire.call_header(wire.START | wire.PAYLOAD | wire.END, _ECHO)
    many = _often(rng, 20, 2000)
    link.send(b"".join(wire.message(n, n, call, [(1 << 30, wire.PUSH)]) for n in range(1, many)))


def unfinished(link: Link, rng: random.Random) -> None:
    """Half of what was announced."""
    call = wire.call_header(wire.START | wire.PAYLOAD | wire.END, _ECHO)
    for number in range(1, _often(rng, 4, 40)):
        size = rng.randrange(2, 100_000)
        link.send(wire.message(number, number, call, [(size, wire.PUSH)]))
        link.send(wire.data(number, number, 0, 0, bytes(size // 2)))


def segments(link: Link, rng: random.Random) -> None:
    """A message of one-byte segments."""
    count = min(65535, _often(rng, 3000, 65536 * 2))
    call = wire.call_header(wire.START | wire.PAYLOAD | wire.END, _ECHO)
    link.send(wire.message(1, 1, call, [(1, wire.INLINE)] * count, bytes(count)))


def small_calls(link: Link, rng: random.Random) -> None:
    """Of methods that do not exist, and nobody reads the replies."""
    many = _often(rng, 50, 5000)
    link.send(b"".join(wire.unary(n, n, "/no.Such/Method", b"x") for n in range(1, many)))


def unread_replies(link: Link, rng: random.Random) -> None:
    asked = b"%d" % rng.randrange(1, _often(rng, 100_000, 4_000_000) + 1)
    for number in range(1, rng.randrange(2, 8)):
        link.send(wire.unary(number, number, _FILL, asked))


def credit_overflow(link: Link, rng: random.Random) -> None:
    link.send(wire.message(1, 1, wire.call_header(wire.START, f"/{service.NAME}/Chat")))
    link.send(wire.credit(1, (1 << 62) - 1) * 3 + wire.credit(1, (1 << 64) - 1))
    _must_end(link, "credit beyond 2^62")


def overdrawn(link: Link, rng: random.Random) -> None:
    """More than the stream's window, in two messages: the second has no credit."""
    first = wire.call_header(wire.START | wire.PAYLOAD, f"/{service.NAME}/Chat")
    then = wire.call_header(wire.PAYLOAD)
    window = [(1 << 30, wire.PUSH)]
    link.send(
        wire.message(1, 1, first, window) + wire.message(1, 2, then, [(1, wire.INLINE)], b"x")
    )
    _must_end(link, "a message without credit")


def goaways(link: Link, rng: random.Random) -> None:
    link.send(wire.goaway(rng.randrange(17), b"x" * rng.randrange(1025)) * rng.randrange(1, 50))


def aborts(link: Link, rng: random.Random) -> None:
    call = wire.call_header(wire.START | wire.PAYLOAD | wire.END, _ECHO)
    for number in range(1, _often(rng, 20, 500)):
        link.send(wire.message(number, number, call, [(1 << 20, wire.PUSH)]))
        link.send(wire.header(wire.ABORT, 0, stream=number, message=number))


def gaps(link: Link, rng: random.Random) -> None:
    call = wire.call_header(wire.START | wire.PAYLOAD | wire.END, _ECHO)
    link.send(wire.message(1, 1, call, [(1 << 20, wire.PUSH)]))
    link.send(wire.data(1, 1, 0, rng.randrange(1, 1 << 20), b"not the next byte"))
    _must_end(link, "a chunk that is not the next")


def fins(link: Link, rng: random.Random) -> None:
    link.send(wire.fin([rng.randrange(1 << 64) for _ in range(rng.randrange(1, 1025))]))
    _must_end(link, "a FIN of what was never lent")


def cancels(link: Link, rng: random.Random) -> None:
    """Calls that are cancelled at once."""
    for number in range(1, _often(rng, 30, 1000)):
        link.send(wire.unary(number, 2 * number - 1, _ECHO, service.sealed(b"x" * 100)))
        link.send(wire.message(number, 2 * number, wire.call_header(wire.CANCEL, code=1)))


# --------------------------------------------------------------------------------- shared memory


def never_fin(link: Link, rng: random.Random) -> None:
    """Takes replies, and gives no lease back."""
    for number in range(1, rng.randrange(2, 6)):
        link.send(wire.unary(number, number, _FILL, b"%d" % rng.randrange(20_000, 500_000)))
        link.frame()


def clogged_doorbell(link: Link, rng: random.Random) -> None:
    """A socket that takes no more rings, while its owner asks for them, and rings itself."""
    assert isinstance(link, ShmLink)
    fcntl.fcntl(link.socket, fcntl.F_SETFL, 0)
    for number in range(1, _often(rng, 4, 2000)):
        struct.pack_into("<I", link.memory, 512, 1)  # asleep: please ring
        link.send(wire.unary(number, number, _ECHO, service.sealed(b"x" * 100)))
        wire.ring(link.socket)


def odd_doorbells(link: Link, rng: random.Random) -> None:
    """Descriptors that nobody asked for beside the rings."""
    memory = wire.sealed_memory(4096 + 2 * 65536, wire.RING_SEALS)
    reader, writer = os.pipe()
    a, b = socket.socketpair()
    zero = os.open("/dev/zero", os.O_RDWR)
    try:
        bells = rng.sample([reader, writer, a.fileno(), b.fileno(), zero, memory], 2)
        wire.send_rings(link.socket, 65536, (memory, *bells))
    finally:
        for opened in (memory, reader, writer, zero):
            os.close(opened)
        a.close()
        b.close()
    _must_end(link, "descriptors that nobody asked for")


def odd_rings(link: Link, rng: random.Random) -> None:
    """Ring memory that could shrink, is too small, or is no memory; and too few descriptors."""
    size = 4096 + 2 * 65536
    made = rng.choice(
        (
            lambda: wire.sealed_memory(size, 0),
            lambda: wire.sealed_memory(size - 4096, wire.RING_SEALS),
            lambda: wire.slab(size),
            lambda: os.open("/dev/zero", os.O_RDWR),
        )
    )()
    try:
        wire.send_rings(link.socket, 65536, [made][: rng.randrange(2)])
    finally:
        os.close(made)
    _must_end(link, "ring memory that is none")


def never_rings(link: Link, rng: random.Random) -> None:
    """Nothing after the handshake."""


def cursors(link: Link, rng: random.Random) -> None:
    assert isinstance(link, ShmLink)
    for _ in range(10):
        link.poke(rng.choice((0, 128, 256, 384, 512, 640)), rng.getrandbits(64))
        wire.ring(link.socket)


def slabs(link: Link, rng: random.Random) -> None:
    """Slabs without end, each of a size that costs nothing but address space."""
    memory = wire.slab(1 << 28)
    try:
        for number in range(_often(rng, 10, 5000)):
            wire.send_slab(link.socket, number, 1 << 28, memory)
    finally:
        os.close(memory)


def odd_slabs(link: Link, rng: random.Random) -> None:
    memory = rng.choice((lambda: wire.slab(8192), lambda: wire.sealed_memory(1 << 20, 0)))()
    try:
        wire.send_slab(link.socket, 0, 1 << 20, memory)
    finally:
        os.close(memory)
    _must_end(link, "a slab that could shrink, or lies about its size")


def odd_names(link: Link, rng: random.Random) -> None:
    """Segments in slabs that were never shown, or beyond their end."""
    memory = wire.slab(1 << 20)
    wire.send_slab(link.socket, 1, 1 << 20, memory)
    os.close(memory)
    named = rng.choice(((2, 1, 0, 1), (1, 2, 0, 1), (1, 1, 1 << 20, 1), (1, 1, (1 << 64) - 9, 1)))
    call = wire.call_header(wire.START | wire.PAYLOAD | wire.END, _ECHO)
    link.send(wire.message(1, 1, call, [(4096, wire.MAP)], b"", [named]))
    _must_end(link, "a segment outside its slab")


def descriptors(link: Link, rng: random.Random) -> None:
    """Descriptors with frames that have none, and with no frames at all."""
    opened = os.open("/dev/null", os.O_RDONLY)
    try:
        for _ in range(rng.randrange(1, 8)):
            socket.send_fds(link.socket, [rng.randbytes(rng.randrange(1, 40))], [opened] * 253)
    finally:
        os.close(opened)


_ANY: Final = ("tcp", "unix")
_UNIX: Final = ("unix",)
_MISCHIEF: Final[dict[str, tuple[tuple[str, ...], Mischief, int, bool]]] = {
    # the name: its listeners, what it does, how many links of it stay open, whether it brings rings
    "guests": (_ANY, guest, 0, True),
    "garbage frames": (_ANY, garbage, 10, True),
    "damaged frames": (_ANY, damaged, 10, True),
    "oversized frames": (_ANY, oversized, 0, True),
    "announcements": (_ANY, announcements, 20, True),
    "unfinished messages": (_ANY, unfinished, 20, True),
    "segment bombs": (_ANY, segments, 5, True),
    "small calls": (_ANY, small_calls, 10, True),
    "unread replies": (_ANY, unread_replies, 20, True),
    "credit overflow": (_ANY, credit_overflow, 0, True),
    "no credit": (_ANY, overdrawn, 0, True),
    "GOAWAY storms": (_ANY, goaways, 10, True),
    "aborted messages": (_ANY, aborts, 10, True),
    "gaps in messages": (_ANY, gaps, 0, True),
    "FIN of nothing": (_ANY, fins, 0, True),
    "cancelled calls": (_ANY, cancels, 10, True),
    "leases kept": (_UNIX, never_fin, 20, True),
    "clogged doorbells": (_UNIX, clogged_doorbell, 20, True),
    "descriptors nobody asked for": (_UNIX, odd_doorbells, 0, False),
    "rings of another kind": (_UNIX, odd_rings, 0, False),
    "no rings": (_UNIX, never_rings, 100, False),
    "scribbled cursors": (_UNIX, cursors, 10, True),
    "slabs without end": (_UNIX, slabs, 5, True),
    "slabs of another kind": (_UNIX, odd_slabs, 0, True),
    "names out of bounds": (_UNIX, odd_names, 0, True),
    "descriptors after the proof": (_UNIX, descriptors, 10, True),
}


def _kind(do: Mischief, keep: int, rings: bool) -> Kind:
    def links(scene: Scene) -> Iterator[None]:
        held: deque[Link] = deque()
        try:
            for invitation in _invitations(scene):
                link = wire.link(invitation, scene.transport) if rings else _raw(invitation)
                link.socket.settimeout(2)
                held.append(link)
                with contextlib.suppress(OSError, wire.RefusedError):
                    do(link, scene.rng)
                while len(held) > keep:
                    held.popleft().close()
                yield
        finally:
            for link in held:
                link.close()

    return links


def _raw(invitation: wire.Invitation) -> Link:
    """A proved unix connection before RINGS."""
    connection = wire.dial(invitation.address(wire.SHM), wire.SHM)
    wire.shake_hands(connection, invitation, wire.SHM)
    return Link(connection)


def _invitations(scene: Scene) -> Iterator[wire.Invitation]:
    """One for each link; all that were minted are used."""
    connection = http2.Connection(scene.host, scene.port, scene.source)
    with contextlib.closing(connection):
        while True:
            for answer in connection.opens([wire.hello()] * _BATCH):
                for _ in range(answer["connections"]):
                    yield wire.Invitation.of(answer)


KINDS: Final[dict[str, tuple[tuple[str, ...], Kind]]] = {
    name: (listeners, _kind(do, keep, rings))
    for name, (listeners, do, keep, rings) in _MISCHIEF.items()
}
