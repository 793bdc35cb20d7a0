# SPDX-License-Identifier: Apache-2.0
"""Versions from a publisher to subscribers in other processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from tests.transports import HERE
from tests.weights.other import Other, channel, eventually, other, publisher

import tensorwire
from tensorwire import arrays, service, weights
from tensorwire.weights import Shard, wire
from tensorwire.weights.source import Source


def tree() -> dict[str, Any]:
    return {
        "embed": np.zeros((64, 128), np.float32),
        "norm": np.zeros(7, np.float64),
        "scale": np.zeros((), np.float16),
        "none": np.zeros((0, 4), np.int8),
    }


def filled(number: int) -> dict[str, Any]:
    made = tree()
    for array in made.values():
        array[...] = number
    return made


def holds(params: dict[str, Any], number: int) -> bool:
    return all((array == number).all() for array in params.values())


@pytest.fixture(scope="module")
def trainer() -> Iterator[Other]:
    """A process with a publisher of each kind, by its name and as a function that writes."""
    with other() as process:
        process.do(
            "def made(mode):\n"
            "    params = {'embed': np.zeros((64, 128), np.float32), 'norm': np.zeros(7),"
            " 'scale': np.zeros((), np.float16), 'none': np.zeros((0, 4), np.int8)}\n"
            "    return (params, *publisher(params, mode=mode))\n"
        )
        process.do("copy, place = made('copy'), made('in_place')")
        process.do(
            "def publish(number, *names, checksum=True):\n"
            "    for name in names or copy[0]:\n"
            "        copy[0][name][...] = number\n"
            "    with place[1].update(checksum=checksum):\n"
            "        for name in names or copy[0]:\n"
            "            place[0][name][...] = number\n"
            "    return copy[1].publish(checksum=checksum)\n"
        )
        process.do("publish(1)")
        yield process


def subscriber(trainer: Other, mode: str, transport: str, params: Any) -> weights.Subscriber:
    port = trainer.do({"copy": "copy[3]", "in_place": "place[3]"}[mode])
    return weights.Subscriber(channel(port, transport), params)


@pytest.mark.parametrize("mode", ["copy", "in_place"])
@pytest.mark.parametrize("transport", HERE)
def test_a_pull_fills_what_there_is(trainer: Other, mode: str, transport: str) -> None:
    params = tree()
    addresses = [array.ctypes.data for array in params.values()]
    with subscriber(trainer, mode, transport, params) as reader:
        assert reader.version == 0
        number = trainer.do("publish(11)")
        found = reader.pull(timeout=10)
        assert found == weights.Version(number, ("embed", "norm", "scale"), 64 * 128 * 4 + 58)
        assert holds(params, 11)
        assert reader.version == number
        assert reader.params is params
        assert [array.ctypes.data for array in params.values()] == addresses
        # What has not changed does not move; in place nobody knows what has.
        number = trainer.do("publish(12, 'norm')")
        found = reader.pull(at_least=number, timeout=10)
        moved = ("norm",) if mode == "copy" else ("embed", "norm", "scale")
        assert (found.number, found.changed) == (number, moved)
        assert (params["norm"] == 12).all()
        assert (params["embed"] == 11).all()
        if mode == "copy":
            assert reader.pull(timeout=10) == weights.Version(number, (), 0)


@pytest.mark.parametrize("group_bytes", [1, 1024, 64 * 128 * 4 + 1])
def test_parameters_are_filled_in_groups(
    trainer: Other, monkeypatch: pytest.MonkeyPatch, group_bytes: int
) -> None:
    monkeypatch.setattr("tensorwire.weights.subscriber._GROUP_BYTES", group_bytes)
    params = tree()
    with subscriber(trainer, "copy", "shm", params) as reader:
        number = trainer.do("publish(13)")
        found = reader.pull(at_least=number, timeout=10)
        assert found == weights.Version(number, ("embed", "norm", "scale"), 64 * 128 * 4 + 58)
        assert holds(params, 13)


@pytest.mark.parametrize("transport", HERE)
def test_a_view_has_the_version_where_it_lies(trainer: Other, transport: str) -> None:
    params = tree()
    with subscriber(trainer, "copy", transport, params) as reader:
        number = trainer.do("publish(21)")
        with reader.view(at_least=number, timeout=10) as view:
            assert view.version == number
            assert sorted(view) == sorted(params)
            assert len(view) == 4
            assert holds(dict(view), 21)
            assert not view["embed"].flags.writeable
            trainer.do("publish(22)")
            trainer.do("publish(23)")
            assert (view["embed"] == 21).all()
            if transport == "shm":
                # Its tensors lie together, in whole pages.
                assert trainer.do("copy[1]._store.quota.leased") == 64 * 128 * 4 + 4096
        assert holds(params, 0)
        assert dict(view) == {}
        if transport == "shm":
            eventually(lambda: trainer.do("copy[1]._store.quota.leased") == 0)


def test_a_pull_waits_for_its_version(trainer: Other) -> None:
    params = tree()
    with subscriber(trainer, "copy", "shm", params) as reader:
        number = trainer.do("publish(31)")
        with reader.view(timeout=10) as view:  # it is connected now
            assert view.version == number
        with pytest.raises(weights.PullTimeoutError, match=f"from {number + 1} on .* {number}"):
            reader.pull(at_least=number + 1, timeout=0.05)
        assert holds(params, 0)
        assert reader.version == 0

        async def both() -> weights.Version:
            pulling = asyncio.create_task(reader.pull_async(at_least=number + 1, timeout=10))
            await asyncio.to_thread(trainer.do, "publish(32)")
            return await pulling

        assert asyncio.run(both()).number == number + 1
        assert holds(params, 32)


def test_a_pull_that_is_cancelled_writes_nothing(trainer: Other) -> None:
    params = tree()
    with subscriber(trainer, "copy", "shm", params) as reader:
        number = trainer.do("publish(41)")

        async def cancelled() -> None:
            pulling = asyncio.create_task(reader.pull_async(at_least=number + 1))
            await asyncio.sleep(0)
            pulling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pulling

        asyncio.run(cancelled())
        assert holds(params, 0)
        assert reader.pull(timeout=10).number == number


def test_a_pull_that_is_cancelled_while_it_writes_does_so_to_its_end(
    trainer: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the coroutine has ended nobody writes any more, also after a second cancellation."""
    params = tree()
    writes, may_write = threading.Event(), threading.Event()
    copy_all = arrays.copy_all

    def held_up(pairs: Any) -> None:
        writes.set()
        assert may_write.wait(10)
        copy_all(pairs)

    with subscriber(trainer, "copy", "shm", params) as reader:
        number = trainer.do("publish(42)")
        monkeypatch.setattr(arrays, "copy_all", held_up)

        async def cancelled() -> None:
            pulling = asyncio.create_task(reader.pull_async(at_least=number))
            await asyncio.to_thread(writes.wait, 10)
            for _ in range(2):
                pulling.cancel()
                await asyncio.sleep(0)
            assert not pulling.done()
            may_write.set()
            with pytest.raises(asyncio.CancelledError):
                await pulling
            assert reader.version == number
            assert holds(params, 42)

        asyncio.run(cancelled())


def test_a_view_in_a_coroutine(trainer: Other) -> None:
    with subscriber(trainer, "copy", "shm", tree()) as reader:
        number = trainer.do("publish(45)")

        async def program() -> None:
            async with reader.view_async(at_least=number, timeout=10) as view:
                assert view.version == number
                assert holds(dict(view), 45)
            assert not view
            with pytest.raises(ZeroDivisionError):
                async with reader.view_async(timeout=10) as view:
                    raise ZeroDivisionError
            assert not view
            with pytest.raises(weights.PullTimeoutError):
                async with reader.view_async(at_least=number + 1, timeout=0.05):
                    pass
            waiting = asyncio.ensure_future(reader.view_async(at_least=number + 1).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(program())  # no thread waits on
        assert reader.pull(timeout=10).number == number


def test_a_checksum_tells(trainer: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    params = tree()
    with subscriber(trainer, "copy", "tcp", params) as reader:
        trainer.do("publish(51)")
        decode = wire.decode

        def wrong(data: Any, kind: Any) -> Any:
            found = decode(data, kind)
            if kind is wire.Pulled:
                sums = [found.checksums[0] ^ 1, *found.checksums[1:]]
                found = msgspec.structs.replace(found, checksums=sums)
            return found

        monkeypatch.setattr(wire, "decode", wrong)
        with pytest.raises(weights.ChecksumError, match="embed of version"):
            reader.pull(timeout=10)
        assert holds(params, 0)
        monkeypatch.undo()
        reader.pull(timeout=10)
        assert holds(params, 51)


def test_stock_grpc_brings_them_too(trainer: Other) -> None:
    params = tree()
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{trainer.do('copy[3]')}", options) as stock:
        reader = weights.Subscriber(stock, params)
        trainer.do("publish(61)")
        reader.pull(timeout=10)
        assert holds(params, 61)
        reader.close()


def test_several_publishers_of_shards(trainer: Other) -> None:
    """Two publishers hold rows, three subscribers columns; every byte moves once."""
    whole = np.arange(6 * 9, dtype=np.float32).reshape(6, 9)
    halves = [whole[:2].copy(), whole[2:].copy()]
    boxes = [Shard((0, 0), (2, 9), (6, 9), "float32"), Shard((2, 0), (4, 9), (6, 9), "float32")]
    with other() as second:
        ports = []
        for process, start, stop in ((trainer, 0, 2), (second, 2, 6)):
            process.do(
                f"rows = np.arange(54, dtype=np.float32).reshape(6, 9)[{start}:{stop}].copy();"
                f"box = weights.Shard(({start}, 0), ({stop - start}, 9), (6, 9), 'float32');"
                "part = publisher({'w': rows}, shards={'w': box})"
            )
            process.do("part[0].publish(checksum=True)")
            ports.append(process.do("part[2]"))
        assert [box.nbytes for box in boxes] == [half.nbytes for half in halves]
        for transport in HERE:
            moved = 0
            for turn in range(3):
                mine = np.zeros((6, 3), np.float32)
                box = Shard((0, 3 * turn), (6, 3), (6, 9), "float32")
                targets = [channel(port, transport) for port in ports]
                with weights.Subscriber(targets, {"w": mine}, shards={"w": box}) as reader:
                    moved += reader.pull(timeout=10).nbytes
                    assert (mine == whole[:, 3 * turn : 3 * turn + 3]).all()
                    with pytest.raises(weights.PlanError, match="takes a copy"), reader.view():
                        pass
            assert moved == whole.nbytes
        # Rows of one publisher alone can be viewed.
        mine = np.zeros((1, 9), np.float32)
        box = Shard((1, 0), (1, 9), (6, 9), "float32")
        reader = weights.Subscriber(channel(ports[0], "shm"), {"w": mine}, shards={"w": box})
        with reader.view(timeout=10) as view:
            assert (view["w"] == whole[1:2]).all()
        # All of them take the newest version that each publisher has.
        trainer.do("rows.fill(5); part[0].publish()")
        both = weights.Subscriber([channel(port, "shm") for port in ports], {"w": whole.copy()})
        assert both.pull(timeout=10).number == 1
        assert (both.params["w"] == whole).all()
        second.do("rows.fill(5); part[0].publish()")
        assert both.pull(timeout=10).number == 2
        assert (both.params["w"] == 5).all()
        with pytest.raises(weights.PullTimeoutError, match="the newest is 2"):
            both.pull(at_least=3, timeout=0.05)
        both.close()
        reader.close()


def test_no_byte_too_many_travels() -> None:
    """Four publishers have rows, and the subscriber half of the columns: the links carry that half,
    and a little about it."""
    whole = np.arange(256 * 256, dtype=np.float32).reshape(256, 256)
    made = []
    for start in range(0, 256, 64):
        box = Shard((start, 0), (64, 256), whole.shape, "float32")
        made.append(publisher({"w": whole[start : start + 64].copy()}, shards={"w": box}))
        made[-1][0].publish()
    links = [channel(port, "tcp") for _, _, port in made]
    half = np.zeros((256, 128), np.float32)
    box = Shard((0, 128), half.shape, whole.shape, "float32")
    with weights.Subscriber(links, {"w": half}, shards={"w": box}) as reader:
        assert reader.pull(timeout=10).nbytes == half.nbytes
    counters: list[Any] = [link.stats()["link"] for link in links]
    received = sum(each["bytes_received"] for each in counters)
    assert half.nbytes < received < half.nbytes + 4096
    assert (half == whole[:, 128:]).all()
    for link, (_, server, _) in zip(links, made, strict=True):
        link.close()
        server.stop(None)


def test_a_relay_publishes_what_it_has_pulled(trainer: Other) -> None:
    relay = tensorwire.server(ThreadPoolExecutor(2))
    near, far = tree(), tree()
    port = trainer.do("copy[3]")
    with weights.Subscriber(channel(port, "tcp"), near, relay=relay) as first:
        relayed = relay.add_insecure_port("127.0.0.1:0")
        relay.start()
        with weights.Subscriber(channel(relayed, "shm"), far) as second:
            with pytest.raises(weights.PullTimeoutError):
                second.pull(timeout=0.05)
            number = trainer.do("publish(71)")
            assert first.pull(timeout=10).number == number
            assert second.pull(timeout=10).number == number
            assert holds(far, 71)
            number = trainer.do("publish(72, 'norm')")
            assert first.pull(timeout=10).changed == ("norm",)
            assert second.pull(timeout=10) == weights.Version(number, ("norm",), 56)
    relay.stop(None)


def test_a_pull_that_is_closed_before_it_is_relayed_has_filled_the_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, mine = {"a": np.ones(3)}, {"a": np.zeros(3)}
    made, server, port = publisher(ours)
    made.publish()
    relay = tensorwire.server(ThreadPoolExecutor(1))
    reader = weights.Subscriber(f"127.0.0.1:{port}", mine, relay=relay)
    written = reader._written

    def closed(*arguments: Any) -> weights.Version:
        found = written(*arguments)
        reader.close()
        return found

    monkeypatch.setattr(reader, "_written", closed)
    assert reader.pull(timeout=10).number == 1
    assert mine["a"].tolist() == [1, 1, 1]
    server.stop(None)


def test_what_cannot_be_published_or_filled() -> None:
    server = tensorwire.server(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are no parameters"):
        weights.Publisher({}, server)
    with pytest.raises(TypeError, match=r"tree\['a'\] is a str"):
        weights.Publisher({"a": "text"}, server)
    with pytest.raises(ValueError, match="'copy' or 'in_place'"):
        weights.Publisher(tree(), server, mode="swap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a shard of 'b', which is no parameter"):
        weights.Publisher({"a": np.zeros(3)}, server, shards={"b": Shard.whole((3,), "float64")})
    with pytest.raises(ValueError, match=r"a shard of float32\[3\] for an array of float64\[3\]"):
        weights.Publisher({"a": np.zeros(3)}, server, shards={"a": Shard.whole((3,), "float32")})
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="is read-only"):
        weights.Subscriber("127.0.0.1:1", {"a": frozen})
    with pytest.raises(ValueError, match="no targets"):
        weights.Subscriber([], {"a": np.zeros(3)})


def test_a_name_is_one_publication_of_a_server() -> None:
    ours, theirs = {"a": np.ones(3)}, {"a": np.full(3, 2.0)}
    made, server, port = publisher(ours)
    made.publish()
    for name in ("weights", "two words"):
        with pytest.raises(ValueError, match=r"already|dotted"):
            weights.Publisher(theirs, server, name=name)
    with pytest.raises(ValueError, match="already"):
        weights.Subscriber("127.0.0.1:1", {"a": np.zeros(3)}, relay=server)
    mine = {"a": np.zeros(3)}
    with weights.Subscriber(f"127.0.0.1:{port}", mine) as reader:
        assert reader.pull(timeout=10).number == 1
        made.close()
        with weights.Publisher(theirs, server) as again:
            again.publish(5)
            assert reader.pull(timeout=10).number == 5
            assert (mine["a"] == 2).all()
    server.stop(None)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[weights.Subscriber, Any]]:
    """A subscriber by which one thread waits for a version that never comes, and the result."""
    made, server, port = publisher({"a": np.ones(3)})
    made.publish()
    asked = threading.Event()
    pull = Source.pull

    def spied(self: Source, *arguments: Any) -> Any:
        asked.set()
        return pull(self, *arguments)

    monkeypatch.setattr(Source, "pull", spied)
    with (
        channel(port, "tcp") as link,
        ThreadPoolExecutor(1) as pool,
        weights.Subscriber(link, {"a": np.zeros(3)}) as reader,
    ):
        result = pool.submit(reader.pull, at_least=9)
        assert asked.wait(10)
        yield reader, result
    server.stop(None)


def test_a_pull_behind_another_one_ends_in_time(waiting: Any) -> None:
    reader, _ = waiting
    with pytest.raises(weights.PullTimeoutError, match="another pull"):
        reader.pull(timeout=0.01)
    with pytest.raises(weights.PullTimeoutError, match="another pull"), reader.view(timeout=0.01):
        pass


def test_a_pull_ends_with_its_subscriber(waiting: Any) -> None:
    reader, result = waiting
    reader.close()
    with pytest.raises(weights.WeightsError, match="the subscriber was closed"):
        result.result(10)
    with pytest.raises(weights.WeightsError, match="the subscriber was closed"):
        reader.pull()


def test_versions_only_rise() -> None:
    made, server, _ = publisher({"a": np.zeros(3)})
    assert made.publish(7) == 7
    with pytest.raises(ValueError, match="version 7 does not come after 7"):
        made.publish(7)
    with pytest.raises(ValueError, match="other names, shapes or dtypes"):
        made.publish(params={"a": np.zeros(4)})
    with pytest.raises(RuntimeError, match="has no update"), made.update():
        pass
    assert made.publish(params={"a": np.ones(3)}) == 8
    with made:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        made.publish()
    server.stop(None)


def test_what_does_not_fit_is_told_before_anything_moves(trainer: Other) -> None:
    trainer.do("publish(81)")
    for params, why in (
        ({"embed": np.zeros((64, 127), np.float32)}, r"embed: published as float32\[64, 128\]"),
        ({"head": np.zeros(3)}, "head: no publisher has it"),
    ):
        reader = subscriber(trainer, "copy", "shm", params)
        with pytest.raises(weights.PlanError, match=why):
            reader.pull(timeout=10)
        reader.close()
    port = trainer.do("copy[3]")
    with (
        weights.Subscriber(channel(port, "shm"), tree(), name="absent") as reader,
        pytest.raises(weights.WeightsError, match=r"no publication 'absent' .* name='absent' uses"),
    ):
        reader.pull(timeout=10)


@pytest.mark.parametrize("change", ["digest", "layout", "outside", "piece"])
def test_a_plan_that_differs_is_refused(
    trainer: Other, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    trainer.do("publish(91)")
    params = tree()
    made = wire.Agreement.of

    def wrong(described: Any, parts: Any, rows: bool) -> Any:
        if change == "layout":
            layout = {**described.layout, "more": [Shard.whole((1,), "int8")]}
            described = wire.Description(described.instance, described.in_place, layout)
        if change == "outside":
            parts = [part._replace(start=tuple(at + 1 for at in part.start)) for part in parts]
        if change == "piece":
            parts = [part._replace(piece=1) for part in parts]
        found = made(described, parts, rows)
        if change == "digest":
            found = wire.Agreement(
                found.instance, found.layout, found.parts[:1], found.rows, found.digest
            )
        return found

    monkeypatch.setattr(wire.Agreement, "of", wrong)
    with (
        subscriber(trainer, "copy", "shm", params) as reader,
        pytest.raises(weights.DisagreementError, match="the plan is refused"),
    ):
        reader.pull(timeout=10)
    assert holds(params, 0)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x01", b"\x94\xc4\x00\xa1a\x01\x02"])
def test_requests_that_are_none(trainer: Other, data: bytes) -> None:
    with channel(trainer.do("copy[3]"), "shm") as link:
        client: Any = service.client(wire.named("weights"), link)
        for call in (client.agree, client.pull):
            with pytest.raises(grpc.RpcError) as found:
                call(np.frombuffer(data, np.uint8))
            assert found.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError, match="not a str"):
            client.pull("text")


def test_replies_that_are_nonsense(trainer: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.do("publish(95)")
    asked = Source._asked
    params = tree()
    with subscriber(trainer, "copy", "tcp", params) as reader:
        for wrong, why in (
            (lambda head, arrays: None, "a reply that is none"),
            (lambda head, arrays: (np.zeros(3, np.uint8), arrays), "malformed Pulled"),
            (lambda head, arrays: (head, arrays[1:]), "2 arrays for 3 parts"),
            (lambda head, arrays: (head, [arrays[0].T, *arrays[1:]]), "that is none of"),
            (lambda head, arrays: (head, [arrays[0].view("u4"), *arrays[1:]]), "as uint32"),
        ):
            monkeypatch.setattr(
                Source,
                "_asked",
                lambda self, *given, wrong=wrong: wrong(*asked(self, *given)),
            )
            with pytest.raises(weights.WeightsError, match=why):
                reader.pull(timeout=10)
            assert holds(params, 0)


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([], "arrays for 3 parts"),
        ([(9, 0)] * 3, "no bytes 9"),
        ([(-1, 0)] * 3, "no bytes -1"),
        ([(0, 1 << 40)] * 3, "without those from"),
        ([(0, -64)] * 3, "without those from -64"),
    ],
)
def test_rows_that_are_nowhere(
    trainer: Other, monkeypatch: pytest.MonkeyPatch, places: Any, why: str
) -> None:
    trainer.do("publish(97)")
    decode = wire.decode

    def wrong(data: Any, kind: Any) -> Any:
        found = decode(data, kind)
        return msgspec.structs.replace(found, places=places) if kind is wire.Pulled else found

    monkeypatch.setattr(wire, "decode", wrong)
    params = tree()
    with (
        subscriber(trainer, "copy", "shm", params) as reader,
        pytest.raises(weights.WeightsError, match=why),
    ):
        reader.pull(timeout=10)
    assert holds(params, 0)
