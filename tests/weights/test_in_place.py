# SPDX-License-Identifier: Apache-2.0
"""Subscribers whose parameters are received into."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import numpy as np
import pytest
from tests.pausing import paused
from tests.transports import HERE
from tests.weights.other import channel, other, publisher

from tensorwire import weights
from tensorwire.weights import Shard, planning, source
from tensorwire.weights.holds import Holds
from tensorwire.weights.source import Landed, Source
from tensorwire.weights.subscriber import Subscriber

SIZES = {"large": 3 << 20, "small": 100, "medium": 100_000, "none": 0}
TEXT = "parts of two versions"


def params(value: int) -> dict[str, Any]:
    """Wider elements go first on the wire."""
    made: dict[str, Any] = {name: np.full(size, value, np.uint8) for name, size in SIZES.items()}
    return {**made, "wide": np.full((64, 1024), value, np.float64)}


def all_are(held: dict[str, Any], value: int) -> bool:
    return all((array == value).all() for array in held.values())


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> list[Landed]:
    """What the pulls of this process have brought."""
    found: list[Landed] = []
    written = Subscriber._written

    def spied(self: Subscriber, number: int, brought: list[Landed]) -> Any:
        found.extend(brought)
        return written(self, number, brought)

    monkeypatch.setattr(Subscriber, "_written", spied)
    return found


@pytest.mark.parametrize("transport", [*HERE, "grpc"])
def test_large_tensors_come_straight_into_the_parameters(
    transport: str, landed: list[Landed]
) -> None:
    theirs, mine = params(1), params(0)
    made, server, port = publisher(theirs)
    made.publish(checksum=True)
    with weights.Subscriber(channel(port, transport), mine, mode="in_place") as reader:
        first = reader.pull(timeout=10)
        assert first.nbytes == sum(array.nbytes for array in mine.values())
        assert all_are(mine, 1)
        straight = {
            part.name
            for each in landed
            for part, array in zip(each.parts, each.arrays, strict=True)
            if np.shares_memory(array, mine[part.name])
        }
        assert straight == ({"large", "medium", "wide"} if transport == "tcp" else set())
        for name in ("small", "wide"):
            theirs[name][...] = 2
        made.publish()
        assert reader.pull(at_least=2, timeout=10).changed == ("small", "wide")
        assert (mine["wide"] == 2).all()
        assert (mine["small"] == 2).all()
        assert (mine["large"] == 1).all()
        with reader.view(timeout=10) as view:  # writes nothing, wherever it was received
            assert not np.shares_memory(view["large"], mine["large"])
    server.stop(None)


def test_a_pull_that_fails_in_the_middle_tells_it() -> None:
    with other() as trainer:
        trainer.do("params = {'a': np.ones(8 << 20, np.uint8), 'b': np.ones(9)}")
        trainer.do("made = publisher(params); made[0].publish()")
        mine: dict[str, Any] = {"a": np.zeros(8 << 20, np.uint8), "b": np.zeros(9)}
        with weights.Subscriber(
            channel(trainer.do("made[2]"), "tcp"), mine, mode="in_place"
        ) as reader:
            assert reader.pull(timeout=20).number == 1
            trainer.do("params['a'] += 1; made[0].publish()")
            room = Subscriber._room

            with ExitStack() as stopped, pytest.MonkeyPatch.context() as patch:

                def stopping(self: Subscriber, part: planning.Part) -> Any:
                    stopped.enter_context(paused(trainer.child.pid))
                    return room(self, part)

                patch.setattr(Subscriber, "_room", stopping)
                with pytest.raises(weights.PullTimeoutError, match=TEXT):
                    reader.pull(at_least=2, timeout=1)
                assert reader.version == 0
                mine["a"][:] = 5
            trainer.do("params['a'] += 1")  # what it still sends is written nowhere
            assert (mine["a"] == 5).all()
            again = reader.pull(timeout=20)
            assert (again.number, again.changed) == (2, ("a", "b"))
            assert (mine["a"] == 2).all()
            with pytest.raises(weights.PullTimeoutError, match="no version from 9 on") as waited:
                reader.pull(at_least=9, timeout=0.05)
            assert TEXT not in str(waited.value)
            assert reader.version == 2


def test_a_publisher_that_dies_while_the_parameters_are_written() -> None:
    with other() as trainer:
        trainer.do("params = {'a': np.ones(32 << 20, np.uint8)}")
        trainer.do("made = publisher(params); made[0].publish()")
        mine = {"a": np.zeros(32 << 20, np.uint8)}
        with weights.Subscriber(
            channel(trainer.do("made[2]"), "tcp"), mine, mode="in_place"
        ) as reader:
            reader.pull(timeout=20)
            trainer.do("params['a'] += 1; made[0].publish()")
            killing = threading.Thread(target=trainer.child.kill)
            room = Subscriber._room

            def killed(self: Subscriber, part: planning.Part) -> Any:
                killing.start()
                return room(self, part)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Subscriber, "_room", killed)
                told = ""
                try:
                    reader.pull(timeout=20)
                except weights.PublisherLostError as error:
                    told = str(error)
                killing.join()
            if told:
                assert TEXT in told
                assert reader.version == 0
            else:
                assert reader.version == 2
                assert (mine["a"] == 2).all()


@pytest.mark.parametrize(
    "failure",
    [weights.PublisherLostError(grpc.StatusCode.UNAVAILABLE, "it is gone"), KeyboardInterrupt()],
    ids=["lost", "interrupt"],
)
def test_after_an_error_no_other_publisher_writes(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """Of two, one is lost while the other one's call receives into the parameters: the error comes
    once that has ended."""
    ends = [publisher({name: np.ones(9)}) for name in "ab"]
    for made, _, _ in ends:
        made.publish()
    mine = {name: np.zeros(9) for name in "ab"}
    receiving, raised, ended = (threading.Event() for _ in range(3))

    def pull(
        self: Source, at_least: int, exactly: int, have: int, left: Any, room: Any, writable: bool
    ) -> Landed:
        assert room is not None
        if "a" in self.describe(left).layout:
            assert receiving.wait(10)
            raise failure
        receiving.set()
        with suppress(weights.PullTimeoutError):  # it is told that another publisher's call failed
            while not raised.wait(0.001):
                left()
        mine["b"][:] = 7
        ended.set()
        return Landed(1)

    with weights.Subscriber(
        [channel(port, "tcp") for _, _, port in ends], mine, mode="in_place"
    ) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(Source, "pull", pull)
            with pytest.raises(type(failure)):
                reader.pull(timeout=20)
            over = ended.is_set()
            raised.set()
        assert over, "the parameters are written after the error"
        assert reader.pull(timeout=20).number == 1
        assert all_are(mine, 1)
    for _, server, _ in ends:
        server.stop(None)


def test_what_was_interrupted_twice_is_waited_for() -> None:
    ends = [publisher({name: np.ones(9)}) for name in "ab"]
    for made, _, _ in ends:
        made.publish()
    mine = {name: np.zeros(9) for name in "ab"}
    under_way: Future[Landed] = Future()
    with weights.Subscriber(
        [channel(port, "tcp") for _, _, port in ends], mine, mode="in_place"
    ) as reader:
        reader._begun.append(under_way)
        with pytest.raises(weights.PullTimeoutError):
            reader.pull(timeout=0.05)
        assert not any(array.any() for array in mine.values())
        under_way.cancel()
        assert reader.pull(timeout=20).number == 1
        assert all_are(mine, 1)
    for _, server, _ in ends:
        server.stop(None)


def test_a_checksum_that_differs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine = params(1), params(0)
    made, server, port = publisher(theirs)
    made.publish(checksum=True)
    with weights.Subscriber(channel(port, "tcp"), mine, mode="in_place") as reader:
        with monkeypatch.context() as patch:
            patch.setattr(source, "crc", lambda array: 0)
            with pytest.raises(weights.ChecksumError, match=TEXT):
                reader.pull(timeout=10)
        assert reader.version == 0
        assert reader.pull(timeout=10).number == 1
        assert all_are(mine, 1)
    server.stop(None)


@pytest.mark.parametrize("slow", [False, True])
def test_a_version_that_goes_before_it_is_received(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """It is kept for its reader, but for one that takes minutes: that has the newest then."""
    theirs, mine = params(1), params(0)
    made, server, port = publisher(theirs, old_versions=0)
    made.publish()
    room = Subscriber._room

    def overtaken(self: Subscriber, part: planning.Part) -> Any:
        if made.version < 3:
            theirs["medium"] += 1
            made.publish()
        return room(self, part)

    if slow:
        monkeypatch.setattr(Holds, "keep", lambda *_: None)
    monkeypatch.setattr(Subscriber, "_room", overtaken)
    with weights.Subscriber(channel(port, "tcp"), mine, mode="in_place") as reader:
        number = 3 if slow else 1
        assert reader.pull(timeout=10).number == number
        assert (mine["medium"] == number).all()
        assert (mine["large"] == 1).all()
    server.stop(None)


def test_parts_that_do_not_lie_together_are_copied(landed: list[Landed]) -> None:
    whole = np.arange(256 * 256, dtype=np.float32).reshape(256, 256)
    ends = []
    for start in (0, 128):  # columns
        box = Shard((0, start), (256, 128), (256, 256), "float32")
        columns = np.ascontiguousarray(whole[:, start : start + 128])
        ends.append(publisher({"w": columns}, shards={"w": box}))
        ends[-1][0].publish()
    mine = {"w": np.zeros((128, 256), np.float32)}
    wanted = Shard((64, 0), (128, 256), (256, 256), "float32")
    channels = [channel(port, "tcp") for _, _, port in ends]
    with weights.Subscriber(channels, mine, mode="in_place", shards={"w": wanted}) as reader:
        reader.pull(timeout=10)
    np.testing.assert_array_equal(mine["w"], whole[64:192])
    assert not any(np.shares_memory(a, mine["w"]) for each in landed for a in each.arrays)
    for _, server, _ in ends:
        server.stop(None)


def test_modes_are_named() -> None:
    with pytest.raises(ValueError, match="mode is 'copy' or 'in_place', not 'swap'"):
        weights.Subscriber("127.0.0.1:1", {"a": np.zeros(1)}, mode="swap")  # type: ignore[arg-type]
