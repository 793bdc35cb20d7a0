# SPDX-License-Identifier: Apache-2.0
"""A hostile peer: it opens what the tests' process lets it at, and then stores garbage over all
shared memory that it has mapped, around the runtime. Started by ``tests.forked``; told by a line
over which files: those whose names begin so. Told ``inside``, it stays inside of all doors instead.
It ends when it is killed."""

from __future__ import annotations

import os
import random
import select
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

import tensorwire as tw
from tensorwire import remote
from tensorwire.remote import messages
from tensorwire.tensors import TensorSpec

STATIC = TensorSpec((64,), "uint32")
DYNAMIC = TensorSpec((None,), "uint32")
INSIDE = (1 << 32).to_bytes(8, "little")  # the words of a door: open, and one is inside


def mappings(prefix: str) -> list[tuple[int, int]]:
    """Address and size of those that may be written."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights == "rw-s" and name and name[0].startswith(f"/memfd:tensorwire-{prefix}"):
            begin, end = (int(each, 16) for each in span.split("-"))
            found.append((begin, end - begin))
    return found


def garbage(chance: random.Random, nbytes: int) -> bytes:
    """Noise, extreme words, small ones, or notices that could be true."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.randbytes(nbytes)
    if kind == 1:
        return bytes(nbytes)
    if kind == 2:
        return b"\xff" * nbytes
    if kind == 3:
        return (chance.randrange(300).to_bytes(8, "little") * (nbytes // 8 + 1))[:nbytes]
    extent = chance.choice([0, 3, 1 << 20, 1 << 40, (1 << 63) - 1])
    notice = messages.encode(messages.Notice((extent,), chance.randrange(40)))
    slot = len(notice).to_bytes(messages.LENGTH_BYTES, "little") + notice
    return (slot.ljust(messages.NOTICE_BYTES, b"\0") * (nbytes // messages.NOTICE_BYTES + 1))[
        :nbytes
    ]


def main(target: str) -> None:
    server = tw.server(ThreadPoolExecutor(4))
    port = server.add_insecure_port("127.0.0.1:0")
    host = remote.host(server)
    receivers = [
        remote.receiver(host, "static", STATIC, depth=2),
        remote.receiver(host, "dynamic", DYNAMIC, depth=2),
    ]
    server.start()
    with remote.connect(target, transport="shm") as device:
        opened = [device.open(name) for name in ("words", "floats")]
        assert all(tensor.mapped for tensor in opened)
        senders = [remote.sender(device, name) for name in ("static", "dynamic")]
        for sender in senders:
            sender.put(np.zeros(64, np.uint32))
        print(port, flush=True)
        for receiver in receivers:  # of the tests' process, whose words of credit are mapped then
            assert (receiver.get(timeout=60.0) == 1).all()
        chance = random.Random(7)
        print("ready", flush=True)
        for line in iter(sys.stdin.readline, ""):
            if line == "inside\n":
                scribble("door", lambda _: INSIDE)
            else:
                scribble(line.strip(), lambda nbytes: garbage(chance, nbytes))


def scribble(prefix: str, content: Callable[[int], bytes]) -> None:
    """Until there is another line. Its own runtime may unmap something meanwhile: then a store
    through the file of its memory fails, where one by address would end it."""
    told = False
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        while not select.select([sys.stdin], [], [], 0)[0]:
            spans = mappings(prefix)
            for address, size in spans:
                with suppress(OSError):
                    os.pwrite(memory.fileno(), content(size), address)
            if not told:
                print(len(spans), flush=True)
                told = True
