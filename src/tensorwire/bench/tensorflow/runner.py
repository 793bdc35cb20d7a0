# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench tensorflow``: clusters side by side, visited in turn, round after round."""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from tensorwire import launch
from tensorwire.bench import course, environment
from tensorwire.bench.control import AgentError, Control
from tensorwire.bench.course import Course, Forecast, Progress, tour
from tensorwire.bench.measure import Visit
from tensorwire.bench.pair import VISIT_FACTOR
from tensorwire.bench.processes import START_SECONDS, expect, started
from tensorwire.bench.runner import Contender, rotated, spread
from tensorwire.bench.tensorflow.cases import JOB, STEP_MILLISECONDS, Work
from tensorwire.bench.tensorflow.paths import STOCK, Counts, PathError, Taken, grown, taken
from tensorwire.observe.host import why_no_verbs

BASELINE = Contender("grpc", STOCK)
VISIT_SECONDS = START_SECONDS + STEP_MILLISECONDS / 1e3
"""Of a visit, beside what was asked for: making a session, filling variables, the last step."""
CLUSTER_SECONDS = 8.0
"""About: of the start of a cluster, most of it for importing TensorFlow."""
VISIT_OVERHEAD = 0.3
"""Seconds, about: of a visit, outside of its steps."""


@dataclass(frozen=True)
class Options:
    """transports: tensorwire's; sizes: of the case ``tensor``; step_size, reduce_size: of the other
    cases; all in bytes. seconds: of one visit."""

    transports: Sequence[str]
    cases: Sequence[str]
    sizes: Sequence[int]
    step_size: int
    reduce_size: int
    rounds: int
    seconds: float

    @property
    def works(self) -> list[Work]:
        sizes = {"tensor": self.sizes, "ps-step": [self.step_size], "allreduce": [self.reduce_size]}
        return [Work(case, size) for case in self.cases for size in sizes[case]]


class Cluster:
    """Two tasks of one contender. Raises AgentError when one of them fails."""

    def __init__(self, transport: str, controls: list[Control], pids: list[int]) -> None:
        self._transport = transport
        self._driver, self._holder = controls
        self._pids = pids

    def visit(self, work: Work, seconds: float) -> tuple[Visit, Taken]:
        """PathError when the tensors did not go by this cluster's transport."""
        before = self._counts()
        self._driver.send({"work": work.to_json(), "seconds": seconds, "pids": self._pids})
        limit = VISIT_SECONDS + seconds * VISIT_FACTOR
        visit = Visit(**expect(self._driver, limit, self._holder))
        counts = grown(before, self._counts())
        return visit, taken(work, self._transport, visit.calls, counts)

    def _counts(self) -> list[Counts]:
        found: list[Counts] = []
        ends = (self._driver, self._holder)
        for control, other in (ends, ends[::-1]):
            control.send({"stats": True})
            found.append(expect(control, START_SECONDS, other)["stats"])
        return found


@contextmanager
def start(transport: str) -> Iterator[Cluster]:
    """Starts both tasks, and ends them whatever state they are in."""
    hosts = launch.cluster(f"{JOB}=2").hosts(JOB)

    def commands(path: str) -> list[list[str]]:
        module = "tensorwire.bench.tensorflow.agent"
        return [
            [sys.executable, "-m", module, str(task), transport, ",".join(hosts), path]
            for task in range(2)
        ]

    with started(commands, 2) as hellos:
        controls = [control for control, _ in hellos]
        yield Cluster(transport, controls, [hello["pid"] for _, hello in hellos])


@dataclass
class Results(Course):
    """Visits, and why some are missing."""

    visits: dict[tuple[Contender, Work], list[tuple[Visit, Taken]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def measure(
    asked: Sequence[Contender],
    works: Sequence[Work],
    rounds: int,
    seconds: float,
    progress: Progress = lambda now, done, total: None,
) -> Results:
    """Each round visits each contender once; the order moves on by one from round to round. All
    clusters run from the beginning to the end; those not visited wait without using CPU. A
    contender that fails, or takes another way than it should, is measured no more. Ctrl-C ends the
    run with the figures that there are."""
    results = Results()
    with ExitStack() as stack:
        clusters: dict[Contender, Cluster] = {}
        for contender in asked:
            progress(f"starting {contender.name} {contender.transport}", 0, 0)
            missing = why_no_verbs() if contender.transport == "verbs" else None
            if missing is not None:
                results.notes.append(f"{contender.name} over verbs: left out: {missing}")
                results.failed = True
                continue
            try:
                clusters[contender] = stack.enter_context(start(contender.transport))
            except AgentError as error:
                results.notes.append(f"{contender.name} over {contender.transport}: {error}")
                results.failed = True
        tour(
            (
                (contender, work)
                for work in works
                for turn in range(rounds)
                for contender in rotated(list(asked), turn)
                if contender in clusters
            ),
            len(clusters) * len(works) * rounds,
            lambda turn: _describe(*turn),
            lambda turn: _visit(clusters, *turn, seconds, results),
            results,
            progress,
        )
    return results


def _describe(contender: Contender, work: Work) -> str:
    return f"{contender.name} {contender.transport}: {work.case} of {work.size} B"


def _visit(
    clusters: dict[Contender, Cluster],
    contender: Contender,
    work: Work,
    seconds: float,
    results: Results,
) -> None:
    try:
        found = clusters[contender].visit(work, seconds)
    except (AgentError, PathError) as error:
        results.notes.append(f"{_describe(contender, work)}: {error}, so it was stopped")
        results.failed = True
        results.visits.pop((contender, work), None)
        del clusters[contender]
    else:
        results.visits[contender, work].append(found)


def rows(results: Results) -> list[dict[str, Any]]:
    """One row for each contender and work, as documented in ``docs/benchmarks.md``."""
    table = []
    for (contender, work), found in results.visits.items():
        visits = [visit for visit, _ in found]
        base = [visit for visit, _ in results.visits.get((BASELINE, work), [])]
        shares = [way.in_place for _, way in found if way.in_place is not None]
        p50, p99 = (_median_ms(visits, name) for name in ("p50_us", "p99_us"))
        table.append(
            {
                "contender": contender.name,
                "transport": found[0][1].transport,
                "case": work.case,
                "size": work.size,
                "p50_ms": p50,
                "p50_spread": spread([visit.p50_us for visit in visits]),
                "p99_ms": p99,
                "cpu_s_per_step": statistics.median(v.cpu_seconds / v.calls for v in visits),
                "ratio_to_grpc": _median_ms(base, "p50_us") / p50 if base else None,
                "p99_ratio_to_grpc": _median_ms(base, "p99_us") / p99 if base else None,
                "in_place": min(shares) if shares else None,
                "steps": sum(visit.calls for visit in visits),
            }
        )
    return table


def _median_ms(visits: Sequence[Visit], name: str) -> float:
    return float(statistics.median(getattr(visit, name) for visit in visits)) / 1e3


def contenders(options: Options) -> list[Contender]:
    return [BASELINE, *(Contender("tensorwire", name) for name in options.transports)]


def forecast(options: Options) -> Forecast:
    """Of a run; where there is no device for it, verbs has no part in it."""
    total = Forecast()
    for contender in contenders(options):
        if contender.transport == "verbs" and why_no_verbs() is not None:
            continue
        total += Forecast(0, CLUSTER_SECONDS)
        for work in options.works:
            total += course.visits(options.rounds, work.moved, options.seconds, VISIT_OVERHEAD)
    return total


def run(
    options: Options, progress: Progress = lambda now, done, total: None
) -> tuple[dict[str, Any], bool]:
    """The report, ``{"environment": {...}, "rows": [...]}``, and whether all that was asked for is
    in it.

    Raises tensorwire.tensorflow.PluginError where there is no TensorFlow, or no plugin for it.
    """
    from tensorwire.tensorflow import build

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only, here and in the agents
    before = environment.describe(asdict(options), ())
    tensorflow = build.installed()
    build.plugin(tensorflow)  # now: the agents have no time to wait for it
    before["versions"]["tensorflow"] = tensorflow.version
    results = measure(contenders(options), options.works, options.rounds, options.seconds, progress)
    table = rows(results)
    caveats = environment.caveats({row["transport"] for row in table})
    described = {
        **before,
        "notes": [*results.notes, *caveats],
        "interrupted": results.interrupted,
    }
    return {"environment": described, "rows": table}, not results.failed
