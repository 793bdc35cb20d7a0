# SPDX-License-Identifier: Apache-2.0
"""How the machines of a plan meet, and how each of them learns that another one is gone."""

from __future__ import annotations

import hmac
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any, Final, NoReturn, TypeVar

import grpc
import msgspec

from tensorwire import rpc
from tensorwire.collective import Store
from tensorwire.graph.plan import PlanError
from tensorwire.malformed import MALFORMED

CONTROL: Final = 0
"""The tag of what machines say of themselves."""
ANSWERS: Final = 1
"""The tag by which a machine says that it has heard another one's end."""
FIRST: Final = 2
"""From this one on, tags are the plan's."""
_MOST_BYTES: Final = 8 << 10
"""Of what one says. More than that is of no machine."""
_LOOK: Final = 0.01
"""Seconds between looks at who has come, and whether there is a link."""
_FAREWELL: Final = 1.0
"""Seconds for telling others why this machine ends."""

_LONGEST: Final = 1024
"""Characters of what one says."""
_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Token = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
S = TypeVar("S", bound=msgspec.Struct)


class ReplayError(RuntimeError):
    """A replay has come to its end, on all machines; the text says why."""


class StageLostError(ReplayError, ConnectionError):
    """A machine is gone, or failed. ``machine``: which."""

    def __init__(self, machine: str, why: str) -> None:
        super().__init__(f"machine {machine} is lost: {why}; restart all machines")
        self.machine = machine
        self.why = why


class StageTimeoutError(ReplayError, TimeoutError):
    """A machine has not come, or has sent nothing, in time."""


class _Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a machine is, by which plan, and what it takes to be let in."""

    target: _Text
    digest: _Text
    token: _Token


class _Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    machine: _Text
    token: _Token


class _Bye(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """No more comes from this machine, which has done so many steps. ``error``: why it ends early,
    because of which machine."""

    steps: int = 0
    error: _Text = ""
    machine: _Text = ""


# Made by the import: threads that make the first one of a type at once crash in msgspec.
_decoders: Final[dict[type[msgspec.Struct], Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (_Address, _Hello, _Bye)
}


class _Said:
    """The next thing that a peer says of itself. callback: called when it has, or is gone."""

    def __init__(self, peer: rpc.Peer, callback: Callable[[], object] | None = None) -> None:
        self._memory = bytearray(_MOST_BYTES)
        self._posted = peer.post(CONTROL, self._memory, callback)

    @property
    def done(self) -> bool:
        return self._posted.done

    def wait(self, kind: type[S], timeout: float) -> S | None:
        """None: nothing has come. Raises CallError, MALFORMED. It can be had once."""
        count = self._posted.wait(timeout)
        if count is None:
            return None
        assert isinstance(count, int)
        said: S = _decoders[kind].decode(memoryview(self._memory)[:count])
        return said


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
        self._lock = threading.RLock()  # guards what follows
        self._changed = threading.Condition(self._lock)
        self._heard: dict[str, _Bye] = {}
        self._answered: set[str] = set()
        self._lost: StageLostError | None = None
        self._told = False
        self._callers: list[str] = []
        self._channels: list[rpc.Channel] = []
        self._pool = ThreadPoolExecutor(1)
        self._server = rpc.server(self._pool, transport=transport)
        try:
            self._meet(store, sorted(machines), host, transport)
            with self._lock:
                for name, peer in self.peers.items():
                    with self.talking_to(name):
                        self._said[name] = _Said(peer, partial(self._hear, name))
                        peer.post(ANSWERS, None, partial(self._hear_answer, name))
        except BaseException:
            self._end()
            raise

    # ------------------------------------------------------------------------------------ meeting

    def _meet(self, store: Store, machines: list[str], host: str, transport: Any) -> None:
        arrived: queue.SimpleQueue[rpc.Peer] = queue.SimpleQueue()
        token = secrets.token_bytes(16)
        port = self._server.add_insecure_port(f"{host}:0")
        self._server.start()
        self._server.on_peer(arrived.put)
        mine = machines.index(self._me)
        own = _Address(f"{host}:{port}", self._digest, token)
        store.set(f"graph/{mine}", msgspec.msgpack.encode(own))
        addresses = [self._address(store, number, name) for number, name in enumerate(machines)]
        for name, address in zip(machines[:mine], addresses, strict=False):
            self._call(name, address, transport)
        self._callers = machines[mine + 1 :]
        self._answer(arrived, token, list(self._callers))

    def _address(self, store: Store, number: int, name: str) -> _Address:
        try:
            data = store.get(f"graph/{number}", self._time_left(name))
            address: _Address = _decoders[_Address].decode(data)
        except TimeoutError:
            self._late([name])
        except MALFORMED as error:
            raise ReplayError(f"the store has no address of machine {name}: {error}") from None
        if address.digest != self._digest:
            raise PlanError(
                f"machine {name} has the plan {address.digest[:12]}, and {self._me} "
                f"{self._digest[:12]}: both need the same program, depth and coalesce"
            )
        return address

    def _call(self, name: str, address: _Address, transport: Any) -> None:
        channel = rpc.insecure_channel(address.target, transport=transport)
        self._channels.append(channel)
        while (peer := channel.peer()) is None:
            if time.monotonic() >= self._until:
                raise StageTimeoutError(
                    f"machine {name}: no link to {address.target}: {channel.path()}; it is not "
                    "there, or the store is of an earlier replay: use a fresh one for each"
                )
            threading.Event().wait(_LOOK)  # the channel goes on trying
        try:
            said = _Said(peer)
            self._say(peer, _Hello(self._me, address.token), self._time_left(name))
            hello = said.wait(_Hello, self._time_left(name))
        except rpc.CallError as error:
            raise StageLostError(name, str(error.details())) from None
        except MALFORMED as error:
            raise ReplayError(f"{address.target} is no machine of a replay: {error}") from None
        if hello is None:
            self._late([name])
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
                hello = None
                with suppress(rpc.CallError, *MALFORMED):
                    hello = said.wait(_Hello, 0)
                if hello is None or not hmac.compare_digest(hello.token, token):
                    peer.close()
                    continue
                try:
                    self._say(peer, _Hello(self._me, token), _FAREWELL)
                except rpc.CallError as error:
                    raise StageLostError(hello.machine, str(error.details())) from None
                if hello.machine not in missing:
                    raise PlanError(f"machine {hello.machine} has come twice, or has no stage")
                missing.remove(hello.machine)
                self.peers[hello.machine] = peer
        for peer, _ in strangers:
            peer.close()

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

    def _hear(self, name: str) -> None:
        """A machine has said that it ends, or is gone."""
        with self._lock:
            try:
                bye = self._said[name].wait(_Bye, 0) or _Bye(error="it is gone")
            except rpc.CallError as error:
                bye = _Bye(error=str(error.details())[:_LONGEST])
            except MALFORMED as error:
                bye = _Bye(error=f"it talks nonsense: {error}")
            self._heard[name] = bye
            if bye.error and self._lost is None:
                self._lost = StageLostError(bye.machine or name, bye.error)
            self._changed.notify_all()
            lost = self._lost
        if lost is not None:
            self._tell(_Bye(error=lost.why, machine=lost.machine))
        if not bye.error:
            with suppress(rpc.CallError):
                self.peers[name].send(ANSWERS, b"", _FAREWELL)

    def _hear_answer(self, name: str) -> None:
        """A machine has heard this one's end; or is gone, as it goes only after that."""
        with self._lock:
            self._answered.add(name)
            self._changed.notify_all()

    def _tell(self, bye: _Bye) -> None:
        """Tells the others once; who is gone need not know."""
        with self._lock:
            if self._told:
                return
            self._told = True
        for peer in self.peers.values():
            with suppress(rpc.CallError):
                self._say(peer, bye, _FAREWELL)

    @contextmanager
    def talking_to(self, name: str) -> Iterator[None]:
        """Raises what ends a send or a wait for a machine as a ReplayError."""
        try:
            yield
        except rpc.CallError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise StageTimeoutError(f"machine {name}: {error.details()}") from None
            with self._lock:  # what it has said of that may be under way
                self._changed.wait_for(lambda: self._lost is not None, _FAREWELL)
                raise self._lost or StageLostError(name, str(error.details())) from None

    def check(self, name: str | None = None, step: int = 0) -> None:
        """Raises StageLostError once a machine is known to be lost, and ReplayError once ``name``
        is known to have ended before the step that is ``step``, counted from 0."""
        with self._lock:
            lost, bye = self._lost, None if name is None else self._heard.get(name)
        if lost is not None:
            raise lost
        if bye is not None and bye.steps <= step:
            raise ReplayError(
                f"machine {name} has ended after {bye.steps} steps, and {self._me} is in step "
                f"{step + 1}: all machines need the same number of steps"
            )

    # -------------------------------------------------------------------------------------- its end

    def close(self, steps: int, timeout: float) -> None:
        """Waits until all machines want to close, so that nothing is lost under way. Raises
        StageLostError, StageTimeoutError, and ReplayError when one has done another number of
        steps; the links are closed then, too."""
        try:
            self._tell(_Bye(steps))
            with self._lock:
                self._changed.wait_for(
                    lambda: self._lost is not None or len(self._heard) == len(self.peers), timeout
                )
                self.check()
                late = self.peers.keys() - self._heard.keys()
                # What closes a link may overtake what was said there.
                self._changed.wait_for(lambda: len(self._answered) == len(self.peers), _FAREWELL)
                done = {name: bye.steps for name, bye in self._heard.items()}
            for name in self._callers if not late else ():  # gRPC would log that it was left first
                self.peers[name].wait_gone(_FAREWELL)
            if late:
                raise StageTimeoutError(
                    f"not come to its end in time: machine {', '.join(sorted(late))}"
                )
            for name, others in done.items():
                if others != steps:
                    raise ReplayError(
                        f"machine {name} has done {others} steps, and {self._me} {steps}"
                    )
        finally:
            self._end()

    def abort(self, error: BaseException) -> None:
        """Ends all links; the others learn why, unless they know."""
        if isinstance(error, StageLostError):
            self._tell(_Bye(error=error.why, machine=error.machine))
        else:
            why = f"{type(error).__name__}: {error}"
            self._tell(_Bye(error=why[:_LONGEST], machine=self._me))
        with self._lock:
            self._changed.wait_for(lambda: len(self._heard) == len(self.peers), _FAREWELL)
        self._end()

    def _end(self) -> None:
        for channel in self._channels:
            channel.close()
        for peer in self.peers.values():
            peer.close()
        self._server.stop(None)
        self._pool.shutdown(wait=False)
