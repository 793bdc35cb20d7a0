# SPDX-License-Identifier: Apache-2.0
"""Clusters of real TensorFlow servers, each in a process of its own, with the plugin or without."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from tests import forked

from tensorwire.launch import free_ports

SERVE = "tests.tensorflow.serve"
PLUGIN, STOCK = "grpc+tensorwire", "grpc"
READY_SECONDS = 90.0

Task = tuple[str, int]
PAIR: dict[Task, str] = {("ps", 0): PLUGIN, ("worker", 0): PLUGIN}
PS, WORKER = "/job:ps/task:0/device:CPU:0", "/job:worker/task:0/device:CPU:0"


class Process:
    """One process of a cluster, with the servers of one task, or of several."""

    def __init__(self, order: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._child = forked.start(SERVE, order, environment)

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_ready(self) -> None:
        line = self._child.stdout.readline()
        assert line.startswith("ready"), f"the server has not started: {line!r}"

    def ask(self, word: str) -> Any:
        """What ``serve.py`` answers to one of its words."""
        self._child.stdin.write(f"{word}\n")
        self._child.stdin.flush()
        return json.loads(self._child.stdout.readline())

    def kill(self) -> None:
        self._child.kill()


class Cluster:
    """``tasks`` gives each task its protocol. Sessions are made in this process, which serves
    nothing and needs no plugin."""

    def __init__(
        self, tasks: Mapping[Task, str], environment: Mapping[str, str], host: str = "127.0.0.1"
    ) -> None:
        self._tasks = dict(tasks)
        self._environment = dict(environment)
        ports = free_ports(len(tasks))
        self.addresses = dict(zip(tasks, (f"{host}:{p}" for p in ports), strict=True))
        self.spec: dict[str, list[str]] = {}
        for (job, _), address in self.addresses.items():
            self.spec.setdefault(job, []).append(address)
        self.processes: dict[Task, Process] = {}

    def start(
        self,
        tasks: Sequence[Task],
        *,
        late: bool = False,
        hostile: bool = False,
        **environment: str,
    ) -> None:
        """One process for these tasks, all of one protocol. hostile: it breaks plans when it is
        told to (``hostile.py``)."""
        order = {
            "cluster": self.spec,
            "tasks": tasks,
            "protocol": self._tasks[tasks[0]],
            "late": late,
            "hostile": hostile,
        }
        process = Process(order, {**self._environment, **environment})
        for task in tasks:
            self.processes[task] = process

    def wait_ready(self) -> None:
        for process in set(self.processes.values()):
            process.wait_ready()

    def restart(self, task: Task) -> None:
        self.processes[task].kill()
        self.start([task])
        self.processes[task].wait_ready()

    def target(self, job: str, task: int = 0) -> str:
        return f"grpc://{self.addresses[job, task]}"

    def stats(self, job: str, task: int = 0) -> dict[str, int]:
        found: dict[str, int] = self.processes[job, task].ask("stats")
        return found

    def close(self) -> None:
        for process in set(self.processes.values()):
            process.kill()


MakeCluster = Callable[..., Cluster]


@contextmanager
def running(
    tasks: Mapping[Task, str], *, host: str = "127.0.0.1", **environment: str
) -> Iterator[Cluster]:
    cluster = Cluster(tasks, environment, host)
    try:
        for task in tasks:
            cluster.start([task])
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.close()


def eventually(holds: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


def session_as_written(tf: Any, target: str, *, isolated: bool = False) -> Any:
    """Runs graphs without rewriting them. isolated: it has a worker cache of its own."""
    config = tf.compat.v1.ConfigProto(
        operation_timeout_in_ms=60_000, isolate_session_state=isolated
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return tf.compat.v1.Session(target, config=config)


@pytest.fixture(scope="session")
def tensorflow() -> Any:
    """TensorFlow, for sessions; with the plugin built, so that clusters start at once."""
    if find_spec("tensorflow") is None:
        pytest.skip("needs TensorFlow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    import tensorflow as tf
    from tensorwire.tensorflow import build

    build.plugin(build.installed())
    return tf


@pytest.fixture(scope="module", params=["shm", "tcp"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A pair whose transfers are planned; some files have another cluster of this name."""
    with running(PAIR, TENSORWIRE_TF_PLAN="on", TENSORWIRE_TRANSPORT=request.param) as started:
        yield started


@pytest.fixture
def graph(tensorflow: Any) -> Iterator[None]:
    with tensorflow.Graph().as_default():
        yield


@pytest.fixture
def run(tensorflow: Any, cluster: Cluster, graph: None) -> Iterator[Any]:
    """A session at the worker, for the graph of the test."""
    with session_as_written(tensorflow, cluster.target("worker")) as opened:
        yield opened
