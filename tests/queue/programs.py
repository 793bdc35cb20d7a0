# SPDX-License-Identifier: Apache-2.0
"""What the other processes of the tests do. Each says a line when it has done something, and goes
on when it is told to."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from tests.alarms import alarmed

import tensorwire
from tensorwire import queue


def say(word: object) -> None:
    print(word, flush=True)


def produce(target: str, name: str, items: int) -> None:
    """Puts so many items, flushes and says so; then it waits."""
    with queue.connect(target, name) as client:
        for number in range(items):
            client.put({"of": name, "number": number, "array": np.full(16, number)})
        client.flush(30)
        say("flushed")
        sys.stdin.readline()


def end(target: str, name: str) -> None:
    """Ends without closing what it has put to."""
    code = (
        "import sys; from tensorwire import queue; client = queue.connect(*sys.argv[1:])\n"
        "for number in range(100): client.put(number)"
    )
    os.execv(sys.executable, [sys.executable, "-c", code, target, name])


def consume(target: str, name: str, items: int, prefetch: int) -> None:
    """Gets so many items, says their numbers; then it waits."""
    with queue.connect(target, name, prefetch=prefetch) as client:
        for _ in range(items):
            say(client.get(30)["number"])
        sys.stdin.readline()


def wait_for_one(target: str, name: str) -> None:
    """Says how a ``get`` has ended that Ctrl-C interrupts, and what the next one has got."""
    with queue.connect(target, name) as client:
        client.get(30)
        say("waiting")
        try:
            client.get()
        except KeyboardInterrupt:
            say("interrupted")
        say(client.get(30)["number"])


def get_between_alarms(target: str, name: str, items: int, rounds: int, prefetch: int) -> None:
    """Says how many interrupts have come, and all that it has got."""
    found: list[int] = []
    with queue.connect(target, name, prefetch=prefetch) as client:
        # No signal is handled between the return of a `get` and the list.
        came = alarmed(
            rounds,
            lambda: found.extend(map(client.get, (30,))),
            lambda: len(found) == items,
        )
    say(came)
    say(found)


def get_beside_a_thread(target: str, name: str, rounds: int, prefetch: int) -> None:
    """The same, while another thread gets from the same client, until the queue is closed."""
    found: list[int] = []
    beside: list[int] = []

    def get_some() -> None:
        with suppress(queue.EmptyError, queue.ClosedError):
            for batch in map(client.get_batch, (3,), (0.01,)):
                found.extend(batch)

    def get_rest() -> None:
        with suppress(queue.ClosedError):
            while True:
                beside.extend(client.get_batch(2))

    with queue.connect(target, name, prefetch=prefetch) as client, ThreadPoolExecutor(1) as pool:
        rest = pool.submit(get_rest)
        came = alarmed(rounds, get_some, rest.done, 2e-3)
        rest.result()
        # The last ones may have been put back by an interrupted get once the other thread had left.
        with suppress(queue.ClosedError):
            while True:
                found.extend(client.get_batch(3))
    say(came)
    say(found + beside)


def put_between_alarms(target: str, name: str, items: int, rounds: int) -> None:
    """Says how many interrupts have come, and which numbers it has put all the same."""
    number = 0
    put: list[int] = []

    def put_next() -> None:
        nonlocal number
        number += 1
        put.extend([number for _ in map(client.put, (number,), (30,))])

    with queue.connect(target, name) as client:
        came = alarmed(rounds, put_next, lambda: len(put) == items)
        client.flush(30)
    say(came)
    say(put)


def local_between_alarms(end: str, items: int, rounds: int, capacity: int, latest: float) -> None:
    """The main thread gets, or puts, at a queue of its own process, and another one does the rest.
    Says how many interrupts have come, the numbers whose put has returned, those that were got,
    what the queue has counted, and whether it still works."""
    server = tensorwire.server(ThreadPoolExecutor(1))
    own = queue.serve(server, "queue", capacity=capacity, capacity_bytes=1 << 30)
    put: list[int] = []
    got: list[int] = []
    number = 0

    def put_next() -> None:
        nonlocal number
        number += 1
        put.extend([number for _ in map(own.put, (number,), (30,))])

    def get_next() -> None:
        got.extend(map(own.get, (30,)))

    def get_some() -> None:
        for found in map(own.get_batch, (3,), (30,)):
            got.extend(found)

    def other() -> None:
        if end == "put":
            with suppress(queue.ClosedError):
                while True:
                    get_next()
        else:
            while number < items:
                put_next()

    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(other)
        if end == "put":
            came = alarmed(rounds, put_next, lambda: len(put) == items, latest)
            own.close()
        else:
            do = get_next if end == "get" else get_some
            came = alarmed(rounds, do, lambda: len(got) == items, latest)
        rest.result()
    stats = own.stats()
    for said in (came, put, got, stats[:7], stats.waiting_producers + stats.waiting_consumers):
        say(said)


def wait_for_room(target: str, name: str) -> None:
    """The same of a ``put``."""
    with queue.connect(target, name) as client:
        client.put({"number": 1})
        say("waiting")
        try:
            client.put({"number": 2})
        except KeyboardInterrupt:
            say("interrupted")
        client.put({"number": 3}, 30)
        say("put")


def serve(capacity: int) -> None:
    """A server with a queue that nobody gets from; says its port."""
    server = tensorwire.server(ThreadPoolExecutor(1))
    own = queue.serve(server, "queue", capacity=capacity, capacity_bytes=1 << 30)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say(port)
    sys.stdin.readline()
    own.close()
    server.stop(None)


def main(argument: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # their server ignores it
    name, *arguments = argument
    globals()[name](*arguments)
