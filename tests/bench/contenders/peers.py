# SPDX-License-Identifier: Apache-2.0
"""Every contender of every suite that is not ours gives right answers, in processes of its own, on
each of its transports and in each case, scheme and mode that it has: a run as short as they come.
``make test-peers`` runs it where the other libraries are. What is not there is skipped, with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Final

import pytest

from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Suite, SuiteError
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.channels.suite import Channels
from tensorwire.bench.suites.collectives import suite as collectives
from tensorwire.bench.suites.collectives.operations import OPERATIONS
from tensorwire.bench.suites.queue.suite import Queues
from tensorwire.bench.suites.remote import suite as remote
from tensorwire.bench.suites.remote.contender import CASES as ACCESSES
from tensorwire.bench.suites.rpc import suite as rpc
from tensorwire.bench.suites.rpc.messages import PAYLOADS, why_no_protobuf
from tensorwire.bench.suites.tensorflow.suite import Options as StepOptions
from tensorwire.bench.suites.tensorflow.suite import Steps
from tensorwire.bench.suites.tf_grpc.cluster import Settings
from tensorwire.bench.suites.tf_grpc.contender import MODES
from tensorwire.bench.suites.tf_grpc.payloads import SCHEMES, Mix, workload
from tensorwire.bench.suites.tf_grpc.suite import BENCHMARKS, Options, Payloads, topology
from tensorwire.bench.suites.torch.suite import Trainings
from tensorwire.bench.suites.torch.training import WAYS, whole
from tensorwire.bench.suites.weights.contender import CASES as MOVES
from tensorwire.bench.suites.weights.suite import Weights

KB, MB = 1 << 10, 1 << 20
SIZES: Final = (8, 64 * KB)
BRIEF: Final = 0.001
"""Seconds of a visit, which then makes a few calls."""
GROUP: Final = "tensorwire.bench.contenders."


def channels(entry: Entry) -> Iterator[Suite]:
    yield Channels([entry], [Work("softmax", 31400, callers=2)], 1, BRIEF)


def operations(entry: Entry) -> Iterator[Suite]:
    works = collectives.plan([*OPERATIONS], SIZES, 2, "float32")
    yield collectives.Collectives([entry], works, 1, BRIEF)


def queue(entry: Entry) -> Iterator[Suite]:
    yield Queues([entry], [Work("queue", size, reads=True, callers=2) for size in SIZES], 1, BRIEF)


def accesses(entry: Entry) -> Iterator[Suite]:
    yield remote.Accesses([entry], remote.plan(ACCESSES, SIZES), 1, BRIEF)


def calls(entry: Entry) -> Iterator[Suite]:
    payloads = PAYLOADS[: 2 if why_no_protobuf() else None]
    yield rpc.Calls([entry], rpc.plan((8, MB), payloads=payloads), 1, BRIEF)


def steps(entry: Entry) -> Iterator[Suite]:
    made = Steps.of(StepOptions((), ("tensor", "mirrored"), (MB,), (), 0, 0, MB, 1, BRIEF))
    made.entries = [entry]
    yield made


def payloads(entry: Entry) -> Iterator[Suite]:
    mix = Mix(buffers=4, pattern="SML")
    for benchmark in BENCHMARKS:
        made = Payloads.of(
            Options(
                benchmark,
                workloads=[workload(scheme, mix) for scheme in SCHEMES],
                modes=MODES[: 1 if why_no_protobuf() else None],
                origins=["ordinary"],
                reads=[False, True],
                topology=topology(benchmark, 2, 2 if benchmark == "ps-throughput" else None, ()),
                transports=[],
                peers=[],
                rounds=1,
                seconds=BRIEF,
                settings=Settings(warm_up=0),
            )
        )
        made.entries = [entry]
        yield made


def trainings(entry: Entry) -> Iterator[Suite]:
    yield Trainings([entry], [Work(way, whole(MB)) for way in WAYS], 1, BRIEF)


def weights(entry: Entry) -> Iterator[Suite]:
    yield Weights([entry], [Work(case, MB) for case in MOVES], 1, BRIEF)


RUNS: Final[dict[str, Callable[[Entry], Iterator[Suite]]]] = {
    "channels": channels,
    "collectives": operations,
    "queue": queue,
    "remote": accesses,
    "rpc": calls,
    "tensorflow": steps,
    "tf_grpc": payloads,
    "torch": trainings,
    "weights": weights,
}
"""By the group of the contenders' entry points."""


def contenders() -> Iterator[tuple[str, Entry]]:
    groups = {group for group in entry_points().groups if group.startswith(GROUP)}
    for group in sorted(groups):
        for point in entry_points(group=group):
            found = point.load()()
            if found.role == "own":
                continue
            for name, each in {point.name: found, **found.variants()}.items():
                for transport in each.transports:
                    yield group.removeprefix(GROUP), Entry(name, transport)


EVERY: Final[Sequence[tuple[str, Entry]]] = [*contenders()]


def test_every_suite_has_a_run() -> None:
    assert {suite for suite, _ in EVERY} == RUNS.keys()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("suite", "entry"),
    EVERY,
    ids=[f"{suite}-{entry.contender}-{entry.transport}" for suite, entry in EVERY],
)
def test_answers_are_right(suite: str, entry: Entry) -> None:
    for made in RUNS[suite](entry):
        if (reason := made.contender(entry.contender).viable(entry.transport)) is not None:
            pytest.skip(reason)
        try:
            made.prepare()
        except SuiteError as error:
            pytest.skip(str(error))
        results = made.measure()  # a wrong answer ends the contender's part
        assert not results.failed, results.notes
        assert results.visits
        assert {work for _, work in results.visits} == set(made.duty(entry))
