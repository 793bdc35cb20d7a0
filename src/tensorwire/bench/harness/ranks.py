# SPDX-License-Identifier: Apache-2.0
"""A bench whose agents are started by the ranks of a launcher, as mpirun, one each. Rank 0 leads:
it has the conversations with all agents. The other ranks start theirs, pass on what is said, and
end as rank 0 does."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tensorwire.bench.harness.control import AgentError, Control, LostError
from tensorwire.bench.harness.door import Arrival, Door, StrangerError, knock
from tensorwire.bench.harness.processes import START_SECONDS, STOP_SECONDS, Hello, started
from tensorwire.bench.harness.resources import Monitor, Sample, Watched, together
from tensorwire.collective import FileStore
from tensorwire.launch.place import Place

_WORD_SECONDS: Final = 30.0
"""For an answer of a rank that has nothing to do but to answer."""
_LOOK_SECONDS: Final = 0.05
"""Between two attempts to reach rank 0."""
_KEY: Final = "leader"
_PASSED_ON: Final = 1 << 16

Command = Callable[[Mapping[str, Any], str, str], list[str]]
"""Of an order, the address of the agent's host, and the path of its bench's unix socket: how an
agent is started. ValueError for one that cannot be."""


class _Told(msgspec.Struct, frozen=True):
    """Of a rank that comes: the name of its host, which other ranks share that (``_host``), and
    the options of its command."""

    name: str
    host: str
    given: dict[str, str]


class RanksError(Exception):
    """The ranks do not come together. code: that of the command."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Meeting:
    """place: of this process. secret: that all ranks have; None: they are on one host, and meet in
    a folder of this user's. given: options of the command, which are the same for all."""

    place: Place
    secret: bytes | None
    given: Mapping[str, str]

    def address(self) -> tuple[str, int]:
        host, _, port = self.place.address.rpartition(":")
        return host, int(port)


# ------------------------------------------------------------------------------------ rank 0


@dataclass(frozen=True)
class _Member:
    """name: for people. host: whose clock, processes and network it shares. control: None for rank
    0, which is this process."""

    name: str
    host: str
    control: Control | None = None


class Ranks:
    """As rank 0 sees them.

    size: how many there are, this one too. names: of their hosts. near: whether all of them are on
    this one.
    """

    def __init__(
        self, members: Sequence[_Member], near: bool, door: Door, command: Command, port: int
    ) -> None:
        self.size = len(members)
        self.near = near
        self.names = [each.name for each in members]
        self._members = members
        self._door = door
        self._command = command
        self._port = port
        self._times = 0
        self.others = {
            each.control: f"rank {rank} on {each.name}"
            for rank, each in enumerate(members)
            if each.control is not None
        }

    def check(self) -> None:
        """Raises LostError where a rank is gone: it has nothing to say meanwhile."""
        gone, _, _ = select.select([*self.others], [], [], 0)
        for each in gone:
            raise LostError(f"{self.others[each]} is lost")

    def ports(self) -> list[int]:
        """Where the agents that are started next serve, by rank; 0: at any that is free."""
        first = self._port + self._times * self.size
        return [first + rank if self._port else 0 for rank in range(self.size)]

    @contextmanager
    def started(self, orders: Sequence[Mapping[str, Any]]) -> Iterator[list[Hello]]:
        """As ``processes.started``: an agent on each rank, by its order. Raises LostError, too."""
        self._times += 1
        number = self._times
        with ExitStack() as stack:
            stack.callback(self._door.forget, number)
            for member, order in zip(self._members, orders, strict=True):
                if member.control is not None:
                    self._tell(member.control, {"start": dict(order), "number": number})
            own = started(lambda path: [self._command(orders[0], self._door.host, path)], 1)
            found = [*stack.enter_context(own)]
            for rank in range(1, self.size):
                taken = self._door.take(rank, number, 2 * START_SECONDS, self.check)
                if taken is None:
                    raise AgentError(f"no agent comes from rank {rank} on {self.names[rank]}")
                control, arrival = taken
                stack.callback(control.close)
                found.append((control, arrival.told))
                if "error" in arrival.told:
                    raise AgentError(f"rank {rank} on {self.names[rank]}: {arrival.told['error']}")
            yield found

    @contextmanager
    def watching(self, pids: Sequence[int], interval: float) -> Iterator[Watched]:
        """As ``resources.Monitor``, of the agents of all ranks, by their order."""
        hosts: dict[str, list[int]] = {}
        for member, pid in zip(self._members, pids, strict=True):
            hosts.setdefault(member.host, []).append(pid)
        by_host = {each.host: each.control for each in reversed(self._members)}
        far = [control for control in by_host.values() if control is not None]
        for host, control in by_host.items():
            if control is not None:
                self._tell(control, {"watch": hosts[host], "interval": interval})
        self._answers(far)
        watched = _Samples()
        with Monitor(hosts[self._members[0].host], interval) as own:
            yield watched
        for control in far:
            self._tell(control, {"watched": True})
        told = [msgspec.convert(each["samples"], list[Sample]) for each in self._answers(far)]
        watched.samples = together([own.samples, *told])

    def _tell(self, control: Control, message: dict[str, Any]) -> None:
        try:
            control.send(message)
        except OSError as error:
            raise LostError(f"{self.others[control]} is lost ({error})") from None

    def _answers(self, controls: Sequence[Control]) -> list[dict[str, Any]]:
        """Of each of them. AgentError where one cannot do what it was told."""
        answers = [self._answer(control) for control in controls]
        for control, answer in zip(controls, answers, strict=True):
            if "error" in answer:
                raise AgentError(f"{self.others[control]}: {answer['error']}")
        return answers

    def _answer(self, control: Control) -> dict[str, Any]:
        speaking, _, _ = select.select([control], [], [], _WORD_SECONDS)
        try:
            answer = control.receive() if speaking else {}
        except OSError as error:
            raise LostError(f"{self.others[control]} is lost ({error})") from None
        if not answer:
            what = "is lost" if speaking else "does not answer"
            raise LostError(f"{self.others[control]} {what}")
        return answer

    def end(self, code: int) -> None:
        """Tells all others to end with this code."""
        for control in self.others:
            with suppress(OSError):
                control.send({"end": code})


@dataclass
class _Samples:
    samples: list[Sample] = field(default_factory=list)


@contextmanager
def leading(meeting: Meeting, command: Command, port: int = 0) -> Iterator[Ranks]:
    """Once all ranks have come; who leaves the context has told them to ``end``. port: of the first
    server; those behind it are the others'. 0: any that are free. Raises RanksError."""
    place = meeting.place
    with ExitStack() as stack:
        secret = meeting.secret
        try:
            if secret is None:
                secret = secrets.token_bytes()
                door = stack.enter_context(Door("127.0.0.1", 0, secret))
                store = FileStore(place.folder)
                stack.callback(shutil.rmtree, place.folder, ignore_errors=True)
                store.set(_KEY, door.port.to_bytes(2, "big") + secret)
            else:
                door = stack.enter_context(Door(*meeting.address(), secret))
        except OSError as error:
            where = place.folder if meeting.secret is None else place.address
            raise RanksError(f"rank 0 cannot listen at {where}: {error}") from None
        members = [_Member(socket.gethostname(), _host())]
        missing, found = [], []
        end = time.monotonic() + START_SECONDS
        for rank in range(1, place.size):
            taken = door.take(rank, 0, max(end - time.monotonic(), 0), lambda: None)
            if taken is None:
                missing.append(rank)
                continue
            control, arrival = taken
            stack.callback(control.close)
            told = msgspec.convert(arrival.told, _Told)
            members.append(_Member(told.name, told.host, control))
            found.append((rank, told.given))
        ranks = Ranks(members, meeting.secret is None, door, command, port)
        try:
            if missing:
                who = ", ".join(map(str, missing))
                raise RanksError(
                    f"rank {who} of {place.size} has not come in {START_SECONDS:.0f} s: is each "
                    f"started with this command, and does it reach {door.host}:{door.port}?"
                )
            for rank, given in found:
                _compare(rank, given, meeting.given)
        except RanksError as error:
            ranks.end(error.code)
            raise
        yield ranks


def _compare(rank: int, given: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name in sorted({*given, *wanted}):
        if given.get(name) != wanted.get(name):
            raise RanksError(
                f"rank {rank} has {name} {given.get(name)}, and rank 0 {wanted.get(name)}: give "
                "all ranks the same command line",
                2,
            )


def _host() -> str:
    """The same for processes that see each other's numbers, and the same network interfaces."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = (os.stat(f"/proc/self/ns/{space}").st_ino for space in ("net", "pid"))
    return "-".join([boot, *map(str, spaces)])


# -------------------------------------------------------------------------------- the others


def following(meeting: Meeting, command: Command) -> int:
    """Any other rank, until rank 0 ends it; returns its code. Raises RanksError, and LostError when
    rank 0 is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which ends all in order
    told = _Told(socket.gethostname(), _host(), dict(meeting.given))
    with ExitStack() as stack:
        control, where = _arrive(meeting, msgspec.to_builtins(told))
        stack.callback(control.close)
        follower = _Follower(meeting.place.rank, control, where, command)
        stack.callback(follower.close)
        return follower.run()


Where = tuple[str, int, bytes]
"""Where rank 0 listens, and the secret."""


def _where(meeting: Meeting) -> Where:
    if meeting.secret is not None:
        return (*meeting.address(), meeting.secret)
    found = FileStore(meeting.place.folder).get(_KEY, 0)
    return "127.0.0.1", int.from_bytes(found[:2], "big"), found[2:]


def _arrive(meeting: Meeting, told: dict[str, Any]) -> tuple[Control, Where]:
    place = meeting.place
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            where = _where(meeting)
            return knock(*where, Arrival(place.rank, 0, told)), where
        except (OSError, StrangerError) as error:  # also of what a job of this name has left
            wrong = isinstance(error, StrangerError) and meeting.secret is not None
            if wrong or time.monotonic() > end:
                at = place.folder if meeting.secret is None else place.address
                raise RanksError(
                    f"rank {place.rank} does not reach rank 0 at {at}: {error}"
                ) from None
        time.sleep(_LOOK_SECONDS)


class _Follower:
    def __init__(self, rank: int, control: Control, where: Where, command: Command) -> None:
        self._rank = rank
        self._control = control
        self._where = where
        self._command = command
        self._address = str(control.connection.getsockname()[0])
        self._agents: list[threading.Thread] = []
        self._conversations: list[Control] = []  # with rank 0, of agents
        self._monitor = ExitStack()
        self._watched: Watched | None = None

    def run(self) -> int:
        self._control.connection.settimeout(
            None
        )  # rank 0 may be busy for long; see ``door._ALIVE``
        while True:
            try:
                message = self._control.receive()
            except OSError as error:
                raise LostError(f"rank 0 is lost ({error})") from None
            if not message:
                raise LostError("rank 0 is lost")
            if "end" in message:
                return int(message["end"])
            self._obey(message)

    def _obey(self, message: Mapping[str, Any]) -> None:
        if "start" in message:
            order = (message["start"], message["number"])
            agent = threading.Thread(target=self._agent, args=order, name="agent", daemon=True)
            self._agents.append(agent)
            agent.start()
        elif "watch" in message:
            self._monitor.close()  # of a visit that has failed
            try:
                monitor = Monitor(message["watch"], message["interval"])
            except OSError as error:
                self._control.send({"error": f"one of its processes has ended ({error})"})
            else:
                self._watched = self._monitor.enter_context(monitor)
                self._control.send({"watching": True})
        elif self._watched is not None:
            self._monitor.close()
            self._control.send({"samples": [asdict(each) for each in self._watched.samples]})

    def close(self) -> None:
        """Ends the agents, those that are in the middle of their start excepted: they end by
        themselves where their bench has gone."""
        with suppress(OSError):
            self._monitor.close()
        for conversation in [*self._conversations]:
            with suppress(OSError):
                conversation.connection.shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + 2 * STOP_SECONDS
        for agent in self._agents:
            agent.join(max(end - time.monotonic(), 0))

    def _agent(self, order: Mapping[str, Any], number: int) -> None:
        """An agent of this rank, while rank 0 wants it."""

        def commands(path: str) -> list[list[str]]:
            return [self._command(order, self._address, path)]

        leader: Control | None = None
        try:
            try:
                with started(commands, 1) as ((agent, hello),):
                    leader = self._conversation(number, hello)
                    _pass_on(leader.connection, agent.connection)
            except (AgentError, ValueError) as error:
                told = {"error": str(error)}
                if leader is None:
                    leader = self._conversation(number, told)
                else:
                    leader.send(told)
        except (OSError, StrangerError):
            pass  # rank 0 is gone
        finally:
            if leader is not None:
                leader.close()

    def _conversation(self, number: int, first: dict[str, Any]) -> Control:
        made = knock(*self._where, Arrival(self._rank, number, first))
        self._conversations.append(made)
        return made


def _pass_on(leader: socket.socket, agent: socket.socket) -> None:
    """What each of them says, until the leader hangs up. AgentError when the agent does."""
    while True:
        speaking, _, _ = select.select([leader, agent], [], [])
        for speaker in speaking:
            said = speaker.recv(_PASSED_ON)
            if not said and speaker is agent:
                raise AgentError("the agent has ended")
            if not said:
                return
            (agent if speaker is leader else leader).sendall(said)
