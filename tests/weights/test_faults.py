# SPDX-License-Identifier: Apache-2.0
"""Ends that die, stop, race and come again."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from tests.forked import inherited
from tests.transports import HERE
from tests.weights.other import channel, eventually, other, publisher

import tensorwire
from tensorwire import weights
from tensorwire.weights import holds, plan, source, wire
from tensorwire.weights.source import Source, TornError
from tensorwire.weights.versions import Stored

SIZE = 1 << 20
ROUNDS = 30
"""Of pulls that race with a trainer: as many, and up to so many more as one of them is torn."""
FEW = 10
"""Over RDMA, whose device may be an emulated one."""

READER = (
    "params = {{'a': np.zeros(1 << 20, np.uint8)}};"
    "reader = weights.Subscriber(channel({port}, '{transport}'), params)"
)
STOPS_WHEN_IT_WRITES = (
    "from tensorwire.weights.parameters import Parameter\n"
    "def rooms(self):\n"
    "    print('[true, \"writes\"]', flush=True)\n"
    "    signal.pause()\n"
    "Parameter.rooms = rooms\n"
)


def resident() -> int:
    return tensorwire.arena_stats()["resident"]


def in_use() -> int:
    """Bytes of the arena, of which tests before may have left some to be collected."""
    gc.collect()
    return tensorwire.arena_stats()["used"]


def test_a_publisher_that_is_closed_gives_its_memory_back_at_once() -> None:
    made, server, _ = publisher({"a": np.ones(80 * SIZE, np.uint8)})
    made.publish()
    held = resident()
    made.close()
    assert resident() <= held - 80 * SIZE
    server.stop(None)


@pytest.mark.parametrize("transport", HERE)
def test_a_subscriber_that_is_killed_in_a_pull_gives_its_memory_back(transport: str) -> None:
    before = in_use()
    params = {"a": np.ones(SIZE, np.uint8)}
    made, server, port = publisher(params)
    made.publish()
    with other() as reader:
        reader.do(READER.format(port=port, transport=transport))
        reader.do(STOPS_WHEN_IT_WRITES)
        reader.begin("reader.pull()")
        assert reader.answer() == "writes"
        held = SIZE if transport == "shm" else 0  # by RDMA it is told a moment later
        eventually(lambda: made._store.quota.leased == held)
        # The trainer goes on meanwhile, and what the reader holds stays as it is.
        for _ in range(3):
            params["a"] += 1
            made.publish()
        assert made._store.quota.leased == held
        reader.child.kill()
    eventually(lambda: made._store.quota.leased == 0)
    assert in_use() - before <= 2 * (SIZE + 4096)
    # The next one finds nothing amiss.
    mine = {"a": np.zeros(SIZE, np.uint8)}
    with weights.Subscriber(channel(port, transport), mine) as again:
        assert again.pull(timeout=10).number == 4
    assert (mine["a"] == 4).all()
    server.stop(None)


@pytest.mark.parametrize("transport", HERE)
def test_a_publisher_that_is_killed_in_an_update(transport: str) -> None:
    """A pull that waits for it ends UNAVAILABLE; parameters and views stay good."""
    with other() as trainer:
        trainer.do("params = {'a': np.ones(1 << 20, np.uint8)}")
        trainer.do("place = publisher(params, mode='in_place')")
        trainer.do("copy = publisher(params)")
        trainer.do("place[0].publish(), copy[0].publish()")
        mine = {"a": np.zeros(SIZE, np.uint8)}
        place = weights.Subscriber(channel(trainer.do("place[2]"), transport), mine)
        copy = weights.Subscriber(channel(trainer.do("copy[2]"), transport), {"a": mine["a"][:]})
        assert place.pull(timeout=10).number == 1
        trainer.do("update = place[0].update(); update.__enter__(); params['a'][:9] = 7")
        with copy.view(timeout=10) as view:
            ended: list[Any] = []
            waiting = threading.Event()
            newest = Source.pull

            def pull() -> None:
                with pytest.raises(weights.PublisherLostError) as found:
                    place.pull(at_least=2)
                ended.append(found.value)

            def asked(self: Source, *arguments: Any) -> Any:
                try:
                    return newest(self, *arguments)
                finally:
                    waiting.set()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Source, "pull", asked)
                thread = threading.Thread(target=pull)
                thread.start()
                assert waiting.wait(10)
                trainer.child.kill()
                thread.join(20)
            assert ended
            assert ended[0].code.name == "UNAVAILABLE"
            assert (mine["a"] == 1).all()
            assert place.version == 1
            assert (view["a"] == 1).all()
        with pytest.raises(weights.PublisherLostError):
            copy.pull(timeout=10)
        place.close()
        copy.close()


def test_a_publisher_that_dies_in_the_middle_of_a_reply() -> None:
    with other() as trainer:
        trainer.do("params = {'a': np.ones(16 << 20, np.uint8)}")
        trainer.do("made = publisher(params); made[0].publish()")
        mine = {"a": np.zeros(16 << 20, np.uint8)}
        with weights.Subscriber(channel(trainer.do("made[2]"), "tcp"), mine) as reader:
            reader.pull(timeout=20)
            trainer.do("params['a'] += 1; made[0].publish()")
            take = Source._asked

            killing = threading.Thread(target=trainer.child.kill)

            def asked(self: Source, *arguments: Any) -> Any:
                killing.start()
                return take(self, *arguments)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Source, "_asked", asked)
                try:
                    found = reader.pull(timeout=20).number
                except weights.PublisherLostError:
                    found = 1
                killing.join()
            assert (mine["a"] == found).all()  # all of one version, whichever it is
            assert reader.version == found


@pytest.mark.parametrize("transport", HERE)
def test_torn_reads_are_found(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that waits for no reader writes again and again; what a pull brings is nevertheless
    of one moment."""
    torn = 0
    take = Source._take

    def counted(self: Source, *arguments: Any) -> None:
        nonlocal torn
        try:
            take(self, *arguments)
        except TornError:
            torn += 1
            raise

    monkeypatch.setattr(Source, "_take", counted)
    with other() as trainer:
        trainer.do("import threading; stop = threading.Event()")
        trainer.do("params = {name: np.zeros(1 << 19, np.uint8) for name in 'abcdefgh'}")
        trainer.do("made = publisher(params, mode='in_place')")
        trainer.do(
            "def step():\n"
            "    with made[0].update(timeout=0):\n"
            "        number = made[0].version + 1\n"
            "        for array in params.values():\n"
            "            array.fill(number % 251)\n"
            "    return number\n"
        )
        # From an eighth of what a pull takes to 16 times as long.
        trainer.do(
            "def train(pull):\n"
            "    while not stop.is_set():\n"
            "        stop.wait(pull * 2 ** (step() % 8 - 3))\n"
        )
        mine = {name: np.zeros(1 << 19, np.uint8) for name in "abcdefgh"}
        with weights.Subscriber(channel(trainer.do("made[2]"), transport), mine) as reader:
            for _ in range(2):  # the first one also opens the link
                trainer.do("step()")
                began = time.monotonic()
                reader.pull(at_least=reader.version + 1, timeout=60)
                took = time.monotonic() - began
            trainer.do(f"thread = threading.Thread(target=train, args=({took},)); thread.start()")
            rounds, least = 0, FEW if transport == "verbs" else ROUNDS
            while rounds < least or (torn == 0 and rounds < 60 * least):
                number = reader.pull(at_least=reader.version + 1, timeout=60).number
                rounds += 1
                assert {(int(a.min()), int(a.max())) for a in mine.values()} == {
                    (number % 251, number % 251)
                }
        trainer.do("stop.set(); thread.join()")
    assert torn > 0, "nothing was torn: the test has tested nothing"


@pytest.mark.parametrize("mode", ["copy", "in_place"])
@pytest.mark.parametrize("transport", HERE)
def test_a_version_is_kept_between_the_calls_of_a_pull(
    transport: str, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many newer ones are published meanwhile."""
    monkeypatch.setattr(source, "BATCH_BYTES", SIZE)
    params = {name: np.ones(SIZE, np.uint8) for name in "abc"}
    mine = {name: np.zeros(SIZE, np.uint8) for name in "abc"}
    made, server, port = publisher(params)
    take = Source._take
    calls: list[int] = []

    def taken(self: Source, *arguments: Any) -> None:
        take(self, *arguments)
        calls.append(made.version)
        for _ in range(3):
            for array in params.values():
                array += 1
            made.publish()

    with weights.Subscriber(channel(port, transport), mine, mode=mode) as subscriber:
        made.publish()
        monkeypatch.setattr(Source, "_take", taken)
        assert subscriber.pull(timeout=30).number == 1
        assert len(calls) == 3
        assert all((array == 1).all() for array in mine.values())
        assert not list(made._holds)  # nor is anything kept for it any more
    server.stop(None)


def test_few_versions_are_kept_for_readers_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = holds.Holds()
    versions = [Stored(number, {}, {}) for number in range(1, 7)]
    for ticket, version in enumerate(versions, 1):
        held.keep(ticket, version)
        held.keep(ticket + 10, version)
    assert sorted(held) == [3, 4, 5, 6, 13, 14, 15, 16]
    assert held.take(2) is None
    assert held.take(13) is versions[2]
    later = time.monotonic() + 61
    monkeypatch.setattr(holds, "monotonic", lambda: later)
    held.keep(20, versions[0])
    assert list(held) == [20]


def test_an_update_waits_for_a_reader_between_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_BYTES", SIZE)
    params = {name: np.ones(SIZE, np.uint8) for name in "ab"}
    mine = {name: np.zeros(SIZE, np.uint8) for name in "ab"}
    made, server, port = publisher(params, mode="in_place")
    take = Source._take
    threads: list[threading.Thread] = []

    def update() -> None:
        with made.update(timeout=threading.TIMEOUT_MAX):
            for array in params.values():
                array += 1

    def taken(self: Source, *arguments: Any) -> None:
        take(self, *arguments)
        if not threads:
            threads.append(threading.Thread(target=update, daemon=True))
            threads[0].start()
            eventually(lambda: made._updating)

    with weights.Subscriber(channel(port, "tcp"), mine) as subscriber:
        made.publish()
        monkeypatch.setattr(Source, "_take", taken)
        assert subscriber.pull(timeout=30).number == 1
        assert all((array == 1).all() for array in mine.values())
        threads[0].join(30)
        assert subscriber.pull(at_least=2, timeout=30).number == 2
        assert all((array == 2).all() for array in mine.values())
    server.stop(None)


def test_an_update_waits_for_readers() -> None:
    """At most its deadline; then they find out."""
    params = {"a": np.ones(SIZE, np.uint8)}
    made, server, _ = publisher(params, mode="in_place")
    made.publish()
    described = made._describe()
    parts = plan([described.layout], described.layout).parts
    agreement = wire.Agreement.of(described, parts, False)
    made._agree(agreement)
    request = wire.Pull(agreement.digest, 0, 0, 0, 0, False)
    _, found, ticket, newest = made._begin(request)
    assert found is not None
    assert newest == 1
    inside = threading.Event()

    def update() -> None:
        with made.update(timeout=threading.TIMEOUT_MAX):
            inside.set()

    thread = threading.Thread(target=update, daemon=True)
    thread.start()
    eventually(lambda: made._updating)
    assert made._begin(request)[1] is None  # nobody begins to read while it waits
    assert not inside.is_set()
    made._end(ticket)
    thread.join(10)
    assert inside.is_set()
    assert made._intact(ticket)
    stopped = made._begin(request)[2]
    with made.update(timeout=0):
        assert not made._intact(stopped)
    inside.clear()
    thread = threading.Thread(target=update, daemon=True)
    thread.start()  # that reader has cost its time already
    thread.join(10)
    assert inside.is_set()
    reading = made._begin(request)[2]
    thread = threading.Thread(target=update, daemon=True)
    inside.clear()
    thread.start()
    eventually(lambda: made._updating)
    assert not inside.is_set()
    made._end(reading)
    thread.join(10)
    assert inside.is_set()
    assert made._intact(reading)
    made._end(stopped)
    with pytest.raises(ZeroDivisionError), made.update():
        raise ZeroDivisionError
    assert made._state().newest == 0  # what it left is no version
    assert made.publish() == 6
    server.stop(None)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), TypeError()])
def test_an_update_that_ends_while_it_waits_for_readers_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    params = {"a": np.ones(SIZE, np.uint8)}
    made, server, port = publisher(params, mode="in_place")
    made.publish()

    def fails(*_: object) -> None:
        assert made._updating
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(made._changed, "wait_for", fails)
        with pytest.raises(type(failure)), made.update():
            pytest.fail("its body has begun")
    mine = {"a": np.zeros(SIZE, np.uint8)}
    with weights.Subscriber(channel(port, "tcp"), mine) as reader:
        assert reader.pull(timeout=10).number == 1
        with made.update():
            params["a"] += 1
        assert reader.pull(at_least=2, timeout=10).number == 2
    server.stop(None)


@pytest.mark.parametrize("mode", ["copy", "in_place"])
def test_a_version_is_a_whole_number(mode: Any) -> None:
    mine = {"a": np.zeros(SIZE, np.uint8)}
    made, server, port = publisher({"a": np.ones(SIZE, np.uint8)}, mode=mode)
    for wrong in (1.0, True, np.True_, "1"):
        with pytest.raises(TypeError, match="a version is a whole number"):
            made.publish(wrong)
    assert made.version == 0
    with weights.Subscriber(channel(port, "tcp"), mine) as reader:
        assert type(made.publish(np.int64(7))) is int
        assert reader.pull(np.int64(7), timeout=10).number == 7  # type: ignore[arg-type]
        made.publish()
        assert reader.pull(8, timeout=10).number == 8
        with pytest.raises(TypeError, match="a version is a whole number"):
            reader.pull(8.0, timeout=10)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="seconds"):
            reader.pull(timeout=float("nan"))
    server.stop(None)


def test_an_update_waits_so_many_seconds() -> None:
    made, server, _ = publisher({"a": np.ones(9)}, mode="in_place")
    made.publish()
    with pytest.raises(ValueError, match="seconds"), made.update(timeout=float("nan")):
        pytest.fail("its body has begun")
    assert made._state().newest == 1
    server.stop(None)


def test_a_laggard_never_stops_the_trainer() -> None:
    before = in_use()
    params = {"a": np.ones(SIZE, np.uint8)}
    made, server, port = publisher(params)
    made.publish()
    with other() as laggard:
        laggard.do(READER.format(port=port, transport="shm"))
        laggard.do("held = reader.view(); view = held.__enter__()")
        mine = {"a": np.zeros(SIZE, np.uint8)}
        with weights.Subscriber(channel(port, "shm"), mine) as reader:
            for number in range(2, 30):
                params["a"][...] = number
                assert made.publish() == number
                assert reader.pull(timeout=10).number == number
                assert (mine["a"] == number).all()
            assert laggard.do("int(view['a'].min()), int(view['a'].max())") == [1, 1]
            # Its own version, the two that can be pulled, and one that others have just let go of.
            assert in_use() - before <= 4 * (SIZE + 4096)
            # It is served what is newest.
            laggard.do("held.__exit__(None, None, None); del view")
            assert laggard.do("reader.pull().number") == 29
    server.stop(None)


def test_a_publisher_that_comes_again() -> None:
    """Under the same address, with the same parameters, and versions from the start."""
    with other() as first:
        first.do("made = publisher({'a': np.full(1 << 20, 3, np.uint8)})")
        first.do("made[0].publish(5)")
        port = first.do("made[2]")
        mine = {"a": np.zeros(SIZE, np.uint8)}
        with weights.Subscriber(f"127.0.0.1:{port}", mine) as reader:
            assert reader.pull(timeout=10).number == 5
            first.child.kill()
            with other() as second:
                second.do("from concurrent.futures import ThreadPoolExecutor")
                second.do("server = tensorwire.server(ThreadPoolExecutor(2))")
                second.do("params = {'a': np.full(1 << 20, 4, np.uint8)}")
                second.do("made = weights.Publisher(params, server)")
                second.do("made.publish(5)")
                second.do(f"server.add_insecure_port('127.0.0.1:{port}')")
                second.do("server.start()")

                def pulled() -> bool:
                    try:
                        return reader.pull(timeout=10).number == 5
                    except weights.PublisherLostError:
                        return False

                eventually(pulled)
                assert (mine["a"] == 4).all()


@pytest.mark.parametrize("mode", ["copy", "in_place"])
def test_a_publisher_that_comes_again_in_another_mode(mode: Any) -> None:
    """At the same server: readers hear of it by their next call, and need not be told."""
    params = {"a": np.ones(SIZE, np.uint8)}
    made, server, port = publisher(params)
    mine = {"a": np.zeros(SIZE, np.uint8)}
    with weights.Subscriber(channel(port, "tcp"), mine, mode=mode) as reader:
        for number, other_mode in enumerate(("copy", "in_place", "copy"), 1):
            made.close()
            made = weights.Publisher(params, server, mode=other_mode)  # type: ignore[arg-type]
            params["a"] += 1
            made.publish()
            assert reader.pull(timeout=10).number == 1
            assert (mine["a"] == number + 1).all()
            with reader.view(timeout=10) as view:
                assert (view["a"] == number + 1).all()
    made.close()
    server.stop(None)


@pytest.mark.parametrize("limit", ["MAX_AGREEMENTS", "MAX_AGREED_PARTS"])
def test_plans_that_were_forgotten_are_made_again(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(weights.publisher, limit, 1)
    made, server, port = publisher({"a": np.ones(10), "b": np.ones(10)})
    made.publish()
    mine = [{name: np.zeros(10)} for name in "ab"]
    readers = [weights.Subscriber(channel(port, "tcp"), each) for each in mine]
    for number in range(1, 4):
        for reader in readers:
            assert reader.pull(at_least=number, timeout=10).number == number
            assert len(made._agreements) == 1
        made.publish()
    assert all((array == 1).all() for each in mine for array in each.values())
    for reader in readers:
        reader.close()
    server.stop(None)


def test_subscribers_that_come_and_go_leave_nothing() -> None:
    made, server, port = publisher({"a": np.ones(SIZE, np.uint8)})
    made.publish()

    def come_and_go(times: int) -> None:
        with other() as reader:
            reader.do(
                "def come_and_go(number):\n"
                f"    link = channel({port}, 'shm', (1 << 30) + number)\n"
                "    params = {'a': np.zeros(1 << 20, np.uint8)}\n"
                "    found = weights.Subscriber(link, params).pull(timeout=20).nbytes\n"
                "    link.close()\n"
                "    return found"
            )
            for number in range(times):
                assert reader.do(f"come_and_go({number})") == SIZE

    def held() -> tuple[int, int, int]:
        return (
            len(os.listdir("/proc/self/fd")),
            sum(not t.name.startswith("ThreadPool") for t in threading.enumerate()),
            tensorwire.arena_stats()["used"],
        )

    come_and_go(2)
    eventually(lambda: made._store.quota.leased == 0)
    before = held()
    for _ in range(4):
        come_and_go(25)
    eventually(lambda: made._store.quota.leased == 0)
    try:
        eventually(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))
    except AssertionError:
        raise AssertionError(f"{before} became {held()}") from None
    assert len(made._agreements) == 1
    server.stop(None)


# Of JAX, where another test has imported it.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_forked_child_is_told_to_make_its_own(transport: str) -> None:
    params = {"w": np.zeros(1 << 16, np.float32)}
    trainer, server, port = publisher(params, transport=transport)
    mine = {"w": np.ones(1 << 16, np.float32)}
    with weights.Subscriber(channel(port, transport), mine) as subscriber:
        trainer.publish()
        subscriber.pull(timeout=30)

        def view() -> None:
            with subscriber.view(timeout=30):
                raise AssertionError("there is none")

        other_thread = object()  # whose pull is under way at the fork, and never ends in the child
        subscriber._turns.acquire(other_thread, 0.0)
        found = inherited(
            trainer.publish, lambda: subscriber.pull(timeout=30), view, subscriber.close
        )
        subscriber._turns.release(other_thread)
        assert found.pop() == ""
        assert {each.partition(":")[0] for each in found} == {"WeightsError"}, found
        assert all("before fork()" in each for each in found)
        params["w"] += 5  # the parent's go on
        trainer.publish()
        assert subscriber.pull(at_least=2, timeout=30).number == 2
        assert (mine["w"] == 5).all()
    trainer.close()
    server.stop(None)
