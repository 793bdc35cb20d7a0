# SPDX-License-Identifier: Apache-2.0
"""Processes that have too little of something: descriptors, address space, arena."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
from tests.torture import service
from tests.torture.figures import Row, Say, scaled, tormented
from tests.torture.good import calling, phase_seconds, settle, stay
from tests.torture.processes import (
    Child,
    Conversation,
    child,
    cpu_seconds,
    descriptors,
    private_mib,
    status,
)

DATA_PLANE: Final = ("shm", "tcp")
END_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 10.0
"""A channel that has lost its link makes another one within seconds."""


def _attempt(do: Callable[[], Any]) -> str:
    """How it went: OK, a status, the name of an exception; wrong bytes in words."""
    try:
        do()
    except service.WrongBytesError as error:
        return f"WRONG BYTES: {error}"
    except grpc.RpcError as error:
        code = getattr(error, "code", None)
        return code().name if callable(code) else type(error).__name__
    except Exception as error:
        return type(error).__name__
    return "OK"


# ------------------------------------------------------------------------------------- descriptors


def crowd(talk: Conversation, order: dict[str, Any]) -> None:
    """New channels, one after the other, that are kept; how each fared. Then they are closed."""
    with contextlib.ExitStack() as stack:
        said = []
        for number in range(order["count"]):
            opened = stack.enter_context(service.channel(order["target"], order["transport"]))
            calls = service.Calls(opened, number)
            said.append(_attempt(lambda calls=calls: calls.echo(100, 0.3)))  # type: ignore[misc]
        talk.say(said)
        talk.hear()


def full_server(transport: str, scale: float, seed: int, say: Say) -> Row:
    """A server without descriptors for new links: the ones that it has go on, it does not turn on
    the spot, and new ones work as soon as there are descriptors again."""
    with (
        tormented(f"server without descriptors · {transport}", say) as row,
        child(service.serve, {}) as server,
    ):
        target = f"127.0.0.1:{server.talk.hear()}"
        with calling(target, seed, (transport,), links=False) as good:
            for number in range(scaled(20, scale)):
                _fill(row, server, target, transport, say, number)
            seen = good.phase()
        settle(row, {transport: {"calls": 0, "links": 0, "failures": [], "milliseconds": []}}, seen)
    return row


def _fill(row: Row, server: Child, target: str, transport: str, say: Say, number: int) -> None:
    server.ask({"RLIMIT_NOFILE": max(map(int, _open(server.pid))) + 1 + number})
    spent = cpu_seconds(server.pid)
    began = time.monotonic()
    order = {"target": target, "transport": transport, "count": 10}
    with child(crowd, order) as many:
        told = many.talk.hear(60)
        row.attempts += len(told)
        for how in told:
            if how not in ("OK", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"):
                row.fail(f"a channel to a full server: {how}")
        stay(0.5, say, f"{row.attempts} channels to a full server")
        share = (cpu_seconds(server.pid) - spent) / (time.monotonic() - began)
        if share > 0.7:
            row.fail(f"a full server takes {share:.0%} of a core")
        server.ask({"RLIMIT_NOFILE": -1})
    _new_links(row, target, transport)


def _open(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/fd")


def _new_links(row: Row, target: str, transport: str) -> None:
    """They work again, soon."""
    end = time.monotonic() + END_SECONDS
    order = {"target": target, "transport": transport, "count": 1}
    said = ["nothing"]
    while said != ["OK"] and time.monotonic() < end:
        with child(crowd, order) as one:
            said = one.talk.hear(60)
    if said != ["OK"]:
        row.fail(f"{END_SECONDS:.0f} s after the shortage a new channel says {said[0]}")
    row.new_links += 1


def narrow_client(talk: Conversation, order: dict[str, Any]) -> None:
    """A channel made with so many spare descriptors, and one without that limit."""
    with service.channel(order["target"], "grpc") as stock:  # starts the threads of grpcio
        service.Calls(stock, 1).echo(1)
        most = max(map(int, os.listdir("/proc/self/fd")))
        service.limit({"RLIMIT_NOFILE": most + order["spare"]})

        def attempt() -> None:
            with service.channel(order["target"], order["transport"]) as narrow:
                service.Calls(narrow, 1).add(100_000, 5)

        first = _attempt(attempt)
        service.limit({"RLIMIT_NOFILE": -1})
        # gRPC, which the shortage has kept from connecting, does not try again at once.
        end = time.monotonic() + END_SECONDS
        then = _attempt(attempt)
        while then == "UNAVAILABLE" and time.monotonic() < end:
            then = _attempt(attempt)
        talk.say([first, then])


def narrow_clients(transport: str, scale: float, seed: int, say: Say) -> Row:
    """Clients with few descriptors get an error at most, and recover."""
    with (
        tormented(f"clients without descriptors · {transport}", say) as row,
        child(service.serve, {}) as server,
    ):
        target = f"127.0.0.1:{server.talk.hear()}"
        for number in range(scaled(100, scale, 2)):
            order = {"target": target, "transport": transport, "spare": number % 25}
            with child(narrow_client, order) as one:
                first, then = one.talk.hear(60)
            row.attempts += 1
            if "WRONG" in first or then != "OK":
                row.fail(f"with {number % 25} spare descriptors {first}, then {then}")
            say(f"{row.attempts} clients")
        row.descriptors_after = descriptors(server.pid)
    return row


# ----------------------------------------------------------------------------------- address space


def _growing(opened: Any, seed: int, count: int, timeout: float) -> list[str]:
    """Calls whose messages get larger, and how each fared."""
    calls = service.Calls(opened, seed)
    rng = random.Random(seed)
    said = []
    for number in range(count):
        size = int(1000 * 2 ** (16 * number / count))
        do = rng.choice((calls.make, calls.add, calls.echo))
        said.append(_attempt(lambda do=do, size=size: do(size, timeout)))  # type: ignore[misc]
    return said


def hungry(talk: Conversation, order: dict[str, Any]) -> None:
    """A client that calls with growing messages when it is asked, then with small ones."""
    with service.channel(order["target"], order["transport"]) as opened:
        calls = service.Calls(opened, order["seed"])
        calls.add(100)
        talk.say("ready")
        while True:
            asked = talk.hear(3600)
            if asked == "grow":
                talk.say(_growing(opened, order["seed"], 16, 5))
            elif asked == "small":
                talk.say(_attempt(lambda: calls.echo(100, 5)))
            else:
                limits = {"RLIMIT_AS": asked if asked < 0 else _size_of("self") + asked}
                service.limit(limits)
                talk.say("limited")


def _size_of(pid: object) -> int:
    return status(os.getpid() if pid == "self" else int(str(pid)), "VmSize") << 10


def address_space(side: str, transport: str, scale: float, seed: int, say: Say) -> Row:
    """One side may take so much more address space and not a byte beyond: calls may fail, no
    process ends, no byte is wrong, and once there is room again the same channel works."""
    with tormented(f"{side} without address space · {transport}", say) as row:
        rng = random.Random(seed)
        for number in range(scaled(40, scale, 2)):
            spare = int(2 ** rng.uniform(21, 27))  # with less, grpcio aborts
            if row.failed >= Row.KEPT:
                break
            with child(service.serve, {"workers": 2}) as server:
                order = {"transport": transport, "seed": seed + number}
                order["target"] = f"127.0.0.1:{server.talk.hear()}"
                with child(hungry, order) as client:
                    client.talk.hear()
                    row.attempts += 1
                    _squeeze(row, side, server, client, spare)
            say(f"{row.attempts} limits")
    return row


def _squeeze(row: Row, side: str, server: Child, client: Child, spare: int) -> None:
    where = f"with {spare >> 10} KiB to spare"
    try:
        if side == "server":
            server.ask({"RLIMIT_AS": _size_of(server.pid) + spare})
        else:
            client.ask(spare)
        for how in client.ask("grow", 120):
            row.good_calls += how == "OK"
            if "WRONG" in how:
                row.fail(f"{where}: {how}")
        if side == "server":
            server.ask({"RLIMIT_AS": -1})
        else:
            client.ask(-1)
        end = time.monotonic() + AGAIN_SECONDS
        while (said := client.ask("small", 30)) != "OK" and time.monotonic() < end:
            time.sleep(0.1)
    except Exception as error:
        ended = f"server {server.wait(1)}, client {client.wait(1)}"
        row.fail(f"{where} a process has ended or hangs: {error}; {ended}")
        return
    if said != "OK":
        row.fail(f"{where}: {AGAIN_SECONDS:.0f} s afterwards {said}")


# ------------------------------------------------------------------------------------------ arenas


def keeper(talk: Conversation, order: dict[str, Any]) -> None:
    """Keeps all that it receives, up to a number of replies."""
    with service.channel(order["target"], order["transport"]) as opened:
        calls = service.Calls(opened, order["seed"])
        kept: list[Any] = []
        said: list[str] = []
        while len(said) < order["count"] and len(said) - said.count("OK") < 3:
            said.append(_attempt(lambda: kept.append(calls.add(order["size"], 10))))
        talk.say(said)
        talk.hear(3600)


def arenas(mib: int, scale: float, seed: int, say: Say) -> Row:
    """Six clients keep, together, three times what the server's arena holds; the good ones go on,
    and those who keep get copies."""
    with tormented(f"arena of {mib} MiB, kept by clients", say) as row:
        environment = {"TENSORWIRE_BUFFER_BYTES": str(mib << 20)}
        with child(service.serve, {"workers": 4}, environment) as server:
            target = f"127.0.0.1:{server.talk.hear()}"
            with calling(target, seed) as good, contextlib.ExitStack() as stack:
                stay(phase_seconds(scale), say, "quiet")
                quiet = good.phase()
                row.memory_before = private_mib(server.pid)
                size = max(20_000, (mib << 20) // 64)
                order = {
                    "target": target,
                    "transport": "shm",
                    "size": size,
                    "count": scaled(32, min(1.0, scale * 10), 8),
                }
                keepers = [
                    stack.enter_context(child(keeper, {**order, "seed": seed + i}))
                    for i in range(6)
                ]
                for one in keepers:
                    for how in one.talk.hear(600):
                        row.attempts += 1
                        if how != "OK":
                            row.fail(f"a call of one that keeps what it gets: {how}")
                stay(phase_seconds(scale), say, "full")
                attacked = good.phase()
                row.memory_after = private_mib(server.pid)
            settle(row, quiet, attacked)
    return row


def without_descriptors(scale: float, seed: int, say: Say) -> list[Row]:
    return [
        torment(transport, scale, seed, say)
        for transport in DATA_PLANE
        for torment in (full_server, narrow_clients)
    ]


def without_address_space(scale: float, seed: int, say: Say) -> list[Row]:
    return [
        address_space(side, transport, scale, seed, say)
        for transport in DATA_PLANE
        for side in ("server", "client")
    ]


def full_arenas(scale: float, seed: int, say: Say) -> list[Row]:
    return [arenas(mib, scale, seed, say) for mib in (1, 4, 64)]
