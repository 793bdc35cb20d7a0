# SPDX-License-Identifier: Apache-2.0
"""A run: who takes part, in which order, what becomes of failures, and the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tensorwire.bench.harness import rows
from tensorwire.bench.harness.control import AgentError
from tensorwire.bench.harness.measure import Visit
from tensorwire.bench.harness.rows import Row
from tensorwire.bench.harness.schedule import Entry, Progress, silent
from tensorwire.bench.harness.suite import Results
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.rpc.suite import Calls, entries, plan
from tensorwire.observe.host import same_host_congestion_control

GRPC = Entry("grpcio", "grpc")
ZMQ = Entry("zmq", "tcp")
SOCKETS = Entry("sockets", "tcp")
REQUEST = Work("request", 1000)


def rows_in(results: Results) -> list[Row]:
    return rows.rows(results.visits, results.comments, "grpcio", lambda work: work.size)


def test_of_all_calls() -> None:
    fast = Visit(2.0, 3.0, 30, 1.0, 0.5, "grpc", min_us=1.0, mean_us=2.0, max_us=5.0)
    slow = Visit(4.0, 9.0, 10, 1.0, 0.5, "grpc", min_us=2.0, mean_us=6.0, max_us=9.0)
    assert rows.of_all_calls([fast, slow]) == {"min_us": 1.0, "mean_us": 3.0, "max_us": 9.0}
    assert set(rows.of_all_calls([visit_of(1.0)]).values()) == {None}


def visit_of(p50: float, p99: float = 0.0, calls: int = 10, seconds: float = 1.0) -> Visit:
    return Visit(p50, p99 or p50, calls, seconds, cpu_seconds=0.5, path="grpc")


class FakePair:
    def __init__(self, contender: Entry, log: list[Entry]) -> None:
        self.contender = contender
        self.log = log
        self.path = contender.transport
        self.note = f"note of {contender}"
        self.fails_at: int | None = None
        self.moves_at: int | None = None
        self.visits = 0
        self.ended_at: int | None = None
        """After how many visits of all."""

    def visit(self, work: Work, seconds: float) -> Visit:
        self.log.append(self.contender)
        self.visits += 1
        if self.visits == self.fails_at:
            raise AgentError("its process is gone")
        path = "elsewhere" if self.visits == self.moves_at else self.path
        return Visit(100.0, 200.0, 10, seconds, 0.1, path)


Pairs = dict[Entry, FakePair]


class FakeContender:
    def __init__(self, name: str) -> None:
        self.cases = {"request"} if name == "nixl" else {"request", "pull", "stream"}
        self.origins = {"ordinary", "published"} if name == "tensorwire" else {"ordinary"}

    def viable(self, transport: str) -> str | None:
        return None

    def supports(self, work: Work) -> bool:
        return work.case in self.cases and (work.payload == "array" or "published" in self.origins)


class FakeCalls(Calls):
    def __init__(self, pairs: Pairs, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pairs = pairs

    def contender(self, name: str) -> Any:
        return FakeContender(name)

    @contextmanager
    def start(self, entry: Entry) -> Iterator[FakePair]:
        pair = self.pairs.setdefault(entry, FakePair(entry, self.pairs[GRPC].log))
        yield pair
        pair.ended_at = len(pair.log)


def run(
    pairs: Pairs,
    asked: list[Entry],
    works: list[Work],
    rounds: int,
    seconds: float,
    progress: Progress = silent,
) -> Results:
    return FakeCalls(pairs, asked, works, rounds, seconds).measure(progress)


@pytest.fixture
def pairs() -> Pairs:
    """What FakeCalls starts, by contender; set their attributes beforehand."""
    log: list[Entry] = []
    return {contender: FakePair(contender, log) for contender in (GRPC, ZMQ, SOCKETS)}


def test_sockets_come_with_the_congestion_control_of_our_links() -> None:
    names = [entry.contender for entry in entries(["shm"], ["sockets", "zmq"])]
    assert names == [
        "grpcio",
        "tensorwire",
        "sockets",
        f"sockets-{same_host_congestion_control()}",
        "zmq",
        "zmq",
    ]


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(ValueError, match="carrier_pigeon"):
        entries([], ["carrier_pigeon"])
    with pytest.raises(ValueError, match="zmq-cubic"):
        entries([], ["zmq-cubic"])


def test_each_round_visits_everyone_once_and_the_order_moves_on(
    pairs: Pairs,
) -> None:
    asked = [GRPC, ZMQ, SOCKETS]
    seen: list[tuple[int, int]] = []
    results = run(
        pairs, asked, [REQUEST], 3, 0.1, lambda now, done, total: seen.append((done, total))
    )
    log = pairs[GRPC].log
    assert log == [GRPC, ZMQ, SOCKETS, ZMQ, SOCKETS, GRPC, SOCKETS, GRPC, ZMQ]
    assert {len(visits) for visits in results.visits.values()} == {3}
    assert seen[-1] == (9, 9)
    assert not results.failed


def test_sizes_come_one_after_the_other(pairs: Pairs) -> None:
    works = plan([64, 8], cases=["request"], origins=["ordinary"], reads=[False])
    measured: list[int] = []
    run(pairs, [GRPC], works, 2, 0.1, lambda now, done, total: measured.append(done))
    assert [key[1].size for key in run(pairs, [GRPC], works, 2, 0.1).visits] == [64, 8]


def test_cases_that_a_peer_lacks_are_left_out(pairs: Pairs) -> None:
    nixl = Entry("nixl", "shm")
    results = run(pairs, [GRPC, nixl], plan([8], origins=["ordinary"]), 1, 0.1)
    assert {work.case for contender, work in results.visits if contender == nixl} == {"request"}
    assert not results.failed


def test_a_peer_that_has_nothing_to_do_is_not_started(pairs: Pairs) -> None:
    ours = Entry("tensorwire", "shm")
    works = plan([8], cases=["request"], payloads=["bytes"])
    told: list[str] = []
    results = run(pairs, [ZMQ, ours], works, 1, 0.1, lambda now, done, total: told.append(now))
    assert {contender for contender, _ in results.visits} == {ours}
    assert results.notes == []
    assert {row.payload for row in rows_in(results)} == {"bytes"}
    assert pairs[ZMQ].visits == 0


@pytest.mark.parametrize("origins", [["published"], ["ordinary", "published"]])
def test_who_knows_no_published_memory_does_the_same_in_ordinary_memory(
    pairs: Pairs, origins: list[str]
) -> None:
    ours = Entry("tensorwire", "shm")
    works = plan([8], cases=["request"], origins=origins, reads=[False])
    results = run(pairs, [GRPC, ours], works, 2, 0.1)
    assert {(contender, work.origin) for contender, work in results.visits} == {
        (GRPC, "ordinary"),
        *((ours, origin) for origin in origins),
    }
    assert len(results.visits[GRPC, Work("request", 8)]) == 2
    assert all(row.ratio for row in rows_in(results))


def test_what_is_compared_is_measured_side_by_side(pairs: Pairs) -> None:
    ours = Entry("tensorwire", "shm")
    told: list[str] = []
    works = plan([8], cases=["request", "pull"], reads=[False])
    run(pairs, [GRPC, ours], works, 1, 0.1, lambda now, done, total: told.append(now))
    assert [now.split(" of ")[0] for now in told if ":" in now] == [
        "grpcio grpc: request",
        "tensorwire shm: request",
        "tensorwire shm: request",
        "grpcio grpc: pull",
        "tensorwire shm: pull",
        "tensorwire shm: pull",
    ]


def test_a_contender_that_fails_is_dropped_and_the_others_go_on(
    pairs: Pairs,
) -> None:
    pairs[ZMQ].fails_at = 2
    results = run(pairs, [GRPC, ZMQ], [REQUEST], 3, 0.1)
    assert [contender for contender, _ in results.visits] == [GRPC]
    assert len(results.visits[GRPC, REQUEST]) == 3
    assert results.failed
    assert "its process is gone" in results.notes[0]


@pytest.mark.parametrize("wrong", [{"fails_at": 1}, {"moves_at": 1}, {"path": "ipc"}])
def test_what_is_measured_no_more_does_not_run_beside_the_others(
    pairs: Pairs, wrong: dict[str, Any]
) -> None:
    for name, value in wrong.items():
        setattr(pairs[ZMQ], name, value)
    run(pairs, [ZMQ, GRPC], [REQUEST], 3, 0.1)
    assert pairs[ZMQ].ended_at == (0 if "path" in wrong else 1)
    assert pairs[GRPC].ended_at == pairs[ZMQ].visits + 3


@pytest.mark.parametrize("moves_at", [1, 2])
def test_figures_from_another_path_are_refused(pairs: Pairs, moves_at: int) -> None:
    pairs[ZMQ].moves_at = moves_at
    results = run(pairs, [GRPC, ZMQ], [REQUEST], 3, 0.1)
    assert [row.contender for row in rows_in(results)] == ["grpcio"]
    assert results.failed
    assert "elsewhere" in results.notes[0]


def test_a_contender_that_starts_on_another_path_is_not_measured(
    pairs: Pairs,
) -> None:
    pairs[ZMQ].path = "ipc"
    results = run(pairs, [GRPC, ZMQ], [REQUEST], 1, 0.1)
    assert pairs[ZMQ].visits == 0
    assert results.failed
    assert "took ipc instead" in results.notes[0]


def test_auto_takes_whatever_is_chosen(pairs: Pairs) -> None:
    auto = Entry("tensorwire", "auto")
    pairs[auto] = FakePair(auto, [])
    pairs[auto].path = "shm"
    (row,) = rows_in(run(pairs, [auto], [REQUEST], 1, 0.1))
    assert row.transport == "shm"


@pytest.mark.parametrize(("may_lack", "failed"), [([], True), (["zmq"], False)])
def test_what_is_not_installed_is_a_note_and_a_failure_where_it_was_named(
    monkeypatch: pytest.MonkeyPatch, may_lack: list[str], failed: bool
) -> None:
    monkeypatch.setattr("tensorwire.bench.contenders.rpc.zmq.find_spec", lambda name: None)
    results = Calls([ZMQ], [REQUEST], 1, 0.1, may_lack=may_lack).measure()
    assert results.failed is failed
    assert "pip install pyzmq" in results.notes[0]
    assert results.visits == {}
    assert Calls([ZMQ], [REQUEST], 1, 0.1).forecast().visits == 0


def test_how_much_there_is_to_do_is_known_before(pairs: Pairs) -> None:
    works = plan([8, 64 << 20], cases=["request"], origins=["ordinary"], reads=[False])
    asked = [GRPC, ZMQ, SOCKETS]
    found = FakeCalls(pairs, asked, works, 3, 0.1).forecast()
    seen: list[int] = []
    run(pairs, asked, works, 3, 0.1, lambda now, done, total: seen.append(total))
    assert found.visits == seen[-1] == 18
    large = FakeCalls(pairs, asked, works[1:], 3, 0.1).forecast()
    assert large.visits == 9
    assert found.seconds - large.seconds < large.seconds  # calls of 64 MiB outlast their visit


def rows_of(visits: dict[tuple[Entry, Work], list[Visit]]) -> list[Row]:
    results = Results(visits=visits, comments={contender: "" for contender, _ in visits})
    return rows_in(results)


def test_rows_are_medians_over_rounds() -> None:
    base, row = rows_of(
        {
            (GRPC, REQUEST): [visit_of(90), visit_of(100, 400), visit_of(1000)],
            (ZMQ, REQUEST): [visit_of(5, calls=40), visit_of(20, 50), visit_of(10, 10, calls=20)],
        }
    )
    assert (row.p50_us, row.p99_us) == (10, 10)
    assert row.calls == 70
    assert row.calls_per_s == 20
    assert row.gb_per_s == pytest.approx(20 * 1000 / 1e9)
    assert row.cpu_s_per_gb == pytest.approx(0.5 / (20 * 1000 / 1e9))
    assert row.ratio == 10
    assert row.p99_ratio == 40
    assert base.ratio == 1


def test_published_arrays_are_compared_with_the_same_work_of_grpcio() -> None:
    published = Work("request", 1000, origin="published", reads=True)
    ours = Entry("tensorwire", "shm")
    found = rows_of(
        {
            (GRPC, REQUEST): [visit_of(7)],
            (GRPC, Work("request", 1000, reads=True)): [visit_of(100)],
            (ours, published): [visit_of(5)],
        }
    )
    assert found[2].ratio == 20


def test_what_is_only_announced_has_a_time_but_no_rate_and_no_ratio() -> None:
    announced = Work("request", 1 << 20, origin="published")
    shm, tcp = Entry("tensorwire", "shm"), Entry("tensorwire", "tcp")

    def figures(contender: Entry, work: Work) -> tuple[float, list[float | None]]:
        base = {(GRPC, replace(work, origin="ordinary")): [visit_of(100)]}
        visit = replace(visit_of(5), path=contender.transport)
        _, row = rows_of({**base, (contender, work): [visit]})
        rates = ("gb_per_s", "calls_per_s", "cpu_s_per_gb", "ratio", "p99_ratio")
        assert row.p50_us is not None
        return row.p50_us, [getattr(row, name) for name in rates]

    assert figures(shm, announced) == (5, [None] * 5)
    for contender, work in (
        (tcp, announced),
        (shm, replace(announced, reads=True)),
        (shm, replace(announced, origin="ordinary")),
        (shm, replace(announced, size=8)),
    ):
        assert None not in figures(contender, work)[1]


def test_several_callers_are_compared_by_what_they_get_done() -> None:
    work = Work("request", 8, callers=4)
    found = rows_of(
        {
            (GRPC, work): [visit_of(100, calls=10)],
            (ZMQ, work): [visit_of(1, calls=30)],
        }
    )
    assert found[1].ratio == 3


def test_without_the_baseline_there_is_no_ratio() -> None:
    (row,) = rows_of({(ZMQ, REQUEST): [visit_of(5)]})
    assert row.ratio is None
    assert row.p99_ratio is None


def test_nothing_has_no_cpu_time_for_each_gigabyte() -> None:
    (row,) = rows_of({(GRPC, Work("request", 0)): [visit_of(5)]})
    assert row.cpu_s_per_gb is None
    assert row.gb_per_s == 0


def test_a_transport_that_was_asked_for_and_is_not_there_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "no adapter in this host"
    monkeypatch.setattr("tensorwire.bench.contenders.rpc.tensorwire.why_not", lambda name: why)
    results = Calls([Entry("tensorwire", "verbs")], [REQUEST], 1, 0.1).measure()
    assert results.failed
    assert results.notes == [f"tensorwire over verbs: left out: {why}"]
