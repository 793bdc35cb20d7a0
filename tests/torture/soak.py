# SPDX-License-Identifier: Apache-2.0
"""Ten minutes of everything that a good client may do. Memory has to level off."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from typing import Any, Final

from tests.torture import service
from tests.torture.figures import SPARE_DESCRIPTORS, Row, Say, tormented
from tests.torture.processes import Child, Conversation, child, descriptors, private_mib, status

SECONDS: Final = 600.0
MAY_GROW_MIB: Final = 4.0
"""In the last third, beyond the most that was seen in the second."""
_LEVEL_SECONDS: Final = 60.0
"""A soak must last as long for its memory to be judged: it rises for some seconds at first."""
_THREADS: Final = 2
_KEPT: Final = 8


def soaker(talk: Conversation, order: dict[str, Any]) -> None:
    """Calls, streams, calls that are given up, new channels, and replies that are kept a while."""
    made = [0]
    failures: list[str] = []
    over = threading.Event()

    def work(number: int) -> None:
        rng = random.Random(number)
        kept: deque[Any] = deque(maxlen=_KEPT)
        while not over.is_set():
            with service.channel(order["target"], order["transport"]) as opened:
                calls = service.Calls(opened, rng.getrandbits(32))
                for _ in range(rng.randrange(1, 400)):
                    try:
                        if rng.random() < 0.1:
                            calls.give_up(rng.randrange(300_000), rng)
                        elif rng.random() < 0.1:
                            kept.append(calls.add(rng.randrange(20_000, 300_000)))
                        else:
                            calls.any()
                    except Exception as error:
                        failures.append(service.sentence(error))
                    made[0] += 1
                    if over.wait(rng.uniform(0, 0.004)):
                        break

    workers = [threading.Thread(target=work, args=(order["seed"] + n,)) for n in range(_THREADS)]
    for worker in workers:
        worker.start()
    try:
        while talk.hear(3600) != "over":
            talk.say(service.heap())
    finally:
        over.set()
        for worker in workers:
            worker.join()
    talk.say({"made": made[0], "failures": failures})


def run(scale: float, seed: int, say: Say) -> list[Row]:
    seconds = max(2.0, SECONDS * scale)
    with child(service.serve, {}) as server:
        order = {"target": f"127.0.0.1:{server.talk.hear()}"}
        clients = {
            name: Child(soaker, {**order, "transport": name, "seed": seed + 10 * i})
            for i, name in enumerate(service.TRANSPORTS)
        }
        try:
            return _soak({"server": server, **clients}, seconds, say)
        finally:
            for one in clients.values():
                one.end()


def _soak(everyone: dict[str, Child], seconds: float, say: Say) -> list[Row]:
    samples: dict[str, list[tuple[float, int]]] = {name: [] for name in everyone}
    began = time.monotonic()
    with tormented("soak", say):
        while (passed := time.monotonic() - began) < seconds:
            for name, one in everyone.items():
                samples[name].append((private_mib(one.pid), descriptors(one.pid)))
            now = ", ".join(f"{name} {told[-1][0]:.0f}" for name, told in samples.items())
            say(f"{passed:.0f} of {seconds:.0f} s, private MiB: {now}")
            time.sleep(min(1.0, seconds / 30))
    rows = []
    for name, one in everyone.items():
        with tormented(f"soak · {name}", say) as row:
            if name == "server":
                held = one.ask("heap")
            else:
                held = one.ask("heap")
                said = one.ask("over", 60)
                row.attempts = row.good_calls = said["made"]
                for failure in said["failures"]:
                    row.fail(failure)
            _judge(row, samples[name], seconds)
            row.note = (
                f"heap {held['arenas'] + held['mapped']:.0f} MiB, of it used {held['used']:.0f}; "
                f"{status(one.pid, 'Threads')} threads"
            )
        row.seconds = time.monotonic() - began
        rows.append(row)
    return rows


def _judge(row: Row, told: list[tuple[float, int]], seconds: float) -> None:
    second, last = told[len(told) // 3 : 2 * len(told) // 3], told[2 * len(told) // 3 :]
    row.memory_before, row.memory_after = (max(mib for mib, _ in part) for part in (second, last))
    row.descriptors_before, row.descriptors_after = (
        max(count for _, count in part) for part in (second, last)
    )
    if seconds >= _LEVEL_SECONDS:
        row.judge_memory(MAY_GROW_MIB)
    row.judge_descriptors(4 * SPARE_DESCRIPTORS)
