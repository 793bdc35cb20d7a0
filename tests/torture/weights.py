# SPDX-License-Identifier: Apache-2.0
"""Weights that a trainer writes without waiting for anybody, while subscribers pull: what a pull
brings must be of one version."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from tests.torture import service
from tests.torture.figures import Part, Row, Say, scaled, tormented
from tests.torture.processes import Child, Conversation, child

import tensorwire
from tensorwire import weights
from tensorwire.weights.source import Source, TornError

ROUNDS: Final = 10_000
"""Pulls, of all subscribers."""
TRANSPORTS: Final = ("shm", "tcp")
SUBSCRIBERS: Final = 2
NAMES: Final = "abcdefgh"
NBYTES: Final = 128 << 10
"""Of each tensor."""
PAUSE_SECONDS: Final = 0.004
"""Between two updates, at most."""
PULL_SECONDS: Final = 20.0
ENOUGH_ROUNDS: Final = 1000
"""Among so many some must have been torn; else nothing has been tested."""


def _params() -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.zeros(NBYTES, np.uint8) for name in NAMES}


def trainer(talk: Conversation, order: dict[str, Any]) -> None:
    """Writes a version over the other, until it hears that it is over; then it says how many."""
    params, rng, over = _params(), random.Random(order["seed"]), threading.Event()
    server = tensorwire.server(ThreadPoolExecutor(4))
    publisher = weights.Publisher(params, server, mode=order["mode"])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    def write() -> None:
        for array in params.values():
            array.fill((publisher.version + 1) % 251)

    def train() -> None:
        while not over.wait(rng.uniform(0, PAUSE_SECONDS)):
            if order["mode"] == "copy":
                write()
                publisher.publish()
            else:
                with publisher.update(timeout=0):
                    write()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        talk.say(port)
        talk.hear(3600)
    finally:
        over.set()
        thread.join()
    talk.say(publisher.version)
    server.stop(None)


def subscriber(talk: Conversation, order: dict[str, Any]) -> None:
    """Pulls the next version and the next, and looks at each byte of it."""
    torn = 0
    take = Source._take

    def counted(source: Source, *arguments: Any) -> None:
        nonlocal torn
        try:
            take(source, *arguments)
        except TornError:
            torn += 1
            raise

    params, pulls = _params(), 0
    failures: list[str] = []
    with (
        patch.object(Source, "_take", counted),
        service.channel(order["target"], order["transport"]) as channel,
        weights.Subscriber(channel, params) as reader,
    ):
        while pulls < order["rounds"] and len(failures) < Row.KEPT:
            before = reader.version
            try:
                number = reader.pull(before + 1, PULL_SECONDS).number
            except Exception as error:
                failures.append(service.sentence(error))
                continue
            pulls += 1
            held = {int(found) for a in params.values() for found in (a.min(), a.max())}
            if held != {number % 251}:
                failures.append(f"version {number} holds {sorted(held)}")
            if number <= before:
                failures.append(f"version {number} came after {before}")
    talk.say({"pulls": pulls, "torn": torn, "failures": failures})


def _race(mode: str, transport: str, scale: float, seed: int, say: Say) -> Row:
    what = {"copy": "copied", "in_place": "written in place"}[mode]
    with tormented(f"weights {what} · {transport}", say) as row:
        rounds = scaled(ROUNDS, scale, SUBSCRIBERS) // SUBSCRIBERS
        with child(trainer, {"mode": mode, "seed": seed}) as publisher:
            target = f"127.0.0.1:{publisher.talk.hear()}"
            order = {"target": target, "transport": transport, "rounds": rounds}
            readers = [Child(subscriber, order) for _ in range(SUBSCRIBERS)]
            try:
                said = [one.talk.hear(3600) for one in readers]
            finally:
                for one in readers:
                    one.end()
            versions = publisher.ask("over")
        row.attempts = sum(one["pulls"] for one in said)
        torn = sum(one["torn"] for one in said)
        for failure in (each for one in said for each in one["failures"]):
            row.fail(failure)
        if mode == "in_place" and not torn and row.attempts >= ENOUGH_ROUNDS:
            row.fail("nothing was torn: nothing has been tested")
        found = f"; {torn:,} torn reads found" if mode == "in_place" else ""
        row.note = f"{versions:,} versions{found}"
    return row


def _part(mode: str) -> Part:
    def run(scale: float, seed: int, say: Say) -> list[Row]:
        return [_race(mode, transport, scale, seed, say) for transport in TRANSPORTS]

    return run


copied: Final = _part("copy")
written: Final = _part("in_place")
