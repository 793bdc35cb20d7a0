# SPDX-License-Identifier: Apache-2.0
"""One end of links, in a process of its own: ``python -m tests.verbs.agent``.

Takes orders as JSON lines on stdin and answers each on stdout; ends with stdin. It uses the native
module alone, because imports are what takes the time under emulation. ``processes.Agent`` gives
the orders.

Every segment holds the pattern of its own number, so that the receiver can check all of it.
"""

from __future__ import annotations

import json
import sys
import threading
import zlib
from typing import Any

from tensorwire import _core

PATTERN = bytes(range(256)) * 257  # a period that no chunk or page has a multiple of
OK = 0
CALL_SECONDS = 100.0  # under emulation, on a busy host


def pattern(size: int, number: int) -> bytes:
    start = number % 251
    repeated = PATTERN * (1 + (start + size) // len(PATTERN))
    return repeated[start : start + size]


class Agent:
    def __init__(self) -> None:
        self.server: _core.Server | None = None
        self.links: dict[int, _core.Peer] = {}
        self.canaries: list[tuple[_core.Buffer, int]] = []
        self.received = 0
        self.wrong = 0
        self.background: dict[int, threading.Thread] = {}
        self.results: dict[int, Any] = {}

    # ------------------------------------------------------------------------------- as a server

    def listen(self, host: str = "127.0.0.1") -> dict[str, Any]:
        self.server = _core.Server()
        port = self.server.listen_tcp(host, 0)
        threading.Thread(target=self._serve, args=(self.server,), daemon=True).start()
        return {"address": f"verbs:{host}:{port}"}

    def _serve(self, server: _core.Server) -> None:
        while (calls := server.next(None)) is not None:
            while calls:
                self._answer(calls.pop())  # kept by nobody, as it keeps its link

    def _answer(self, call: _core.ServerCall) -> None:
        """``/check/<first number>``: which segments are not what they have to be?"""
        try:
            segments = call.receive(True)
        except _core.StatusError:
            return  # cancelled, or the link is lost
        assert isinstance(segments, list)
        first = int(call.method.rpartition("/")[2])
        bad = [
            i
            for i, segment in enumerate(segments)
            if memoryview(segment) != memoryview(pattern(len(segment), first + i))
        ]
        self.received += 1
        self.wrong += bool(bad)
        reply = json.dumps({"bad": bad, "sizes": [len(segment) for segment in segments]})
        call.finish(OK, "", None, reply.encode())

    def admit(self, hello: str, connections: int = 4) -> dict[str, str]:
        assert self.server is not None
        session, secret = self.server.admit(bytes.fromhex(hello), connections, 60.0)
        return {
            "session": session.hex(),
            "secret": secret.hex(),
            "instance": self.server.instance.hex(),
            "peer_hello": _core.hello().hex(),
        }

    # ------------------------------------------------------------------------------- as a client

    def hello(self) -> str:
        return _core.hello().hex()

    def connect(
        self, address: str, session: str, secret: str, instance: str, peer_hello: str
    ) -> dict[str, Any]:
        link = _core.connect(
            address,
            bytes.fromhex(session),
            bytes.fromhex(secret),
            bytes.fromhex(instance),
            bytes.fromhex(peer_hello),
            20.0,
        )
        number = len(self.links)
        self.links[number] = link
        return {"link": number, "transport": link.transport, "peer": link.address}

    def check(
        self, link: int, sizes: list[int], number: int = 0, memory: str = "arena"
    ) -> dict[str, Any]:
        """Sends segments of these sizes: code, details, and what the server found wrong."""
        segments = [self._segment(size, number + i, memory) for i, size in enumerate(sizes)]
        code, details, reply, _, _ = self.links[link].unary(
            f"/check/{number}", segments, CALL_SECONDS, None, False
        )
        answer = json.loads(reply) if isinstance(reply, bytes) and reply else None
        if answer is not None and answer["sizes"] != sizes:
            answer["bad"].append("sizes")
        return {"code": code, "details": details, "bad": answer and answer["bad"]}

    def transfers(self, link: int, count: int, sizes: list[int]) -> dict[str, Any]:
        """``count`` calls with one segment each, of these sizes in turn, until one fails."""
        done = wrong = 0
        for number in range(count):
            said = self.check(link, [sizes[number % len(sizes)]], number)
            if said["code"] != OK:
                return {"done": done, "wrong": wrong, **said}
            done += 1
            wrong += bool(said["bad"])
        return {"done": done, "wrong": wrong, "code": OK, "details": ""}

    def begin(self, order: int, what: str, arguments: dict[str, Any]) -> None:
        """Runs another order on a thread; ``result`` waits for its end."""

        def work() -> None:
            self.results[order] = self.obey(what, arguments)

        self.background[order] = threading.Thread(target=work, daemon=True)
        self.background[order].start()

    def result(self, order: int, timeout: float = CALL_SECONDS) -> Any:
        self.background[order].join(timeout)
        return self.results.get(order)

    def _segment(self, size: int, number: int, memory: str) -> Any:
        data = pattern(size, number)
        if memory == "heap" or not size:
            return data
        buffer = _core.allocate(size, 20.0)
        memoryview(buffer)[:] = data
        _core.publish(buffer)
        return buffer

    # ------------------------------------------------------------------------ what there is to see

    def alive(self, link: int) -> dict[str, Any]:
        return {"alive": self.links[link].alive, "death": self.links[link].death}

    def keep_trace(self, events: int = 100_000) -> None:
        _core.trace(events)

    def trace(self, link: int) -> list[Any]:
        return list(self.links[link].trace()[1])

    def server_traces(self) -> list[Any]:
        assert self.server is not None
        return [list(steps) for _, _, _, steps in self.server.traces()]

    def stats(self, link: int) -> dict[str, Any]:
        return self.links[link].stats()

    def server_stats(self) -> list[dict[str, Any]]:
        assert self.server is not None
        return self.server.stats()

    def arena(self) -> dict[str, int]:
        return _core.arena_stats()

    def count(self) -> dict[str, int]:
        return {"received": self.received, "wrong": self.wrong}

    def set_canaries(self, size: int, count: int) -> None:
        """Takes memory, as much of what was used before as there is, and writes to all of it."""
        for number in range(count):
            buffer = _core.allocate(size, 20.0)
            memoryview(buffer)[:] = pattern(size, number)
            self.canaries.append((buffer, zlib.crc32(pattern(size, number))))

    def dead_canaries(self) -> int:
        """How many of them somebody else has written to."""
        return sum(zlib.crc32(memoryview(buffer)) != crc for buffer, crc in self.canaries)

    def close(self, link: int) -> None:
        self.links.pop(link).close()

    def close_all(self) -> None:
        while self.links:
            self.links.popitem()[1].close()
        if self.server is not None:
            self.server.close()
            self.server = None

    def obey(self, what: str, arguments: dict[str, Any]) -> Any:
        try:
            return {"answer": getattr(self, what)(**arguments)}
        except _core.StatusError as error:
            return {"error": [error.code, error.details]}


def main() -> None:
    agent = Agent()
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(agent.obey(order.pop("do"), order)), flush=True)


if __name__ == "__main__":
    main()
