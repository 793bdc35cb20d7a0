# SPDX-License-Identifier: Apache-2.0
"""Good clients: they call while others torment the server, and nothing may happen to them."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from tests.torture.figures import Latency, Row, Say
from tests.torture.processes import Child, Conversation, GoneError, child
from tests.torture.service import TRANSPORTS, Calls, channel, fault

_LINK_EVERY: Final = 0.1
_PAUSE: Final = (0.001, 0.003)
_SMALL: Final = 64


class _Record:
    """Of one phase."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.calls = 0
        self.links = 0
        self.failures: list[str] = []

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def call(talk: Conversation, order: dict[str, Any]) -> None:
    """A good client of one transport: a thread calls on one channel, another one makes new ones.
    ``phase`` begins a new record and answers with the one before."""
    target, transport, seed = order["target"], order["transport"], order["seed"]
    record = _Record()
    over = threading.Event()

    def calling(opened: Any) -> None:
        rng = random.Random(seed)
        calls = Calls(opened, seed)
        while not over.is_set():
            small = rng.random() < 0.85
            began = time.perf_counter()
            wrong = fault((lambda: calls.echo(_SMALL)) if small else calls.any)
            if wrong:
                record.failures.append(f"a {transport} call failed: {wrong}")
            elif small:
                record.milliseconds.append((time.perf_counter() - began) * 1e3)
            record.calls += not wrong
            over.wait(rng.uniform(*_PAUSE))

    def linking() -> None:
        while not over.wait(_LINK_EVERY):
            wrong = fault(link)
            if wrong:
                record.failures.append(f"a new {transport} link failed: {wrong}")
            record.links += not wrong

    def link() -> None:
        with channel(target, transport) as fresh:
            Calls(fresh, seed + 1).echo(100)
            taken = str(fresh.path().transport)
            if taken != transport:
                raise RuntimeError(f"its calls took {taken}")

    with channel(target, transport) as opened:
        Calls(opened, seed).echo(1)
        workers = [threading.Thread(target=calling, args=(opened,))]
        if order["links"]:
            workers.append(threading.Thread(target=linking))
        for worker in workers:
            worker.start()
        talk.say("ready")
        try:
            while True:
                talk.hear(3600)
                before, record = record, _Record()
                talk.say(before.as_json())
        finally:
            over.set()
            for worker in workers:
                worker.join()


class Good:
    """A good client for each transport."""

    def __init__(self, clients: dict[str, Child]) -> None:
        self._clients = clients

    def phase(self) -> dict[str, dict[str, Any]]:
        """Ends a phase: what each client has seen in it."""
        return {name: _seen(one, name) for name, one in self._clients.items()}


def _seen(one: Child, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = one.ask("phase", 60)
    except GoneError as error:
        record = _Record()
        record.failures = [f"the good client of {name} is gone: {error}"]
        return record.as_json()
    return found


@contextlib.contextmanager
def calling(
    target: str, seed: int, transports: tuple[str, ...] = TRANSPORTS, links: bool = True
) -> Iterator[Good]:
    with contextlib.ExitStack() as stack:
        clients = {
            name: stack.enter_context(
                child(
                    call,
                    {"target": target, "transport": name, "seed": seed + i, "links": links},
                )
            )
            for i, name in enumerate(transports)
        }
        for one in clients.values():
            one.talk.hear()
        yield Good(clients)


def phase_seconds(scale: float) -> float:
    """Of a phase in which nothing happens: enough calls for a p99, or a look at the harness."""
    return max(0.1, 5.0 * min(1.0, scale * 10))


def stay(seconds: float, say: Say, doing: str) -> None:
    """Nothing, for that long."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        say(f"{doing}, {left:.0f} s left")
        time.sleep(min(left, 1.0))


def settle(row: Row, quiet: dict[str, Any], attacked: dict[str, Any]) -> None:
    """Judges what the good clients have seen, and enters it: latencies of the transport that
    suffered most, which the torment may judge."""
    for seen in (quiet, attacked):
        for one in seen.values():
            row.good_calls += one["calls"]
            row.new_links += one["links"]
            if one["failures"]:
                row.fail(one["failures"][0], len(one["failures"]))
    pairs = [
        (Latency.of(quiet[name]["milliseconds"]), Latency.of(attacked[name]["milliseconds"]))
        for name in quiet
    ]
    row.quiet, row.attacked = max(pairs, key=lambda pair: pair[1].p99 - 2 * pair[0].p99)
    for name, one in attacked.items():
        if not one["calls"]:
            row.fail(f"the good client of {name} made no call")
