# SPDX-License-Identifier: Apache-2.0
"""MPI between ranks of one host: non-blocking sends and receives, all buffers of a payload under
way at once. One thread of a server serves all of its callers. Who waits, in a visit, spins: its
latency is bought with a whole core for each rank. No status and no metadata."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorwire.bench.contenders.rpc.mpi import OverMpi, version
from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.tf_grpc.contender import Client, Contender, Procedure, Request
from tensorwire.bench.suites.tf_grpc.ranks import (
    Attending,
    Peer,
    RankClient,
    connected,
    listening,
)

if TYPE_CHECKING:
    from mpi4py import MPI

_TO_SERVER, _TO_CLIENT = 1, 2
"""Tags: a node is both."""


class _Rank(Peer):
    def __init__(self, comm: MPI.Comm, other: int, sends: int, receives: int) -> None:
        from mpi4py import MPI

        self._wait = MPI.Request.Waitall
        self._comm = comm
        self._other = other
        self._sends, self._receives = sends, receives

    def send(self, arrays: Sequence[Any]) -> None:
        send, other, tag = self._comm.Isend, self._other, self._sends
        self._wait([send(each, other, tag) for each in arrays])

    def receiving(self, arrays: Sequence[Any]) -> Callable[[], object]:
        receive, other, tag = self._comm.Irecv, self._other, self._receives
        return partial(self._wait, [receive(each, other, tag) for each in arrays])


class _Server:
    """Its thread sleeps while no client is in a visit."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._visits: dict[int, Attending] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def attend(self, control: Control) -> None:
        """A client's connection, until it hangs up."""
        control.send({"rank": self._comm.Get_rank()})
        rank = control.receive()["rank"]
        peer = _Rank(self._comm, rank, _TO_CLIENT, _TO_SERVER)
        while message := control.receive():
            visit = Attending(peer, Request.from_json(message["request"]))
            with self._lock:
                # What ends the one before may not have been received yet.
                self._changed.wait_for(lambda: rank not in self._visits)
                self._visits[rank] = visit
                self._changed.notify_all()
            control.send({"ready": True})

    def serve(self) -> None:
        from mpi4py import MPI

        status, found = MPI.Status(), self._visits
        while True:
            with self._lock:
                self._changed.wait_for(lambda: found)
            self._comm.Probe(MPI.ANY_SOURCE, _TO_SERVER, status)
            rank = status.Get_source()
            if not found[rank].call():
                with self._lock:
                    del found[rank]
                    self._changed.notify_all()


class Mpi(OverMpi, Contender):
    modes = frozenset({"non-serialized"})
    pipelines: frozenset[Procedure] = frozenset({"acknowledge"})
    """Of the same payload only one echo at a time has a place to come to."""
    near = True

    def launch(self, commands: Sequence[Sequence[str]]) -> list[list[str]]:
        return self.commands(commands)

    @contextmanager
    def joined(self, transport: str, folder: str, number: int) -> Iterator[None]:
        self.join()
        yield

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        from mpi4py import MPI

        server = _Server(MPI.COMM_WORLD)
        threading.Thread(target=server.serve, daemon=True).start()
        with listening(host, port, server.attend) as address:
            yield address

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        with connected(address) as control:
            rank = control.receive()["rank"]
            control.send({"rank": comm.Get_rank()})
            peer = _Rank(comm, rank, _TO_SERVER, _TO_CLIENT)
            yield RankClient(peer, control, self.path, f"{version()}; all ranks spin in a visit")
