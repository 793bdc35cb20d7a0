# SPDX-License-Identifier: Apache-2.0
"""This process as a rank: ``init()`` and what it then is among the others."""

from __future__ import annotations

import atexit
import hashlib
import operator
import os
import shutil
import socket
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, SupportsIndex

import grpc
import numpy as np

from tensorwire import collective, environment
from tensorwire.horovod import negotiation
from tensorwire.horovod.errors import HorovodInternalError, NotInitializedError
from tensorwire.horovod.negotiation import Request
from tensorwire.horovod.runtime import Runtime, Settings
from tensorwire.horovod.timeline import Timeline
from tensorwire.launch import place

_OPERATION_SECONDS: Final = 1800.0
_guard: Final = threading.RLock()
_times = 0  # that init() has joined a group: each needs keys of its own
_leaves = False  # whether shutdown() is called at exit
_job: _Job | None = None


class _Alone:
    """The store of a group of one rank."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str, timeout: float) -> bytes:
        if key not in self._values:
            raise TimeoutError(f"{key} is not there, and nobody else could set it")
        return self._values[key]


class _Meeting:
    """Where the ranks of the job find each other, and this process joins them."""

    def __init__(self, where: place.Place, times: int) -> None:
        self._where = where
        self._server: grpc.Server | None = None
        self._folder = ""
        self._host: str | None = None
        self._store: collective.Store = _Alone()
        prefix = f"job-{times}"
        if where.address and (where.size > 1 or where.served):
            if where.rank == 0 and not where.served:
                self._server = _serve(where.address, prefix)
            self._store = collective.PrefixStore(prefix, collective.RpcStore(where.address))
            self._host = environment.read("TENSORWIRE_GROUP_HOST") or _own_address(where.address)
        elif where.size > 1:
            self._folder = f"{where.folder}-{times}"
            self._store = collective.FileStore(self._folder)

    def enter(self) -> collective.Group:
        if self._where.again:
            try:
                made = collective.rejoin(
                    self._store,
                    host=self._host,
                    timeout=_value("HOROVOD_ELASTIC_TIMEOUT", 600.0),
                    regroup_timeout=_patience(),
                )
            except collective.FinishedError:
                raise SystemExit("tensorwire.horovod: the others are done") from None
            made.timeout = _OPERATION_SECONDS
            return made
        return collective.join(
            self._store,
            self._where.rank,
            self._where.size,
            host=self._host,
            timeout=_OPERATION_SECONDS,
        )

    def leave(self, group: collective.Group) -> None:
        if self._where.served:
            collective.finish(group)  # for those that ask to come in
        else:
            group.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.stop(1.0).wait()  # nothing is on its way: at once
        if self._folder and self._where.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Job:
    def __init__(self, meeting: _Meeting, group: collective.Group) -> None:
        self.meeting = meeting
        hosts = group.all_gather(np.array([_host_number()], np.uint64)).reshape(-1).tolist()
        self.rank, self.size = group.rank, group.size
        mine = hosts[self.rank]
        self.local_rank = hosts[: self.rank].count(mine)
        self.local_size = hosts.count(mine)
        # Hosts that have a rank with this local rank, in the order of their first ranks.
        peers = [each for each in dict.fromkeys(hosts) if hosts.count(each) > self.local_rank]
        self.cross_rank, self.cross_size = peers.index(mine), len(peers)
        self.homogeneous = len({hosts.count(each) for each in hosts}) == 1
        path = os.environ.get("HOROVOD_TIMELINE", "")
        timeline = None
        if path and path != "DYNAMIC" and self.rank == 0:
            timeline = Timeline(path, bool(_value("HOROVOD_TIMELINE_MARK_CYCLES", 0)))
        self.group = group
        self.runtime = Runtime(group, _settings(), timeline)

    def close(self) -> None:
        self.meeting.leave(self.runtime.release())
        self.meeting.close()


def _serve(address: str, prefix: str) -> grpc.Server:
    # Two jobs at one port would meet in one store. Who begins the next job of this process's early
    # must not leave its keys in the store of this one, which goes.
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((collective.store_service(f"{prefix}/"),))
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(
            f"rank 0 cannot serve at {address}: {error}; set HOROVOD_GLOO_RENDEZVOUS_ADDR and "
            "HOROVOD_GLOO_RENDEZVOUS_PORT to an address of its host and a free port"
        ) from None
    server.start()
    return server


def _own_address(other: str) -> str:
    """By which this host reaches the other one; nothing is sent."""
    host, _, port = other.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(found[0], found[1]) as probe:
        probe.connect(found[4])
        return str(probe.getsockname()[0])


def _host_number() -> int:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    digest = hashlib.sha256(f"{socket.gethostname()} {boot}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def _value(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise ValueError(f"{name}={text!r} is no number") from None


def _patience() -> float:
    """Seconds for which a rank that is not known to be gone is waited for."""
    return _value("HOROVOD_GLOO_TIMEOUT_SECONDS", 30.0)


def _settings() -> Settings:
    known = Settings()
    checks = not _value("HOROVOD_STALL_CHECK_DISABLE", 0)
    stall = _value("HOROVOD_STALL_CHECK_TIME_SECONDS", known.stall_seconds)
    return Settings(
        fusion_threshold=int(_value("HOROVOD_FUSION_THRESHOLD", known.fusion_threshold)),
        cycle_seconds=max(_value("HOROVOD_CYCLE_TIME", known.cycle_seconds * 1e3), 0.1) / 1e3,
        cache_capacity=int(_value("HOROVOD_CACHE_CAPACITY", known.cache_capacity)),
        stall_seconds=stall if checks else 0.0,
        stall_shutdown_seconds=_value("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0),
    )


def whole(what: str, value: SupportsIndex) -> int:
    """As an integer of Python, which others can be told: it may be one of NumPy's, or a tensor
    without axes. TypeError for what is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is a whole number, not {value!r}") from None


class ProcessSet:
    """Ranks that do an operation without the others. It ends with the group of all ranks, and can
    then be added again."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: list[int] | None = sorted({whole("a rank", each) for each in ranks})
        self.process_set_id: int | None = None
        self._runtime: weakref.ref[Runtime] | None = None  # in which it has that number

    def included(self) -> bool:
        return rank() in self._members()

    def size(self) -> int:
        return len(self._members())

    def rank(self) -> int:
        """Of this process in the set; -1: it is not in it."""
        members = self._members()
        return members.index(rank()) if rank() in members else -1

    def _ended(self) -> bool:
        return self._runtime is not None and self._runtime() is not runtime()

    def _members(self) -> tuple[int, ...]:
        return runtime().members(identifier(self))

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _Everybody(ProcessSet):
    def __init__(self) -> None:
        super().__init__(())
        self.process_set_id = 0
        self.ranks = None


global_process_set: Final = _Everybody()


def identifier(process_set: ProcessSet) -> int:
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} has not been added: hvd.add_process_set() it")
    if process_set._ended():
        raise ValueError(f"{process_set} ended with its group: hvd.add_process_set() it again")
    return process_set.process_set_id


def init(comm: Sequence[int] | None = None, process_sets: Any = None) -> None:
    """Returns once all ranks have come. ``process_sets``: to be added, the same on all ranks."""
    global _job, _leaves, _times
    if comm:
        raise ValueError("init(comm=) is not supported: start the ranks that take part")
    with _guard:
        if _job is not None:
            return
        meeting = _Meeting(place.find(os.environ), _times + 1)
        try:
            group = meeting.enter()
            _times += 1
            _job = _Job(meeting, group)
        except BaseException:
            meeting.close()
            raise
        global_process_set.ranks = list(range(_job.size))
        if not _leaves:
            atexit.register(shutdown)
            _leaves = True
    if process_sets is not None and process_sets != "dynamic":
        for each in process_sets:
            add_process_set(each)


def shutdown() -> None:
    global _job
    with _guard:
        job, _job = _job, None
    if job is not None:
        job.close()


def regroup() -> None:
    """The job anew: of the ranks that are left, and of processes that ask to come in. All ranks
    that are left call it. Process sets are gone. Raises
    :class:`~tensorwire.collective.GroupError`; then there is no job any more."""
    global _job
    with _guard:
        before, _job = _the_job(), None
        group = before.runtime.release()
        try:
            while _job is None:
                group = collective.regroup(group, timeout=_patience())
                with suppress(collective.RankLostError):  # lost meanwhile, too
                    _job = _Job(before.meeting, group)
        except BaseException:
            before.meeting.close()
            raise
        global_process_set.ranks = list(range(_job.size))


def newcomers() -> int:
    """How many processes ask to come in, as far as this rank knows."""
    return collective.newcomers(_the_job().group)


def is_initialized() -> bool:
    return _job is not None


def _the_job() -> _Job:
    job = _job
    if job is None:
        raise NotInitializedError
    return job


def runtime() -> Runtime:
    return _the_job().runtime


def rank() -> int:
    return _the_job().rank


def size() -> int:
    return _the_job().size


def local_rank() -> int:
    return _the_job().local_rank


def local_size() -> int:
    return _the_job().local_size


def cross_rank() -> int:
    return _the_job().cross_rank


def cross_size() -> int:
    return _the_job().cross_size


def is_homogeneous() -> bool:
    return _the_job().homogeneous


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """All ranks call it, with the same ranks."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks = tuple(added.ranks or ())
    if not ranks or ranks[0] < 0 or ranks[-1] >= size():
        raise ValueError(f"a process set of the ranks {list(ranks)}: there are {size()}")
    running = runtime()
    if added.process_set_id is not None and not added._ended():
        raise ValueError(f"{added} has been added already")
    name = f"process_set.add.{','.join(map(str, ranks))}"
    request = Request(negotiation.ADD_PROCESS_SET, name, numbers=ranks)
    added.process_set_id = running.submit(request).result()
    added._runtime = weakref.ref(running)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """All ranks call it. False: there is no such set to remove."""
    number = process_set.process_set_id
    if not number or process_set._ended():
        return False
    request = Request(negotiation.REMOVE_PROCESS_SET, f"process_set.remove.{number}", root=number)
    removed = bool(runtime().submit(request).result())
    process_set.process_set_id = process_set._runtime = None
    return removed


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Of rank 0."""
    running = runtime()
    if running.rank == 0:
        stop_timeline()
        running.timeline = Timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    running = runtime()
    timeline, running.timeline = running.timeline, None
    if timeline is not None:
        timeline.close()


__all__ = [
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "newcomers",
    "rank",
    "regroup",
    "remove_process_set",
    "runtime",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
