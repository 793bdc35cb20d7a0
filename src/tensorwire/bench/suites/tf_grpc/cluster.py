# SPDX-License-Identifier: Apache-2.0
"""A contender under measurement: its parameter servers and workers, connected and spoken to."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tensorwire.bench.harness.control import AgentError, Control
from tensorwire.bench.harness.measure import Visit, quantile
from tensorwire.bench.harness.network import Host, Link, NetworkError, hosts
from tensorwire.bench.harness.processes import START_SECONDS, VISIT_FACTOR, expect_all, started
from tensorwire.bench.harness.resources import Monitor, Sample
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tf_grpc.agent import NODE, SERVER, WORKER
from tensorwire.bench.suites.tf_grpc.contender import Request, find
from tensorwire.bench.suites.tf_grpc.load import Times, thinned

LOOPBACK: Final = "127.0.0.1"
MOST_KEPT: Final = 2_000
"""Times of single calls that a report has of one visit."""
_HEAD_START: Final = 0.01
"""Seconds for all workers to hear when they begin."""


@dataclass(frozen=True)
class Topology:
    """Who calls whom.

    servers, workers: processes; nodes: that are both, each of which calls all others. remote:
    addresses of servers that run elsewhere already. pairs: whether worker i calls server i only,
    counted around, and not all of them; of nodes, each two call each other.
    """

    servers: int = 1
    workers: int = 1
    nodes: int = 0
    pairs: bool = False
    remote: tuple[str, ...] = ()

    @property
    def callers(self) -> int:
        return self.nodes or self.workers

    def roles(self) -> list[str]:
        """Of the processes to start, in the order of their numbers."""
        return [
            *[NODE] * self.nodes,
            *[SERVER] * (0 if self.nodes or self.remote else self.servers),
            *[WORKER] * (0 if self.nodes else self.workers),
        ]

    def called_by(self, caller: int, addresses: Sequence[str]) -> list[str]:
        """Those that this caller calls, of the addresses of all servers or nodes. Each caller
        begins with another one."""
        if self.pairs:
            other = caller ^ 1 if self.nodes else caller % len(addresses)
            return [addresses[other]]
        if self.nodes:
            return [*addresses[caller + 1 :], *addresses[:caller]]
        first = caller % len(addresses)
        return [*addresses[first:], *addresses[:first]]


@dataclass(frozen=True)
class Settings:
    """warm_up: seconds ahead of a visit. rate: calls of a worker in a second; 0: one after the
    other. interval: seconds between samples of resources. token_file: see ``agent``. link: what
    each process has to a switch, as if it were a host; None: all share this one's loopback."""

    warm_up: float
    rate: float = 0.0
    interval: float = 0.25
    token_file: str = ""
    link: Link | None = None


@dataclass(frozen=True)
class Measured(Visit):
    """A visit of all workers together. mean_us, max_us: of a call. serialization_us: that a call
    spends in the caller's serializers. samples_us: times of single calls, all or evenly spaced.
    resources: of all processes that run here, samples over the visit."""

    mean_us: float = 0.0
    max_us: float = 0.0
    serialization_us: float = 0.0
    samples_us: Sequence[float] = ()
    resources: Sequence[Sample] = field(default_factory=list)


class Cluster:
    """Processes that are connected to each other. Raises AgentError when one of them fails.

    path: the transport that the calls take; note: what a reader of the figures has to know.
    """

    def __init__(
        self,
        callers: Sequence[Control],
        told: Sequence[dict[str, Any]],
        pids: Sequence[int],
        request: Callable[[Work], Request],
        settings: Settings,
    ) -> None:
        self.path = _path(told)
        self.note: str = told[0]["note"]
        self._callers = callers
        self._pids = pids
        self._request = request
        self._settings = settings

    def visit(self, work: Work, seconds: float) -> Measured:
        settings = self._settings
        limit = START_SECONDS + (settings.warm_up + seconds) * VISIT_FACTOR
        _ask(self._callers, {"request": self._request(work).to_json()}, limit)
        begin = time.monotonic() + _HEAD_START + settings.warm_up
        self._tell({"begin": int(begin * 1e9), "seconds": seconds, "rate": settings.rate})
        time.sleep(max(begin - time.monotonic(), 0))
        try:
            with Monitor(self._pids, settings.interval) as monitor:
                answers = expect_all(self._callers, limit, "worker {}")
        except OSError as error:
            raise AgentError(f"one of its processes has ended ({error})") from error
        return _measured(answers, monitor.samples)

    def _tell(self, message: dict[str, Any]) -> None:
        _send(self._callers, message)


def _measured(answers: Sequence[dict[str, Any]], samples: Sequence[Sample]) -> Measured:
    names = Times.__dataclass_fields__
    times = [Times(**{name: answer[name] for name in names}) for answer in answers]
    calls = sum(each.calls for each in times)
    per_second = sum(each.calls / each.seconds for each in times)
    ordered = sorted(told for each in times for told in each.told)
    return Measured(
        quantile(ordered, 0.5) / 1e3,
        quantile(ordered, 0.99) / 1e3,
        calls,
        calls / per_second,
        samples[-1].cpu_seconds,
        _path(answers),
        min_us=min(each.least for each in times) / 1e3,
        mean_us=sum(each.total for each in times) / calls / 1e3,
        max_us=max(each.most for each in times) / 1e3,
        serialization_us=sum(answer["serialization"] for answer in answers) / calls / 1e3,
        samples_us=[
            round(told / 1e3, 3)
            for each in times
            for told in thinned(each.told, MOST_KEPT // len(times))
        ],
        resources=samples,
    )


def _path(told: Sequence[dict[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(each["path"] for each in told))


def _send(controls: Sequence[Control], message: dict[str, Any]) -> None:
    with suppress(OSError):  # one is gone: what it has said before, if anything, tells why
        for control in controls:
            control.send(message)


def _ask(
    controls: Sequence[Control], message: dict[str, Any], limit: float
) -> list[dict[str, Any]]:
    _send(controls, message)
    return expect_all(controls, limit, "worker {}")


@contextmanager
def start(
    entry: Entry,
    topology: Topology,
    request: Callable[[Work], Request],
    settings: Settings,
) -> Iterator[Cluster]:
    """Starts the processes of a contender and ends them, whatever state they are in. request: what
    calls of a work are."""
    roles = topology.roles()
    places = [Host(LOOPBACK, ())] * len(roles)

    def commands(path: str) -> list[list[str]]:
        return [
            [*place.enter, *command(entry, role, number, place.address, 0, token_file, path)]
            for number, (place, role) in enumerate(zip(places, roles, strict=True))
        ]

    token_file = settings.token_file
    with ExitStack() as stack:
        if settings.link is not None:
            places = stack.enter_context(_network(settings.link, len(roles)))
        hellos = stack.enter_context(started(commands, len(roles)))
        addresses = topology.remote or [hello["address"] for _, hello in hellos if hello["address"]]
        callers = [
            control for (control, _), role in zip(hellos, roles, strict=True) if role != SERVER
        ]
        for number, control in enumerate(callers):
            _send([control], {"addresses": topology.called_by(number, addresses)})
        told = expect_all(callers, START_SECONDS, "worker {}")
        pids = [hello["pid"] for _, hello in hellos]
        yield Cluster(callers, told, pids, request, settings)


@contextmanager
def _network(link: Link, count: int) -> Iterator[list[Host]]:
    try:
        with hosts(link, count) as found:
            yield found
    except NetworkError as error:
        raise AgentError(str(error)) from error


def command(
    entry: Entry, role: str, number: int, host: str, port: int, token_file: str, path: str
) -> list[str]:
    """That starts an agent. port: where it serves; 0: any that is free."""
    variables = find(entry.contender).environment()
    agent = [
        *("env", *(f"{name}={value}" for name, value in variables.items())),
        *(sys.executable, "-m", "tensorwire.bench.suites.tf_grpc.agent"),
    ]
    place = (str(number), host, str(port), token_file, path)
    return [*agent, entry.contender, entry.transport, role, *place]
