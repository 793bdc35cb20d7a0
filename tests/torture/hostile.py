# SPDX-License-Identifier: Apache-2.0
"""Hostile connections of every kind at every listener, while good clients call."""

from __future__ import annotations

import os
import random
import resource
import time
from typing import Any, Final

from tests.torture import intruders, service, strangers
from tests.torture.figures import SPARE_DESCRIPTORS, Row, Say, scaled, tormented
from tests.torture.good import Good, calling, phase_seconds, settle, stay
from tests.torture.processes import (
    Child,
    Conversation,
    GoneError,
    child,
    descriptors,
    private_mib,
)

CONNECTIONS: Final = 10_000
MOST_A_SECOND: Final = 1000
MOST_SECONDS: Final = 60.0
"""For one kind at one listener."""
_AFTERMATH_SECONDS: Final = 20.0
"""Within which a server has forgotten its attackers."""
_GROWTH_MIB: Final = 32.0
"""What glibc keeps."""
_PEAK_MIB: Final = 256.0
"""While twenty greedy links are open."""

KINDS: Final = {**strangers.KINDS, **intruders.KINDS}
CASES: Final = tuple(
    (name, listener) for name, (listeners, _) in KINDS.items() for listener in listeners
)


def attack(talk: Conversation, order: dict[str, Any]) -> None:
    """An attacker. It only runs when nobody else wants to: what it costs is what the server has to
    do, not the processor time that it would spend on a machine of its own."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    scene = strangers.Scene(
        order["host"],
        order["port"],
        order["listener"],
        random.Random(order["seed"]),
        order["source"],
    )
    began = told = time.monotonic()
    end = began + order["seconds"]
    made = 0
    try:
        for _ in strangers.counted(KINDS[order["kind"]][1], scene):
            made += 1
            if made >= order["count"] or time.monotonic() > end:
                break
            time.sleep(max(0.0, began + made / MOST_A_SECOND - time.monotonic()))
            if time.monotonic() > told + 1:
                told = time.monotonic()
                talk.say({"made": made})
    except strangers.BreachError as error:
        talk.say({"made": made, "breach": str(error)})
    talk.say({"made": made, "over": True})
    talk.hear(600)  # what it holds stays open until it is told to end


def run(scale: float, seed: int, say: Say) -> list[Row]:
    return [one(case, scale, seed + i, say) for i, case in enumerate(CASES)]


def one(case: tuple[str, str], scale: float, seed: int, say: Say) -> Row:
    """A kind at a listener, on a server of its own."""
    name, listener = case
    with tormented(f"{name} · {listener}", say) as row, child(service.serve, {}) as server:
        order = {"kind": name, "listener": listener, "port": server.talk.hear(), "seed": seed}
        with calling(f"127.0.0.1:{order['port']}", seed) as good:
            _attacked(row, server, good, order, scale, say)
        if server.poll() is not None:
            row.fail(f"the server has ended with status {server.poll()}")
    return row


def _attacked(
    row: Row, server: Child, good: Good, order: dict[str, Any], scale: float, say: Say
) -> None:
    stay(phase_seconds(scale) / 3, say, "warming up")
    good.phase()
    stay(phase_seconds(scale), say, "quiet")
    quiet = good.phase()
    row.memory_before, row.descriptors_before = private_mib(server.pid), descriptors(server.pid)
    order |= {
        "host": "127.0.0.1",
        "source": "127.0.0.1",
        "count": scaled(CONNECTIONS, scale, 20),
        "seconds": max(2.0, MOST_SECONDS * min(1.0, scale * 2)),
    }
    with child(attack, order) as attacker:
        row.attempts, most = _watch(row, server, attacker, order, say)
        attacked = good.phase()
    end = time.monotonic() + _AFTERMATH_SECONDS
    limit = row.descriptors_before + SPARE_DESCRIPTORS
    while descriptors(server.pid) > limit and time.monotonic() < end:
        stay(0.2, say, "aftermath")
    row.memory_after, row.descriptors_after = private_mib(server.pid), descriptors(server.pid)
    after = good.phase()
    for name, seen in after.items():
        if seen["failures"]:
            row.fail(f"afterwards: {seen['failures'][0]}", len(seen["failures"]))
        row.good_calls += seen["calls"]
        row.new_links += seen["links"]
        if not seen["calls"] and not attacked[name]["calls"]:
            row.fail(f"the good client of {name} does not come back")
    settle(row, quiet, attacked)
    row.judge_latency()
    row.note = f"at most {most:.0f} MiB"
    if most > row.memory_before + _PEAK_MIB:
        row.fail(f"private memory rose from {row.memory_before:.0f} to {most:.0f} MiB meanwhile")
    row.judge_memory(_GROWTH_MIB)
    row.judge_descriptors()


def _watch(
    row: Row, server: Child, attacker: Child, order: dict[str, Any], say: Say
) -> tuple[int, float]:
    """Attempts that were made, and the most private memory that was seen meanwhile."""
    made, most = 0, 0.0
    end = time.monotonic() + order["seconds"] + 30
    while time.monotonic() < end:
        try:
            while not attacker.talk.heard(0.1):
                most = max(most, private_mib(server.pid))
                if time.monotonic() > end:
                    raise GoneError("it says nothing")
            said = attacker.talk.hear(1)
        except GoneError as error:
            row.fail(f"the attacker got stuck after {made}: {error}")
            break
        made = said["made"]
        say(f"{made} of {order['count']} attempts")
        if "breach" in said:
            row.fail(said["breach"])
        if "over" in said:
            break
    return made, max(most, private_mib(server.pid))
