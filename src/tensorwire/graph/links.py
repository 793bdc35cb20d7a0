# SPDX-License-Identifier: Apache-2.0
"""How the machines of a plan meet, and how each of them learns that another one is gone."""

from __future__ import annotations

import hmac
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any, Final, NoReturn, TypeVar

import grpc
import msgspec

from tensorwire import rpc
from tensorwire.collective import Store
from tensorwire.graph.plan import PlanError

CONTROL: Final = 0
"""The tag of what machines say of themselves; those above it are the plan's."""
_MOST_BYTES: Final = 8 << 10
"""Of what one says. More than that is of no machine."""
_LOOK: Final = 0.01
"""Seconds between looks at what strangers say."""
_FAREWELL: Final = 1.0
"""Seconds for telling others why this machine ends."""

_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Token = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
S = TypeVar("S", bound=msgspec.Struct)


class ReplayError(RuntimeError):
    """A replay has come to its end, on all machines; the text says why."""


class StageLostError(ReplayError, ConnectionError):
    """A machine is gone, or a stage of its failed. ``machine``: which."""

    def __init__(self, machine: str, why: str) -> None:
        super().__init__(f"machine {machine} is lost: {why}; restart all of them")
        self.machine = machine


class StageTimeoutError(ReplayError, TimeoutError):
    """A machine has not come, or has sent nothing, in time."""


class _Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a machine is, and what it takes to be let in."""

    target: _Text
    token: _Token


class _Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    machine: _Text
    digest: _Text
    token: _Token


class _Bye(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """No more comes from this machine. ``error``: why it ends early."""

    error: _Text = ""


class _Said:
    """The next thing that a peer says of itself."""

    def __init__(self, peer: rpc.Peer) -> None:
        self._memory = bytearray(_MOST_BYTES)
        self._posted = peer.post(CONTROL, self._memory)

    def wait(self, kind: type[S], timeout: float | None) -> S | None:
        """None: nothing has come. Raises CallError, msgspec.MsgspecError."""
        count = self._posted.wait(timeout)
        if count is None:
            return None
        assert isinstance(count, int)
        return msgspec.msgpack.decode(memoryview(self._memory)[:count], type=kind)

    @property
    def done(self) -> bool:
        return self._posted.done

    def heard(self, kind: type[S]) -> S | None:
        """What has come already; None for nothing, or nonsense. May be called once."""
        if not self._posted.done:
            return None
        with suppress(rpc.CallError, msgspec.MsgspecError, UnicodeDecodeError):
            return self.wait(kind, 0)
        return None


class Links:
    """A link to each of the other machines. Returns once all have come with the same digest.

    PlanError: a machine has another one. StageTimeoutError: one has not come in time.
    """

    def __init__(
        self,
        store: Store,
        machine: str,
        machines: Sequence[str],
        digest: str,
        *,
        host: str,
        transport: Any,
        timeout: float,
    ) -> None:
        self._me: Final = machine
        self._digest = digest
        self._until = time.monotonic() + timeout
        self.peers: dict[str, rpc.Peer] = {}
        self._said: dict[str, _Said] = {}
        self._lock = threading.Lock()  # guards what follows
        self._lost: ReplayError | None = None
        self._closing = False
        self._channels: list[rpc.Channel] = []
        self._pool = ThreadPoolExecutor(1)
        self._server = rpc.server(self._pool, transport=transport)
        try:
            self._meet(store, sorted(machines), host, transport)
        except BaseException:
            self._end()
            raise
        for name, peer in self.peers.items():
            self._said[name] = _Said(peer)
        for name, peer in self.peers.items():
            peer.on_gone(partial(self._gone, name))

    # ------------------------------------------------------------------------------------ meeting

    def _meet(self, store: Store, machines: list[str], host: str, transport: Any) -> None:
        arrived: queue.SimpleQueue[rpc.Peer] = queue.SimpleQueue()
        token = secrets.token_bytes(16)
        port = self._server.add_insecure_port(f"{host}:0")
        self._server.start()
        self._server.on_peer(arrived.put)
        mine = machines.index(self._me)
        store.set(f"graph/{mine}", msgspec.msgpack.encode(_Address(f"{host}:{port}", token)))
        for number, name in enumerate(machines[:mine]):
            self._call(name, self._address(store, number, name), transport)
        self._answer(arrived, token, machines[mine + 1 :])

    def _address(self, store: Store, number: int, name: str) -> _Address:
        try:
            data = store.get(f"graph/{number}", self._time_left(name))
            return msgspec.msgpack.decode(data, type=_Address)
        except TimeoutError:
            self._late([name])
        except msgspec.MsgspecError as error:
            raise ReplayError(f"the store has no address of machine {name}: {error}") from None

    def _call(self, name: str, address: _Address, transport: Any) -> None:
        channel = rpc.insecure_channel(address.target, transport=transport)
        self._channels.append(channel)
        peer = channel.peer()
        if peer is None:
            raise StageLostError(name, f"there is no link to {address.target}: {channel.path()}")
        said = _Said(peer)
        try:
            self._say(peer, _Hello(self._me, self._digest, address.token), self._time_left(name))
            hello = said.wait(_Hello, self._time_left(name))
        except rpc.CallError as error:
            raise StageLostError(name, str(error.details())) from None
        except msgspec.MsgspecError as error:
            raise ReplayError(f"{address.target} is no machine of a replay: {error}") from None
        if hello is None:
            self._late([name])
        self._check(hello)
        self.peers[name] = peer

    def _answer(
        self, arrived: queue.SimpleQueue[rpc.Peer], token: bytes, missing: list[str]
    ) -> None:
        """Waits for the others. Who does not know the token is a stranger, and may stay silent."""
        strangers: list[tuple[rpc.Peer, _Said]] = []
        while missing:
            self._time_left(*missing)
            with suppress(queue.Empty, rpc.CallError):
                peer = arrived.get(timeout=_LOOK)
                strangers.append((peer, _Said(peer)))
            for each in list(strangers):
                peer, said = each
                if not said.done:
                    continue
                strangers.remove(each)
                hello = said.heard(_Hello)
                if hello is None or not hmac.compare_digest(hello.token, token):
                    peer.close()
                    continue
                self._say(peer, _Hello(self._me, self._digest, token), _FAREWELL)
                self._check(hello)
                if hello.machine not in missing:
                    raise PlanError(f"machine {hello.machine} has come twice, or has no stage")
                missing.remove(hello.machine)
                self.peers[hello.machine] = peer

    def _check(self, hello: _Hello) -> None:
        if hello.digest != self._digest:
            raise PlanError(
                f"machine {hello.machine} has the plan {hello.digest[:12]}, and {self._me} "
                f"{self._digest[:12]}: both need the same program, depth and coalesce"
            )

    def _time_left(self, *names: str) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            self._late(names)
        return left

    def _late(self, names: Sequence[str]) -> NoReturn:
        raise StageTimeoutError(f"not come in time: machine {', '.join(names)}")

    @staticmethod
    def _say(peer: rpc.Peer, what: msgspec.Struct, timeout: float) -> None:
        peer.send(CONTROL, msgspec.msgpack.encode(what), timeout)

    # --------------------------------------------------------------------------------- the others

    def _gone(self, name: str, peer: rpc.Peer) -> None:
        with self._lock:
            if self._closing or self._lost is not None:
                return
            self._lost = self._loss(name, peer.death)
        # All waits end, whichever machine they are for.
        for each in self.peers.values():
            each.close()

    def _loss(self, name: str, why: str) -> StageLostError:
        bye = self._said[name].heard(_Bye)
        return StageLostError(name, bye.error if bye is not None and bye.error else why)

    @contextmanager
    def talking_to(self, name: str) -> Iterator[None]:
        """Raises what ends a send or a wait for a machine as a ReplayError."""
        try:
            yield
        except rpc.CallError as error:
            raise self._failure(name, error) from None

    def _failure(self, name: str, error: rpc.CallError) -> ReplayError:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return StageTimeoutError(f"machine {name}: {error.details()}")
        with self._lock:
            if self._lost is None:
                self._lost = self._loss(name, str(error.details()))
            return self._lost

    # -------------------------------------------------------------------------------------- its end

    def close(self, timeout: float) -> None:
        """Waits until all machines want to close, so that nothing is lost under way. Raises
        StageLostError, StageTimeoutError; the links are closed then, too."""
        until = time.monotonic() + timeout
        with self._lock:
            lost, self._closing = self._lost, True
        try:
            if lost is not None:
                raise lost
            for name, peer in self.peers.items():
                with self.talking_to(name):
                    self._say(peer, _Bye(), max(0.0, until - time.monotonic()))
            for name, said in self._said.items():
                with self.talking_to(name):
                    bye = said.wait(_Bye, max(0.0, until - time.monotonic()))
                if bye is None:
                    raise StageTimeoutError(f"machine {name} has not come to its end in time")
                if bye.error:
                    raise StageLostError(name, bye.error)
        finally:
            self._end()

    def abort(self, why: str) -> None:
        """Ends all links at once; the others learn why."""
        for peer in self.peers.values():
            with suppress(rpc.CallError):
                self._say(peer, _Bye(why[:1000] or "it failed"), _FAREWELL)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._closing = True
        for peer in self.peers.values():
            peer.close()
        for channel in self._channels:
            channel.close()
        self._server.stop(None)
        self._pool.shutdown(wait=False)
