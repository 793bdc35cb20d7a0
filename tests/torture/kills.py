# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed, stopped and interrupted at random points of whatever they do."""

from __future__ import annotations

import random
import signal
import threading
import time
import traceback
from typing import Any, Final

import grpc
from tests.torture import service
from tests.torture.figures import SPARE_DESCRIPTORS, Row, Say, scaled, tormented
from tests.torture.good import calling, phase_seconds, settle, stay
from tests.torture.processes import (
    Child,
    Conversation,
    GoneError,
    child,
    descriptors,
    private_mib,
)

KILLS: Final = 1000
INTERRUPTS: Final = 1000
STOPS: Final = 200
LANES: Final = 4
"""Victims at a time."""
DATA_PLANE: Final = ("shm", "tcp")
END_SECONDS: Final = 5.0
"""Within which calls to a dead server have ended."""
_LIFE_SECONDS: Final = 0.06


def victim(talk: Conversation, order: dict[str, Any]) -> None:
    """Calls of every kind from two threads, keeping what it received, until it is no more."""
    with service.channel(order["target"], order["transport"]) as opened:
        kept = []

        def work(number: int) -> None:
            calls = service.Calls(opened, order["seed"] + number)
            while True:
                calls.any()
                kept.append(calls.add(50_000))

        threading.Thread(target=work, args=(1,), daemon=True).start()
        talk.say("calling")
        work(0)


def clients(transport: str, scale: float, seed: int, say: Say) -> Row:
    """Clients are killed; the server gets back what they held."""
    with tormented(f"clients killed · {transport}", say) as row:
        rng = random.Random(seed)
        with child(service.serve, {}) as server:
            target = f"127.0.0.1:{server.talk.hear()}"
            with calling(target, seed, (transport,), links=False) as good:
                stay(phase_seconds(scale), say, "quiet")
                quiet = good.phase()
                row.memory_before = private_mib(server.pid)
                row.descriptors_before = descriptors(server.pid)
                living: list[tuple[float, Child]] = []
                for number in range(scaled(KILLS, scale, LANES)):
                    order = {"target": target, "transport": transport, "seed": seed + number}
                    life = rng.uniform(0, 2 * _LIFE_SECONDS)
                    living.append((time.monotonic() + life, Child(victim, order)))
                    row.attempts += 1
                    if len(living) == LANES:
                        _kill_one(living)
                    say(f"{row.attempts} killed")
                while living:
                    _kill_one(living)
                attacked = good.phase()
                end = time.monotonic() + 10
                while (
                    descriptors(server.pid) > row.descriptors_before + SPARE_DESCRIPTORS
                    and time.monotonic() < end
                ):
                    stay(0.1, say, "aftermath")
                row.memory_after = private_mib(server.pid)
                row.descriptors_after = descriptors(server.pid)
            settle(row, quiet, attacked)
            row.judge_memory(32)
            row.judge_descriptors()
            if server.poll() is not None:
                row.fail(f"the server has ended with status {server.poll()}")
    return row


def _kill_one(living: list[tuple[float, Child]]) -> None:
    living.sort(key=lambda one: one[0])
    when, dying = living.pop(0)
    time.sleep(max(0.0, when - time.monotonic()))
    dying.kill()
    dying.talk.close()


def survivor(talk: Conversation, order: dict[str, Any]) -> None:
    """For each server it hears of: calls it from two threads until there is nothing to call."""
    while True:
        target = talk.hear(3600)
        ended: list[tuple[str, str]] = []
        with service.channel(target, order["transport"]) as opened:

            def work(number: int, opened: Any = opened, ended: Any = ended) -> None:
                calls = service.Calls(opened, order["seed"] + number)
                try:
                    while True:
                        calls.any()
                except grpc.RpcError as error:
                    ended.append((error.code().name, str(error.details())[:100]))
                except Exception as error:
                    ended.append((type(error).__name__, str(error)[:100]))

            workers = [threading.Thread(target=work, args=(n,)) for n in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        talk.say(ended)


def servers(transport: str, number: int, scale: float, seed: int, say: Say) -> Row:
    """Servers get a signal while clients call: calls end soon, as they should, and right."""
    killed = number == signal.SIGKILL
    with tormented(f"servers {'killed' if killed else 'interrupted'} · {transport}", say) as row:
        allowed = {"UNAVAILABLE"} if killed else {"UNAVAILABLE", "CANCELLED"}
        rng = random.Random(seed)
        order = {"transport": transport, "seed": seed}
        callers = [Child(survivor, order) for _ in range(LANES)]
        try:
            least = private_mib(callers[0].pid), descriptors(callers[0].pid)
            wanted = scaled(KILLS if killed else KILLS // 5, scale, LANES)
            while row.attempts < wanted and row.failed < Row.KEPT:
                _round(row, callers, number, allowed, rng)
                if row.attempts <= max(wanted // 5, LANES):  # by then they have all they need
                    least = private_mib(callers[0].pid), descriptors(callers[0].pid)
                say(f"{row.attempts} servers")
            row.memory_before, row.descriptors_before = least
            row.memory_after = private_mib(callers[0].pid)
            row.descriptors_after = descriptors(callers[0].pid)
            row.judge_memory(32)
            row.judge_descriptors()
        finally:
            for one in callers:
                if one.end() != 0:
                    row.fail("a client did not end by itself")
    return row


def _round(
    row: Row, callers: list[Child], number: int, allowed: set[str], rng: random.Random
) -> None:
    """A server for each client."""
    order = {"workers": 2, "until interrupted": True}
    running = [Child(service.serve, order) for _ in callers]
    try:
        for one, caller in zip(running, callers, strict=True):
            caller.talk.say(f"127.0.0.1:{one.talk.hear()}")
        now = time.monotonic()
        plan = sorted((now + rng.uniform(0, 2 * _LIFE_SECONDS), i) for i in range(len(running)))
        for when, i in plan:
            time.sleep(max(0.0, when - time.monotonic()))
            running[i].signal(number)
        for one, caller in zip(running, callers, strict=True):
            row.attempts += 1
            for code, details in caller.talk.hear(service.CALL_SECONDS + END_SECONDS):
                if code not in allowed:
                    row.fail(f"a call ended with {code}: {details}")
            told = time.monotonic()
            status = one.wait(END_SECONDS)
            if status != (0 if number == signal.SIGINT else -number):
                row.fail(f"a server ended with status {status}")
        if told > now + END_SECONDS:
            row.fail(f"calls took {told - now:.1f} s to end")
    finally:
        for one in running:
            one.signal(signal.SIGUSR1)  # if it is still there, it says where
            one.wait(0.2)
            one.kill()
            one.talk.close()


# ------------------------------------------------------------------------------------- interrupts


def interruptible(talk: Conversation, order: dict[str, Any]) -> None:
    """Calls until Ctrl-C, again and again on one channel."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with service.channel(order["target"], order["transport"]) as opened:
        calls = service.Calls(opened, order["seed"])
        calls.echo(1)
        while True:
            made, failure = 0, ""
            try:
                talk.say("go")
                while True:
                    calls.any(largest=100_000)
                    made += 1
            except KeyboardInterrupt:
                pass
            except Exception as error:
                traceback.print_exc()
                # Thread.start() may raise this one instead of KeyboardInterrupt.
                failure = service.sentence(error).removeprefix(
                    "RuntimeError: release unlocked lock"
                )
            talk.say({"made": made, "failure": failure})
            if talk.hear() == "over":
                return


def interrupts(transport: str, scale: float, seed: int, say: Say) -> Row:
    """A client is interrupted in the middle of its calls, and goes on with the same channel."""
    with tormented(f"clients interrupted · {transport}", say) as row:
        rng = random.Random(seed)
        wanted = scaled(INTERRUPTS, scale, 10)
        lost = 0
        with child(service.serve, {}) as server:
            order = {
                "target": f"127.0.0.1:{server.talk.hear()}",
                "transport": transport,
                "seed": seed,
            }
            with child(interruptible, order) as caller:
                for number in range(wanted):
                    if number == wanted // 5:
                        row.memory_before = private_mib(server.pid)
                        row.descriptors_before = descriptors(server.pid)
                    assert caller.talk.hear() == "go"
                    time.sleep(rng.uniform(0, 0.005))
                    row.attempts += 1
                    for _ in range(3):
                        caller.signal(signal.SIGINT)
                        if caller.talk.heard(2):
                            break
                        lost += 1  # Python drops an exception that a destructor raises
                    try:
                        said = caller.talk.hear(END_SECONDS)
                    except GoneError as error:
                        row.fail(f"an interrupted call did not end: {error}")
                        break
                    row.good_calls += said["made"]
                    if said["failure"]:
                        row.fail(said["failure"])
                    caller.talk.say("again" if number + 1 < wanted else "over")
                    say(f"{row.attempts} interrupts")
                row.memory_after = private_mib(server.pid)
                row.descriptors_after = descriptors(server.pid)
            row.judge_memory(32)
            row.judge_descriptors()
        if lost > 1 + row.attempts // 100:
            row.fail(f"{lost} interrupts were lost")
        row.note = f"{lost} came in a destructor and were sent again" if lost else ""
    return row


# ------------------------------------------------------------------------------------ stopped peers


def stopped_clients(transport: str, scale: float, seed: int, say: Say) -> Row:
    """Clients are stopped in the middle of large replies; twice as many as the server has workers.
    Then half of them go on, and half of them are killed."""
    with tormented(f"clients stopped · {transport}", say) as row:
        rng = random.Random(seed)
        with child(service.serve, {"workers": 4}) as server:
            target = f"127.0.0.1:{server.talk.hear()}"
            with calling(target, seed) as good:
                stay(phase_seconds(scale), say, "quiet")
                quiet = good.phase()
                row.memory_before = private_mib(server.pid)
                row.descriptors_before = descriptors(server.pid)
                while row.attempts < scaled(STOPS, scale, 8) and row.failed < Row.KEPT:
                    orders = [
                        {"target": target, "transport": transport, "seed": rng.getrandbits(30)}
                        for _ in range(8)
                    ]
                    stopping = [Child(greedy, order) for order in orders]
                    for one in stopping:
                        one.talk.hear()
                        time.sleep(rng.uniform(0, 0.02))
                        one.stop()
                        row.attempts += 1
                    stay(phase_seconds(scale) / 3, say, f"{row.attempts} stopped")
                    for i, one in enumerate(stopping):
                        _release(row, one, kill=i % 2 == 0)
                attacked = good.phase()
                end = time.monotonic() + 10
                while (
                    descriptors(server.pid) > row.descriptors_before + SPARE_DESCRIPTORS
                    and time.monotonic() < end
                ):
                    stay(0.1, say, "aftermath")
                row.memory_after = private_mib(server.pid)
                row.descriptors_after = descriptors(server.pid)
            settle(row, quiet, attacked)
            row.judge_memory(64)
            row.judge_descriptors()
    return row


def _release(row: Row, one: Child, *, kill: bool) -> None:
    if kill:
        one.kill()
        one.talk.close()
        return
    one.signal(signal.SIGCONT)
    try:
        for code in one.talk.hear(service.CALL_SECONDS + END_SECONDS):
            if code not in {"OK", "UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"}:
                row.fail(f"a client that had been stopped got {code}")
    except GoneError as error:
        row.fail(f"a client that had been stopped: {error}")
    one.end()


def greedy(talk: Conversation, order: dict[str, Any]) -> None:
    """Many large replies at once."""
    with service.channel(order["target"], order["transport"]) as opened:
        calls = service.Calls(opened, order["seed"])
        calls.echo(1)
        codes: list[str] = []

        def work() -> None:
            try:
                calls.make(4 << 20)
                codes.append("OK")
            except grpc.RpcError as error:
                codes.append(error.code().name)
            except service.WrongBytesError as error:
                codes.append(str(error))

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        talk.say("calling")
        for worker in workers:
            worker.join()
        talk.say(codes)
        talk.hear()


def impatient(talk: Conversation, order: dict[str, Any]) -> None:
    """A call with a short deadline each time it is asked: its code, and how long it took."""
    with service.channel(order["target"], order["transport"]) as opened:
        calls = service.Calls(opened, order["seed"])
        calls.echo(1)
        talk.say("ready")
        while True:
            timeout = talk.hear(3600)
            began = time.monotonic()
            code = "OK"
            try:
                calls.any(timeout)
            except grpc.RpcError as error:
                code = error.code().name
            talk.say([code, time.monotonic() - began])


def stopped_server(transport: str, scale: float, seed: int, say: Say) -> Row:
    """Calls to a server that is stopped end at their deadlines, and later ones work again."""
    with tormented(f"server stopped · {transport}", say) as row, child(service.serve, {}) as server:
        order = {
            "target": f"127.0.0.1:{server.talk.hear()}",
            "transport": transport,
            "seed": seed,
        }
        with child(impatient, order) as caller:
            caller.talk.hear()
            for _ in range(scaled(100, scale, 3)):
                server.stop()
                code, took = caller.ask(0.05)
                server.signal(signal.SIGCONT)
                row.attempts += 1
                if code != "DEADLINE_EXCEEDED" or took > 2:
                    row.fail(f"a call to a stopped server ended with {code} after {took:.2f} s")
                code, took = caller.ask(10)
                if code != "OK":
                    row.fail(f"a call to a server that goes on ended with {code}")
                row.good_calls += 1
                say(f"{row.attempts} times")
    return row


def killed(scale: float, seed: int, say: Say) -> list[Row]:
    rows = []
    for transport in DATA_PLANE:
        rows.append(clients(transport, scale, seed, say))
        rows.append(servers(transport, signal.SIGKILL, scale, seed, say))
    return rows


def interrupted(scale: float, seed: int, say: Say) -> list[Row]:
    rows = []
    for transport in DATA_PLANE:
        rows.append(interrupts(transport, scale, seed, say))
        rows.append(servers(transport, signal.SIGINT, scale, seed, say))
    return rows


def stopped(scale: float, seed: int, say: Say) -> list[Row]:
    rows = []
    for transport in DATA_PLANE:
        rows.append(stopped_clients(transport, scale, seed, say))
        rows.append(stopped_server(transport, scale, seed, say))
    return rows
