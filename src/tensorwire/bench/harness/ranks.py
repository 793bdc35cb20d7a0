# SPDX-License-Identifier: Apache-2.0
"""A bench whose agents are started by the ranks of a launcher, as mpirun, one each. Rank 0 leads:
it has the conversations with all agents. The others are ``following``."""

from __future__ import annotations

import secrets
import select
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tensorwire.bench.harness.control import AgentError, Control, LostError
from tensorwire.bench.harness.listener import Listener
from tensorwire.bench.harness.meeting import LOOPBACK, Command, Meeting, RanksError, Told
from tensorwire.bench.harness.processes import START_SECONDS, Hello, started
from tensorwire.bench.harness.resources import Monitor, Sample, Watched, together

_WORD_SECONDS: Final = 30.0
"""For an answer of a rank that has nothing to do but to answer."""


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
        self,
        members: Sequence[_Member],
        near: bool,
        listener: Listener,
        command: Command,
        port: int,
    ) -> None:
        self.size = len(members)
        self.near = near
        self.names = [each.name for each in members]
        self._members = members
        self._listener = listener
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
            stack.callback(self._listener.forget, number)
            for member, order in zip(self._members, orders, strict=True):
                if member.control is not None:
                    self._tell(member.control, {"start": dict(order), "number": number})
            own = started(lambda path: [self._command(orders[0], self._listener.host, path)], 1)
            found = [*stack.enter_context(own)]
            for rank in range(1, self.size):
                taken = self._listener.take(rank, number, 2 * START_SECONDS, self.check)
                if taken is None:
                    raise AgentError(f"no agent comes from rank {rank} on {self.names[rank]}")
                control, hello = taken
                stack.callback(control.close)
                found.append((control, hello.told))
                if "error" in hello.told:
                    raise AgentError(f"rank {rank} on {self.names[rank]}: {hello.told['error']}")
            yield found

    @contextmanager
    def watching(
        self, pids: Sequence[int], interval: float, begin: float = 0.0
    ) -> Iterator[Watched]:
        """As ``resources.Monitor``, of the agents of all ranks, by their order."""
        hosts: dict[str, list[int]] = {}
        for member, pid in zip(self._members, pids, strict=True):
            hosts.setdefault(member.host, []).append(pid)
        # The first rank of each other host watches all agents there.
        first = {each.host: each.control for each in reversed(self._members)}
        far = {host: control for host, control in first.items() if control is not None}
        for host, control in far.items():
            after = max(begin - time.monotonic(), 0)
            self._tell(control, {"watch": hosts[host], "interval": interval, "after": after})
        watched = _Samples()
        with Monitor(hosts[self._members[0].host], interval, begin) as own:
            yield watched
        for control in far.values():
            self._tell(control, {"watched": True})
        told = [
            msgspec.convert(each["samples"], list[Sample]) for each in self._answers(far.values())
        ]
        watched.samples = together([own.samples, *told])

    def _tell(self, control: Control, message: dict[str, Any]) -> None:
        try:
            control.send(message)
        except OSError as error:
            raise LostError(f"{self.others[control]} is lost ({error})") from None

    def _answers(self, controls: Collection[Control]) -> list[dict[str, Any]]:
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
        folder = stack.enter_context(ExitStack())
        try:
            if secret is None:
                secret = secrets.token_bytes()
                listener = stack.enter_context(Listener(LOOPBACK, 0, secret))
                folder.callback(shutil.rmtree, place.folder, ignore_errors=True)
                meeting.publish(listener.port, secret)
            else:
                listener = stack.enter_context(Listener(*meeting.address(), secret))
        except OSError as error:
            raise RanksError(f"rank 0 cannot listen at {meeting.at}: {error}") from None
        own = meeting.told()
        members = [_Member(own.name, own.host)]
        missing, found = [], []
        end = time.monotonic() + START_SECONDS
        for rank in range(1, place.size):
            taken = listener.take(rank, 0, max(end - time.monotonic(), 0), lambda: None)
            if taken is None:
                missing.append(rank)
                continue
            control, hello = taken
            stack.callback(control.close)
            told = msgspec.convert(hello.told, Told)
            members.append(_Member(told.name, told.host, control))
            found.append((rank, told.given))
        folder.close()  # nobody looks there any more
        ranks = Ranks(members, meeting.secret is None, listener, command, port)
        try:
            if missing:
                who = ", ".join(map(str, missing))
                raise RanksError(
                    f"rank {who} of {place.size} has not come in {START_SECONDS:.0f} s: is each "
                    f"started with this command, and does it reach {listener.host}:{listener.port}?"
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
