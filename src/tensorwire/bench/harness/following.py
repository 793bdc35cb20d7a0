# SPDX-License-Identifier: Apache-2.0
"""A rank of a launcher that starts agents for rank 0, passes on what is said, and ends as rank 0
does."""

from __future__ import annotations

import select
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any, Final

import msgspec

from tensorwire.bench.harness.control import AgentError, Control, LostError
from tensorwire.bench.harness.listener import Hello, StrangerError, connect
from tensorwire.bench.harness.meeting import Command, Meeting, RanksError
from tensorwire.bench.harness.processes import START_SECONDS, STOP_SECONDS, started
from tensorwire.bench.harness.resources import Monitor, Watched

_LOOK_SECONDS: Final = 0.05
"""Between two attempts to reach rank 0."""
_PASSED_ON: Final = 1 << 16

Where = tuple[str, int, bytes]
"""Where rank 0 listens, and the secret."""


def following(meeting: Meeting, command: Command) -> int:
    """Any other rank, until rank 0 ends it; returns its code. Raises RanksError, and LostError when
    rank 0 is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which ends all in order
    with ExitStack() as stack:
        control, where = _arrive(meeting)
        stack.callback(control.close)
        follower = _Follower(meeting.place.rank, control, where, command)
        stack.callback(follower.close)
        return follower.run()


def _arrive(meeting: Meeting) -> tuple[Control, Where]:
    rank, told = meeting.place.rank, msgspec.to_builtins(meeting.told())
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            where = meeting.where()
            return connect(*where, Hello(rank, 0, told)), where
        except (OSError, StrangerError) as error:  # also of what a job of this name has left
            wrong = isinstance(error, StrangerError) and meeting.secret is not None
            if wrong or time.monotonic() > end:
                raise RanksError(
                    f"rank {rank} does not reach rank 0 at {meeting.at}: {error}"
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
        self._control.connection.settimeout(None)  # a host that is gone is noticed by TCP
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
            self._watch(message)
        else:
            self._control.send(self._samples())

    def _watch(self, message: Mapping[str, Any]) -> None:
        self._close_monitor()  # of a visit that has failed
        select.select([self._control], [], [], message["after"])  # rank 0 may give up meanwhile
        with suppress(OSError):  # a process is gone, which rank 0 asks for
            monitor = Monitor(message["watch"], message["interval"])
            self._watched = self._monitor.enter_context(monitor)

    def _samples(self) -> dict[str, Any]:
        watched = self._watched
        if watched is None or not self._close_monitor():
            return {"error": "one of its processes has ended"}
        return {"samples": [asdict(each) for each in watched.samples]}

    def _close_monitor(self) -> bool:
        """Whether all that was watched was there to the end."""
        self._watched = None
        try:
            self._monitor.close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Ends the agents, those that are in the middle of their start excepted: they end by
        themselves where their bench has gone."""
        self._close_monitor()
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
        made = connect(*self._where, Hello(self._rank, number, first))
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
