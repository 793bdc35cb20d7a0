# SPDX-License-Identifier: Apache-2.0
"""Remote memory whose writers are killed, and processes that come for memory and weights and go."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from tests.torture import service
from tests.torture.figures import Part, Row, Say, scaled, tormented
from tests.torture.groups import judge_holdings
from tests.torture.processes import Child, Conversation, child
from tests.torture.ranks import holdings

import tensorwire
from tensorwire import remote, weights
from tensorwire.remote import Add, Rights
from tensorwire.transports import why_not

KILLS: Final = {"shm": 1000, "tcp": 1000, "verbs": 50}
VISITS: Final = {"shm": 1000, "tcp": 1000, "verbs": 50}
"""The device of verbs may be an emulated one."""
TRANSPORTS: Final = ("shm", "tcp")
SIZES: Final = (16, 3_000, 70_000, 600_000)
"""Elements of 4 bytes: within a message, in chunks, and more than a ring holds."""
KINDS: Final = ("made", "exposed")
"""Memory that is mapped, or that a device reaches, where that can be; and memory that goes by
frames where it cannot be mapped."""
LIFE_SECONDS: Final = {"shm": 0.01, "tcp": 0.01, "verbs": 0.2}
"""Of a writer, at most."""
PATIENCE_SECONDS: Final = 30.0
ALL: Final = Rights.READ | Rights.WRITE | Rights.UPDATE


def reader(talk: Conversation, _: Any) -> None:
    """Exposes memory as large as it hears, and looks at all of it whenever the signal is raised,
    until the writer is gone; then it says how often that was, and what was wrong."""
    server = tensorwire.server(ThreadPoolExecutor(1))
    host = remote.host(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    talk.say(port)
    while True:
        order = talk.hear(3600)
        if order == "holdings":
            talk.say(holdings())
            continue
        if order["kind"] == "made":
            exposing = host.empty(order["size"], "uint32", rights=ALL, name=order["name"])
        else:
            ordinary = np.zeros(order["size"], np.uint32)
            exposing = host.expose(ordinary, rights=ALL, name=order["name"])
        with exposing as exposed:
            talk.say("exposed")
            seen, raised, wrong = 0, 0, ""
            while True:
                try:
                    seen = exposed.signal.wait(seen + 1, PATIENCE_SECONDS)
                    raised += 1
                except remote.PeerLostError:
                    break
                if (least := int(exposed.array.min())) < seen:
                    wrong = f"the signal was {seen}, and there were elements of write {least}"
            seen = exposed.signal.value
            if (least := int(exposed.array.min())) < seen:
                wrong = f"the last signal was {seen}, and there were elements of write {least}"
            talk.say({"raised": raised, "wrong": wrong})


def writer(talk: Conversation, order: dict[str, Any]) -> None:
    """Writes all of it again and again, each element the number of the write, until it is no
    more."""
    device = remote.connect(order["target"], transport=order["transport"], timeout=PATIENCE_SECONDS)
    tensor = device.open(order["name"], timeout=PATIENCE_SECONDS)
    if order["transport"] == "shm" and tensor.mapped != (order["kind"] == "made"):
        talk.say(f"{order['kind']} memory is {'' if tensor.mapped else 'not '}mapped")
        return
    number = 0
    while True:
        number += 1
        tensor.write(np.full(tensor.shape, number, np.uint32), signal=Add())
        if number == 1:
            talk.say("writing")


def _killed(transport: str, scale: float, seed: int, say: Say) -> Row:
    with tormented(f"writers killed · {transport}", say) as row:
        rng = random.Random(seed)
        raised = dict.fromkeys(KINDS, 0)
        cases = list(itertools.product(KINDS, SIZES))
        with child(reader) as owner:
            target = f"127.0.0.1:{owner.talk.hear()}"
            count = scaled(KILLS[transport], scale, len(cases))
            settled = max(count // 5, len(cases))
            before: dict[str, float] = {}
            while row.attempts < count and row.failed < Row.KEPT:
                kind, size = cases[row.attempts % len(cases)]
                name = f"memory {row.attempts}"
                owner.ask({"size": size, "kind": kind, "name": name})
                order = {"target": target, "transport": transport, "name": name, "kind": kind}
                dying = Child(writer, order)
                if (said := dying.talk.hear(2 * PATIENCE_SECONDS)) != "writing":
                    row.fail(said)
                time.sleep(rng.uniform(0, LIFE_SECONDS[transport]))
                dying.kill()
                dying.talk.close()
                said = owner.talk.hear()
                raised[kind] += said["raised"]
                if said["wrong"]:
                    row.fail(f"{kind} memory of {size} elements: {said['wrong']}")
                row.attempts += 1
                if row.attempts == settled:
                    before = owner.ask("holdings")
                say(f"{row.attempts} killed")
            judge_holdings(row, before, lambda: owner.ask("holdings"))
        seen = ", ".join(f"{number:,} of {kind} memory" for kind, number in raised.items())
        row.note += f"; signals seen: {seen}"
    return row


def owner(talk: Conversation, _: Any) -> None:
    """Has memory and weights that others may come for."""
    server = tensorwire.server(ThreadPoolExecutor(1))
    host = remote.host(server, may_allocate=True)
    publisher = weights.Publisher({name: np.ones(128 << 10, np.uint8) for name in "abcd"}, server)
    memory = host.empty(1 << 16, "uint8", rights=ALL, name="memory")
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    publisher.publish()
    talk.say(port)
    while True:
        talk.say(holdings() if talk.hear(3600) == "holdings" else memory.signal.value)


def visitor(talk: Conversation, order: dict[str, Any]) -> None:
    """Connects as often as it hears, and leaves each time; then it says what it still holds."""
    params = {name: np.zeros(128 << 10, np.uint8) for name in "abcd"}
    while True:
        for _ in range(talk.hear(3600)):
            with remote.connect(order["target"], transport=order["transport"]) as device:
                with device.open("memory") as memory:
                    memory[:8].write(np.ones(8, np.uint8), signal=Add())
                device.allocate(1000).write(np.zeros(1000, np.float32))
            with (
                service.channel(order["target"], order["transport"]) as channel,
                weights.Subscriber(channel, params) as subscriber,
            ):
                subscriber.pull(timeout=PATIENCE_SECONDS)
        talk.say(holdings())


def _visited(transport: str, scale: float, seed: int, say: Say) -> Row:
    with tormented(f"reconnects · {transport}", say) as row:
        count = scaled(VISITS[transport], scale, 5)
        with child(owner) as host:
            target = f"127.0.0.1:{host.talk.hear()}"
            order = {"target": target, "transport": transport}
            with child(visitor, order) as coming:
                warm = max(count // 5, 5)
                coming.ask(warm, 3600)
                mine, theirs = coming.ask(0), host.ask("holdings")
                coming.ask(count, 3600)
                row.attempts = count
                judge_holdings(row, mine, lambda: coming.ask(0))
                judge_holdings(row, theirs, lambda: host.ask("holdings"))
                raised = host.ask("signal")
                if raised != warm + count:
                    row.fail(f"{warm + count} visits have raised the signal to {raised}")
    return row


def signals(scale: float, seed: int, say: Say) -> list[Row]:
    return [_killed(transport, scale, seed, say) for transport in TRANSPORTS]


def reconnects(scale: float, seed: int, say: Say) -> list[Row]:
    return [_visited(transport, scale, seed, say) for transport in TRANSPORTS]


def no_verbs(talk: Conversation, _: Any) -> None:
    """Says why this host has none. Who has looked for devices is no good parent for others."""
    talk.say(why_not("verbs"))


def _by_device(name: str, run: Callable[[str, float, int, Say], Row]) -> Part:
    def part(scale: float, seed: int, say: Say) -> list[Row]:
        with child(no_verbs) as asked:
            why = asked.talk.hear()
        return [run("verbs", scale, seed, say) if why is None else Row(f"{name} · verbs", note=why)]

    return part


signals_by_device: Final = _by_device("writers killed", _killed)
reconnects_by_device: Final = _by_device("reconnects", _visited)
