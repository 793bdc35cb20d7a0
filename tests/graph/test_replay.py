# SPDX-License-Identifier: Apache-2.0
"""Programs in stages, each in a process of its own: what they compute, and how they end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

if find_spec("torch") is None:
    pytest.skip("there is no PyTorch", allow_module_level=True)

from tests.forked import inherited
from tests.graph.in_threads import replayed
from tests.graph.machines import running
from tests.transports import HERE

from tensorwire import graph, rpc
from tensorwire.collective import FileStore
from tensorwire.graph import links
from tensorwire.launch import free_ports

TORCH = "tests.graph.torch_machine"
NAMES = ("a", "b", "c")

pytestmark = pytest.mark.timeout(120)  # the first one has the fork server import PyTorch


@pytest.mark.parametrize("transport", HERE)
def test_results_have_the_bits_of_one_process(tmp_path: Path, transport: str) -> None:
    """Placed and described, with results that are views of what was received and are kept."""
    runs = [
        ("placed", transport, False, [4] * 12),
        ("described", transport, True, [4, 300, 2, 9, 4]),
    ]
    with running(TORCH, NAMES, tmp_path, "steps", runs=runs) as machines:
        found = {name: machine.said() for name, machine in machines.items()}
    for name, _, _, batches in runs:
        for machine in NAMES:
            assert found[machine][name]["good"]
            assert found[machine][name]["steps"] == len(batches)
        outputs = [found[machine][name]["outputs"] for machine in NAMES]
        assert sum(map(len, outputs)) == 2
        assert outputs[0] == []


def test_a_stage_that_is_killed_ends_all(tmp_path: Path) -> None:
    with running(TORCH, NAMES, tmp_path, "endless") as machines:
        for name in NAMES:
            assert machines[name].said() == {"running": True}
        machines["b"].kill()
        for name in ("a", "c"):
            said = machines[name].said()
            assert (said["error"], said["machine"]) == ("StageLostError", "b"), said


def test_a_machine_that_fails_says_why(tmp_path: Path) -> None:
    with running(TORCH, NAMES, tmp_path, "fails") as machines:
        assert machines["b"].said()["error"] == "ArithmeticError"
        for name in ("a", "c"):
            said = machines[name].said()
            assert said["error"] == "StageLostError"
            assert "ArithmeticError: the loss is no number" in said["text"]


def test_a_shape_that_was_not_planned(tmp_path: Path) -> None:
    with running(TORCH, NAMES, tmp_path, "another shape") as machines:
        said = machines["a"].said()
        assert said["error"] == "PlanError"
        assert "is not as planned: expected a tensor any dtype [4, 64], got" in said["text"]
        for name in ("b", "c"):
            said = machines[name].said()
            assert (said["error"], said["machine"]) == ("StageLostError", "a"), said
            assert "PlanError" in said["text"]


def test_machines_that_end_after_different_steps(tmp_path: Path) -> None:
    with running(TORCH, NAMES, tmp_path, "stops early") as machines:
        for name in NAMES:
            said = machines[name].said()
            assert said["error"] in ("ReplayError", "StageLostError"), said
            text = said["text"]
            early = "a is in step 2" in text  # it heard of another one's end before it sent
            assert early or "a has done 2 steps" in text or "and a 2" in text


@pytest.mark.parametrize(("of_a", "of_b"), [(2, 5), (5, 2)])
def test_who_takes_from_a_machine_that_has_ended_need_not_wait(
    tmp_path: Path, of_a: int, of_b: int
) -> None:
    """Nor does it blame another one, as it would do after a wait."""
    found = replayed(
        small(),
        tmp_path,
        [{"x": np.ones(2, np.float32)}] * 5,
        steps={"a": of_a, "b": of_b},
    )
    assert all(isinstance(each, graph.ReplayError) for each in found.values()), found
    said = {name: str(error) for name, error in found.items()}
    if of_a < of_b:
        why = "machine a has ended after 2 steps, and b is in step 3: all machines need the same"
        assert why in said["b"]
        assert why in said["a"]
    else:
        assert "5 steps" in said["b"] or "a is in step" in said["b"]


def test_a_machine_that_is_gone_when_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small()
    digest = graph.plan(made.edges()).digest
    machine = _Machine("a", tmp_path)
    store = FileStore(tmp_path)
    heard = threading.Event()
    say = links.Links._say

    def when_it_is_gone(peer: rpc.Peer, what: msgspec.Struct, timeout: float) -> None:
        if threading.current_thread() is machine:
            heard.set()
            assert peer.wait_gone(30)
        say(peer, what, timeout)

    monkeypatch.setattr(links.Links, "_say", staticmethod(when_it_is_gone))
    machine.start()
    target, _, token = msgspec.msgpack.decode(store.get("graph/0", 20))
    store.set("graph/1", msgspec.msgpack.encode(["127.0.0.1:1", digest, bytes(16)]))
    with rpc.insecure_channel(target, transport="tcp") as channel:
        peer = channel.peer()
        assert peer is not None
        peer.send(0, msgspec.msgpack.encode([1, "b", token]), 20)
        assert heard.wait(30)
        peer.close()
    machine.join(60)
    assert isinstance(machine.found, graph.StageLostError), machine.found
    assert machine.found.machine == "b"


def test_plans_that_differ_are_refused(tmp_path: Path) -> None:
    other = {"more": {"depth": 3}}
    with running(TORCH, NAMES, tmp_path, "meets", c=other) as machines:
        said = [machines[name].said() for name in NAMES]
    assert {each["error"] for each in said} == {"PlanError"}
    assert any("both need the same program, depth and coalesce" in each["text"] for each in said)
    assert "met" not in {key for each in said for key in each}


def test_a_machine_that_does_not_come(tmp_path: Path) -> None:
    with running(TORCH, NAMES[:2], tmp_path, "meets", more={"timeout": 0.5}) as machines:
        for name in NAMES[:2]:
            said = machines[name].said()
            assert said["error"] in ("StageTimeoutError", "StageLostError"), said
        assert any("machine" in said["text"] for said in [said])


def test_a_store_that_was_used_before(tmp_path: Path) -> None:
    """Of a machine that is gone it has an address still."""
    digest = graph.plan(small().edges()).digest
    address = [f"127.0.0.1:{free_ports(1)[0]}", digest, bytes(16)]
    FileStore(tmp_path).set("graph/0", msgspec.msgpack.encode(address))
    machine = _Machine("b", tmp_path, timeout=1)
    machine.start()
    machine.join(60)
    assert isinstance(machine.found, graph.StageTimeoutError)
    assert "the store is of an earlier replay: use a fresh one for each" in str(machine.found)


@pytest.mark.skipif(find_spec("jax") is None, reason="there is no JAX")
def test_a_training_step_of_jax(tmp_path: Path) -> None:
    names = ("first", "last")
    with running("tests.graph.jax_machine", names, tmp_path, "", steps=6) as machines:
        found = {name: machines[name].said() for name in names}
    assert all(each["good"] for each in found.values())
    assert sorted(found["first"]["outputs"] + found["last"]["outputs"]) == [
        f"out{number}" for number in range(5)
    ]


class _Machine(threading.Thread):
    """One of a program of two, in this process."""

    def __init__(
        self, name: str, folder: Path, sizes: Sequence[int] = (2,), **options: Any
    ) -> None:
        super().__init__()
        self._machine, self._folder, self._sizes = name, folder, sizes
        self._extent = options.pop("extent", 2)
        self._options: dict[str, Any] = {"timeout": 20, **options}
        self.found: object = None

    def run(self) -> None:
        made = small(self._extent)
        plan = graph.plan(made.edges())
        try:
            with graph.Replay(made, plan, self._machine, self._folder, **self._options) as replay:
                found = []
                for step, size in enumerate(self._sizes, 1):
                    inputs = {"x": np.full(size, step, np.float32)} if replay.inputs else {}
                    found += [value.tolist() for value in replay.step(**inputs).values()]
                self.found = found
        except graph.ReplayError as error:
            self.found = error


def small(extent: int | None = 2) -> graph.Program:
    """Of NumPy: the import of a framework takes minutes in the machine of `make test-verbs`."""
    return graph.Program(
        "numpy",  # type: ignore[arg-type]
        ("x",),
        ("z",),
        (
            graph.Stage("a", 0, ("x",), ("y",), lambda x: [x + 1]),
            graph.Stage("b", 1, ("y",), ("z",), lambda y: [y * 2]),
        ),
        {"y": graph.Value((extent,), "float32")},
    )


@pytest.mark.parametrize(
    ("extent", "sizes"), [(300, [300] * 9), (None, [1, 50_000, 2])], ids=["placed", "described"]
)
@pytest.mark.parametrize("transport", HERE)
def test_steps_of_machines_in_one_process(
    tmp_path: Path, transport: str, extent: int | None, sizes: list[int]
) -> None:
    machines = [
        _Machine(name, tmp_path, sizes, extent=extent, transport=transport) for name in ("a", "b")
    ]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join(60)
    wanted = [[2.0 * (step + 1)] * size for step, size in enumerate(sizes, 1)]
    assert [machine.found for machine in machines] == [[], wanted]


def test_strangers_are_not_let_in(tmp_path: Path) -> None:
    """Who has not read the store: with another token, with nonsense, too long, or silent."""
    machines = [_Machine("a", tmp_path), _Machine("b", tmp_path)]
    machines[0].start()
    target, digest, token = msgspec.msgpack.decode(FileStore(tmp_path).get("graph/0", 20))
    assert digest == graph.plan(small().edges()).digest
    other = bytes(each ^ 1 for each in token)
    said = [msgspec.msgpack.encode([1, "b", other]), b"\xff nonsense", bytes(20_000), b""]
    with contextlib.ExitStack() as stack:
        for number, words in enumerate(said):
            options = [("grpc.primary_user_agent", f"stranger {number}")]  # a link for each
            channel = rpc.insecure_channel(target, options, transport="tcp")
            stranger = stack.enter_context(channel).peer()
            assert stranger is not None
            if words:
                stranger.send(0, words, 20)
        machines[1].start()
        for machine in machines:
            machine.join(30)
    assert [machine.found for machine in machines] == [[], [[4.0, 4.0]]]


# Of JAX, where another test has imported it.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_forked_child_is_told_that_the_replay_is_its_parents(tmp_path: Path) -> None:
    other = _Machine("b", tmp_path)
    other.start()
    made = small()
    with graph.Replay(made, graph.plan(made.edges()), "a", tmp_path, timeout=20) as replay:
        x = np.ones(2, np.float32)

        def leaving() -> None:
            with replay:
                replay.step(x=x)

        found = inherited(lambda: replay.step(x=x), leaving, replay.close)
        said = found[0]
        assert said.startswith("ReplayError: the replay cannot go on here: it was made before fork")
        assert found == [said, said, ""]
        replay.step(x=x)
    other.join(30)
    assert other.found == [[4.0, 4.0]]


def test_what_replay_refuses_before_it_meets_anybody(tmp_path: Path) -> None:
    made = small()
    assert made(x=1) == {"z": 4}
    with pytest.raises(graph.PlanError, match="has no machine 'd'; there are a, b"):
        graph.Replay(made, graph.plan(made.edges()), "d", tmp_path)
    with pytest.raises(graph.PlanError, match="other edges than the program"):
        graph.Replay(made, graph.plan([]), "a", tmp_path)
    with pytest.raises(TypeError, match="inputs are missing: x"):
        made()
    with pytest.raises(TypeError, match="no such inputs: y; there are x"):
        made(x=0, y=1)
    keys = replace(made, values={"y": graph.Value((2,), "key<fry>")})
    with pytest.raises(graph.PlanError, match="y cannot travel: it is of type key<fry>"):
        graph.Replay(keys, graph.plan(keys.edges()), "a", tmp_path)
