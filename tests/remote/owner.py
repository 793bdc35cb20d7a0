# SPDX-License-Identifier: Apache-2.0
"""A host in a process of its own, which does what it is told: one JSON list in a line, answered by
one. Started by ``tests.forked``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from tests.forked import Child, start

import tensorwire as tw
from tensorwire import remote
from tensorwire.remote import Handle, Rights

ALL = Rights.READ | Rights.WRITE | Rights.UPDATE


class Owner:
    """Of one tensor, which was made for it, one in the arena, and one that is foreign memory."""

    def __init__(self, nbytes: int) -> None:
        self.server = tw.server(ThreadPoolExecutor(4))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.host = remote.host(self.server, budget=1 << 26, may_allocate=True)
        self.made = self.host.empty(nbytes, "uint8", rights=ALL, name="made")
        born: Any = tw.empty((nbytes,), "uint8")
        born[:] = 3
        self.born = self.host.expose(born, name="born")
        self.foreign = self.host.expose(np.zeros(nbytes, np.uint8), rights=ALL, name="foreign")
        self.server.start()

    def about(self) -> list[Any]:
        return [self.port, self.made.handle.to_bytes().hex()]

    def conceal(self, name: str) -> int:
        """Whether anything changes afterwards: how many elements do."""
        exposed: remote.Exposed = getattr(self, name)
        exposed.conceal()
        before = exposed.array.copy()
        for _ in range(20):
            assert exposed.array.nbytes
            np.copyto(np.empty_like(before), before)
        return int((exposed.array != before).sum())

    def wait(self, name: str, at_least: int) -> int:
        exposed: remote.Exposed = getattr(self, name)
        return exposed.signal.wait(at_least, 60.0)

    def sum(self, name: str) -> int:
        exposed: remote.Exposed = getattr(self, name)
        return int(exposed.array.sum())

    def descriptors(self) -> int:
        import os

        return len(os.listdir("/proc/self/fd"))


def main(nbytes: int) -> None:
    owner = Owner(nbytes)
    print(json.dumps(owner.about()), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer: Callable[..., Any] = getattr(owner, name)
        print(json.dumps(answer(*arguments)), flush=True)
    owner.server.stop(None)


class Away:
    """One from afar."""

    def __init__(self, nbytes: int) -> None:
        self.process: Child = start("tests.remote.owner", nbytes, {})
        port, handle = json.loads(self.process.stdout.readline())
        self.target = f"127.0.0.1:{port}"
        self.handle = Handle.from_bytes(bytes.fromhex(handle))

    def tell(self, *order: Any) -> None:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        return json.loads(self.process.stdout.readline())

    def ask(self, *order: Any) -> Any:
        self.tell(*order)
        return self.answer()


@contextmanager
def away(nbytes: int = 1 << 16) -> Iterator[Away]:
    owner = Away(nbytes)
    try:
        yield owner
    finally:
        owner.process.kill()
