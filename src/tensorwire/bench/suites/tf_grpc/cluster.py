# SPDX-License-Identifier: Apache-2.0
"""A contender under measurement: its parameter servers and workers, connected and spoken to."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from tensorwire.bench.harness.control import AgentError, Control
from tensorwire.bench.harness.measure import MOST_KEPT, Visit, kept, quantile
from tensorwire.bench.harness.network import Host, Link, NetworkError, hosts
from tensorwire.bench.harness.processes import (
    NO_OTHERS,
    START_SECONDS,
    VISIT_FACTOR,
    Hello,
    Others,
    expect_all,
    resting,
    started,
    tell,
)
from tensorwire.bench.harness.ranks import Ranks
from tensorwire.bench.harness.resources import Monitor, Sample, Watched
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.tf_grpc.agent import NODE, SERVER, WORKER
from tensorwire.bench.suites.tf_grpc.contender import Request, find
from tensorwire.bench.suites.tf_grpc.load import Times

LOOPBACK: Final = "127.0.0.1"
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
    """A visit of all workers together. serialization_us: that a call spends in the caller's
    serializers. resources: of all processes that run here, samples over the visit."""

    serialization_us: float = 0.0
    resources: Sequence[Sample] = field(default_factory=list)


@dataclass(frozen=True)
class Order:
    """A process of an entry. number: among those of the entry. port: where it serves; 0: any that
    is free."""

    contender: str
    transport: str
    role: str
    number: int
    port: int = 0


class Cluster:
    """Processes that are connected to each other. Raises AgentError when one of them fails, and
    LostError when one of the hosts is gone.

    path: the transport that the calls take; note: what a reader of the figures has to know. awake:
    in which visits are made.
    """

    def __init__(
        self,
        callers: Sequence[Control],
        told: Sequence[dict[str, Any]],
        awake: Callable[[], AbstractContextManager[None]],
        watch: Callable[[float, float], AbstractContextManager[Watched]],
        request: Callable[[Work], Request],
        settings: Settings,
        others: Others,
    ) -> None:
        self.path = _path(told)
        self.note: str = told[0]["note"]
        self._callers = callers
        self._awake = awake
        self._watch = watch
        self._request = request
        self._settings = settings
        self._others = others

    def visit(self, work: Work, seconds: float) -> Measured:
        with self._awake():
            return self._visit(work, seconds)

    def _visit(self, work: Work, seconds: float) -> Measured:
        settings = self._settings
        limit = START_SECONDS + (settings.warm_up + seconds) * VISIT_FACTOR
        tell(self._callers, {"request": self._request(work).to_json()})
        self._expect(limit)
        ahead = [self._ahead(caller) if self._others else 0 for caller in self._callers]
        begin = time.monotonic() + _HEAD_START + settings.warm_up
        for caller, more in zip(self._callers, ahead, strict=True):
            theirs = {"begin": int(begin * 1e9) + more}
            tell([caller], {**theirs, "seconds": seconds, "rate": settings.rate})
        try:
            with self._watch(settings.interval, begin) as watched:
                self._expect(limit)
        except OSError as error:
            raise AgentError(f"one of its processes has ended ({error})") from error
        tell(self._callers, {"tell": True})
        return _measured(self._expect(limit), watched.samples)

    def _expect(self, limit: float) -> list[dict[str, Any]]:
        return expect_all(self._callers, limit, "worker {}", self._others)

    def _ahead(self, caller: Control) -> int:
        """Nanoseconds by which the clock of the caller's host is ahead of this one's, but for half
        the time in which the caller answers."""
        before = time.monotonic_ns()
        tell([caller], {"clock": True})
        who = f"worker {self._callers.index(caller)}"
        (answer,) = expect_all([caller], START_SECONDS, who, self._others)
        return int(answer["clock"]) - (before + time.monotonic_ns()) // 2


def _measured(answers: Sequence[dict[str, Any]], samples: Sequence[Sample]) -> Measured:
    names = Times.__dataclass_fields__
    times = [Times(**{name: answer[name] for name in names}) for answer in answers]
    calls = sum(each.calls for each in times)
    per_second = sum(each.calls / each.seconds for each in times)
    ordered = sorted(told for each in times for told in each.told)
    # Processors' time counts from the begin on. A worker whose last call of the warm-up was under
    # way then counts its calls from that one's end.
    watched = calls + sum(answer["warming"] for answer in answers)
    return Measured(
        quantile(ordered, 0.5) / 1e3,
        quantile(ordered, 0.99) / 1e3,
        calls,
        calls / per_second,
        samples[-1].cpu_seconds * calls / watched,
        _path(answers),
        min_us=min(each.least for each in times) / 1e3,
        mean_us=sum(each.total for each in times) / calls / 1e3,
        max_us=max(each.most for each in times) / 1e3,
        serialization_us=sum(answer["serialization"] for answer in answers) / calls / 1e3,
        samples_us=[us for each in times for us in kept(each.told, MOST_KEPT // len(times))],
        resources=samples,
    )


def _path(told: Sequence[dict[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(each["path"] for each in told))


@contextmanager
def start(
    entry: Entry,
    topology: Topology,
    request: Callable[[Work], Request],
    settings: Settings,
    ranks: Ranks | None = None,
) -> Iterator[Cluster]:
    """Starts the processes of a contender and ends them, whatever state they are in. request: what
    calls of a work are. ranks: of a launcher, which each start a process; None: all are started
    here."""
    roles = topology.roles()
    ports = [0] * len(roles) if ranks is None else ranks.ports()
    orders = [
        Order(entry.contender, entry.transport, role, number, port)
        for number, (role, port) in enumerate(zip(roles, ports, strict=True))
    ]
    with ExitStack() as stack:
        if ranks is None:
            hellos = stack.enter_context(_here(orders, settings))
        else:
            hellos = stack.enter_context(ranks.started([asdict(each) for each in orders]))
        others = NO_OTHERS if ranks is None else ranks.others
        addresses = topology.remote or [hello["address"] for _, hello in hellos if hello["address"]]
        callers = [
            control for (control, _), role in zip(hellos, roles, strict=True) if role != SERVER
        ]
        for number, control in enumerate(callers):
            tell([control], {"addresses": topology.called_by(number, addresses)})
        told = expect_all(callers, START_SECONDS, "worker {}", others)
        watch = partial(ranks.watching if ranks else Monitor, [hello["pid"] for _, hello in hellos])
        # Processes of a launcher may be on other hosts: they are not stopped.
        spins = ranks is None and entry.transport in find(entry.contender).spins
        controls = [control for control, _ in hellos]
        awake = stack.enter_context(resting(controls) if spins else nullcontext(nullcontext))
        yield Cluster(callers, told, awake, watch, request, settings, others)


@contextmanager
def _here(orders: Sequence[Order], settings: Settings) -> Iterator[list[Hello]]:
    places = [Host(LOOPBACK, ())] * len(orders)

    def commands(path: str) -> list[list[str]]:
        agents = [
            [*place.enter, *command(order, place.address, settings.token_file, path)]
            for place, order in zip(places, orders, strict=True)
        ]
        return find(orders[0].contender).launch(agents)

    with ExitStack() as stack:
        if settings.link is not None:
            places = stack.enter_context(_network(settings.link, len(orders)))
        yield stack.enter_context(started(commands, len(orders)))


@contextmanager
def _network(link: Link, count: int) -> Iterator[list[Host]]:
    try:
        with hosts(link, count) as found:
            yield found
    except NetworkError as error:
        raise AgentError(str(error)) from error


def command(order: Order, host: str, token_file: str, path: str) -> list[str]:
    """That starts an agent. host: where it serves."""
    variables = find(order.contender).environment()
    agent = [
        *("env", *(f"{name}={value}" for name, value in variables.items())),
        *(sys.executable, "-m", "tensorwire.bench.suites.tf_grpc.agent"),
    ]
    place = (str(order.number), host, str(order.port), token_file, path)
    return [*agent, order.contender, order.transport, order.role, *place]


def ordered(token_file: str) -> Callable[[Mapping[str, Any], str, str], list[str]]:
    """``command``, by orders as they come from rank 0, with this host's token file."""

    def made(order: Mapping[str, Any], host: str, path: str) -> list[str]:
        return command(msgspec.convert(order, Order), host, token_file, path)

    return made
