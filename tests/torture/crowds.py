# SPDX-License-Identifier: Apache-2.0
"""A great many at once: forked children, and channels."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any, Final

import grpc
from tests.torture import service
from tests.torture.figures import SPARE_DESCRIPTORS, Latency, Row, Say, scaled, tormented
from tests.torture.processes import Conversation, child, descriptors, private_mib, status

FORKS: Final = 1000
CHANNELS: Final = 1000
DATA_PLANE: Final = ("shm", "tcp")
_HEAP_MIB: Final = 4.0
_CHILD_SECONDS: Final = 20
_AT_ONCE: Final = 6
_EXITS: Final = {
    1: "a call on an inherited channel went through",
    2: "a new channel in the child did not work",
    3: "something else went wrong in the child",
    -signal.SIGALRM: "a child hung",
}


def forker(talk: Conversation, order: dict[str, Any]) -> None:
    """Forks children while two of its threads call."""
    opened = service.channel(order["target"], order["transport"])
    calls = service.Calls(opened, order["seed"])
    calls.echo(1)
    rng = random.Random(order["seed"])
    over = threading.Event()
    failures: list[str] = []
    made = [0]

    def work(number: int) -> None:
        mine = service.Calls(opened, number)
        while not over.is_set():
            wrong = service.fault(lambda: mine.any(largest=100_000))
            made[0] += not wrong
            if wrong:
                failures.append(f"in the parent {wrong}")

    workers = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for worker in workers:
        worker.start()
    living: set[int] = set()
    for number in range(order["count"]):
        time.sleep(rng.uniform(0, 0.01))
        pid = os.fork()
        if pid == 0:
            _forked(opened, order, number)
        living.add(pid)
        while len(living) >= _AT_ONCE or (living and number == order["count"] - 1):
            ended, how = os.wait()
            living.discard(ended)
            status = os.waitstatus_to_exitcode(how)
            if status:
                failures.append(_EXITS.get(status, f"a child ended with status {status}"))
        if number % 20 == 0:
            talk.say({"forks": number})
    over.set()
    for worker in workers:
        worker.join()
    opened.close()
    talk.say({"forks": order["count"], "calls": made[0], "failures": failures})


def _forked(inherited: Any, order: dict[str, Any], number: int) -> None:
    signal.alarm(_CHILD_SECONDS)
    try:
        try:
            service.Calls(inherited, number).echo(10, 5)
            os._exit(1)
        except (grpc.RpcError, RuntimeError, ValueError):
            pass
        try:
            with service.channel(order["target"], order["transport"]) as own:
                service.Calls(own, number).any()
        except (grpc.RpcError, RuntimeError, ValueError):
            os._exit(2)
        os._exit(0)
    except BaseException:
        os._exit(3)


def forks(scale: float, seed: int, say: Say) -> list[Row]:
    return [_forks(transport, scale, seed, say) for transport in DATA_PLANE]


def _forks(transport: str, scale: float, seed: int, say: Say) -> Row:
    with tormented(f"fork storm · {transport}", say) as row, child(service.serve, {}) as server:
        target = f"127.0.0.1:{server.talk.hear()}"
        row.descriptors_before, row.memory_before = (
            descriptors(server.pid),
            private_mib(server.pid),
        )
        count = scaled(FORKS, scale, 10)
        order = {"target": target, "transport": transport, "count": count, "seed": seed}
        with child(forker, order) as parent:
            said: dict[str, Any] = {}
            while "failures" not in said:
                said = parent.talk.hear(120)
                row.attempts = said["forks"]
                say(f"{row.attempts} forks")
        row.good_calls = said["calls"]
        for failure in said["failures"]:
            row.fail(failure)
        end = time.monotonic() + 10
        while (
            descriptors(server.pid) > row.descriptors_before + SPARE_DESCRIPTORS
            and time.monotonic() < end
        ):
            time.sleep(0.1)
        row.descriptors_after, row.memory_after = (
            descriptors(server.pid),
            private_mib(server.pid),
        )
        row.judge_descriptors()
        row.judge_memory(32)
    return row


# ---------------------------------------------------------------------------------------- channels


def many(talk: Conversation, order: dict[str, Any]) -> None:
    """Opens channels, calls on each, calls on all in any order, and closes them."""
    rng = random.Random(order["seed"])
    milliseconds: list[float] = []
    failures: list[str] = []
    links: list[service.Calls] = []
    with contextlib.ExitStack() as stack:
        for number in range(order["count"]):
            opened = stack.enter_context(
                service.channel(order["target"], service.TRANSPORTS[number % 2])
            )
            links.append(service.Calls(opened, number))
            failures += filter(None, [service.fault(lambda: links[-1].echo(64))])
            if number % 20 == 0:
                talk.say({"channels": number})
        rng.shuffle(links)
        for calls in links * 2:
            began = time.perf_counter()
            failures += filter(None, [service.fault(lambda calls=calls: calls.echo(64))])  # type: ignore[misc]
            milliseconds.append((time.perf_counter() - began) * 1e3)
        talk.say({"channels": order["count"], "milliseconds": milliseconds, "failures": failures})
        talk.hear(600)
    talk.say("closed")
    talk.hear(600)


def channels(scale: float, seed: int, say: Say) -> list[Row]:
    """A thousand channels of one process to one server, half of them shm, half of them tcp. Of what
    the server took for them its allocator may keep the pages, but the blocks are free again."""
    with tormented("channels at once", say) as row, child(service.serve, {}) as server:
        target = f"127.0.0.1:{server.talk.hear()}"
        row.descriptors_before, row.memory_before = descriptors(server.pid), private_mib(server.pid)
        used = server.ask("heap")["used"]
        order = {"target": target, "count": scaled(CHANNELS, scale, 10), "seed": seed}
        with child(many, order) as client:
            said: dict[str, Any] = {}
            while "failures" not in said:
                said = client.talk.hear(120)
                row.attempts = said["channels"]
                say(f"{row.attempts} channels")
            row.new_links, row.good_calls = row.attempts, 3 * row.attempts
            row.attacked = Latency.of(said["milliseconds"])
            for failure in said["failures"]:
                row.fail(failure)
            most = private_mib(server.pid)
            row.note = (
                f"{(most - row.memory_before) * 1024 / row.attempts:.0f} KiB a link in the server, "
                f"{status(server.pid, 'Threads')} threads"
            )
            client.ask("close", 120)
            end = time.monotonic() + 20
            while (
                descriptors(server.pid) > row.descriptors_before + SPARE_DESCRIPTORS
                and time.monotonic() < end
            ):
                time.sleep(0.1)
            row.descriptors_after, row.memory_after = (
                descriptors(server.pid),
                private_mib(server.pid),
            )
        more = server.ask("heap")["used"] - used
        if more > _HEAP_MIB:
            row.fail(f"the server's heap has {more:.1f} MiB more in use")
        row.judge_descriptors()
    return [row]
