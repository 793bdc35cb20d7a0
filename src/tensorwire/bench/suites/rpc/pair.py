# SPDX-License-Identifier: Apache-2.0
"""A contender under measurement: its server and its client, connected and spoken to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tensorwire.bench.harness.control import Control
from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.processes import (
    START_SECONDS,
    VISIT_FACTOR,
    expect,
    resting,
    started,
    tell,
)
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.rpc.contender import find


class Pair:
    """Two agents that are connected to each other. Raises AgentError when one of them fails.

    path: the transport that the calls take; note: what a reader of the figures has to know. awake:
    in which visits are made.
    """

    def __init__(
        self,
        server: Control,
        client: Control,
        path: str,
        note: str,
        awake: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.server = server
        self.client = client
        self.path = path
        self.note = note
        self._awake = awake

    def visit(self, work: Work, seconds: float) -> Visit:
        return self._visit(work, seconds, START_SECONDS + seconds * VISIT_FACTOR)

    def first(self, work: Work) -> Visit:
        return self._visit(work, None, START_SECONDS)

    def _visit(self, work: Work, seconds: float | None, limit: float) -> Visit:
        with self._awake():
            tell([self.server], {"work": work.to_json()})
            expect(self.server, limit, self.client)
            tell([self.client], {"work": work.to_json(), "seconds": seconds})
            return Visit(**expect(self.client, limit, self.server))


@contextmanager
def start(name: str, transport: str) -> Iterator[Pair]:
    """Starts both agents of a contender and ends them, whatever state they are in."""

    def commands(path: str) -> list[list[str]]:
        command = [sys.executable, "-m", "tensorwire.bench.suites.rpc.agent"]
        server, client = ([*command, role, name, transport, path] for role in ("server", "client"))
        return find(name).launch(server, client)

    with started(commands, 2) as ((client, _), (server, hello)):
        tell([client], {"address": hello["address"], "server_pids": hello["pids"]})
        connected = expect(client, START_SECONDS, server)
        spins = transport in find(name).spins
        with resting([server, client]) if spins else nullcontext(nullcontext) as awake:
            yield Pair(server, client, connected["path"], connected["note"], awake)
