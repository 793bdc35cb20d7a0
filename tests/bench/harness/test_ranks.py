# SPDX-License-Identifier: Apache-2.0
"""Ranks of a launcher that start agents for rank 0, which is this process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tensorwire.bench.harness import meeting, ranks
from tensorwire.bench.harness.control import AgentError, LostError
from tensorwire.bench.harness.meeting import Meeting, RanksError
from tensorwire.bench.harness.processes import expect, expect_all
from tensorwire.bench.harness.ranks import leading
from tensorwire.bench.harness.resources import Monitor
from tensorwire.launch import free_ports
from tensorwire.launch.place import Place

LIMIT_SECONDS = 60.0
AGENT = """
import os, sys
from tensorwire.bench.harness.control import conversation
with conversation(sys.argv[1]) as control:
    control.send({"role": sys.argv[2], "pid": os.getpid(), "host": sys.argv[3]})
    while message := control.receive():
        if "fail" in message:
            raise ValueError(message["fail"])
        control.send(message)
"""
FOLLOWER = f"""
import sys
from tensorwire.bench.harness.control import LostError
from tensorwire.bench.harness.following import following
from tensorwire.bench.harness.meeting import Meeting, RanksError
from tensorwire.launch.place import Place
rank, size, address, folder, secret, given = sys.argv[1:]
place = Place(int(rank), int(size), address, folder)
def command(order, host, path):
    if order["role"] == "none":
        raise ValueError("there is no such agent")
    return [sys.executable, "-c", {AGENT!r}, path, order["role"], host]
try:
    meeting = Meeting(place, secret.encode() or None, {{"--seconds": given}})
    raise SystemExit(following(meeting, command))
except (RanksError, LostError) as error:
    raise SystemExit(str(error))
"""
GIVEN = {"--seconds": "1.0"}


def command(order: Mapping[str, Any], host: str, path: str) -> list[str]:
    return [sys.executable, "-c", AGENT, path, order["role"], host]


@contextmanager
def followers(place: Place, secret: str = "", given: str = "1.0") -> Iterator[list[Any]]:
    """All ranks but the first one, as processes, which are ended at the latest then."""
    where = (str(place.size), place.address, place.folder, secret, given)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, str(rank), *where], stderr=subprocess.PIPE, text=True
        )
        for rank in range(1, place.size)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def near(folder: Path, size: int = 2) -> Place:
    return Place(0, size, "", str(folder / "job"))


def lead(place: Place, secret: bytes | None = None) -> Any:
    return leading(Meeting(place, secret, GIVEN), command)


def orders(*roles: str) -> list[dict[str, str]]:
    return [{"role": role} for role in roles]


def test_agents_of_all_ranks_speak_with_rank_0(tmp_path: Path) -> None:
    with followers(near(tmp_path, 3)) as processes, lead(near(tmp_path, 3)) as found:
        assert found.near
        assert len(found.names) == found.size == 3
        with found.started(orders("a", "b", "c")) as hellos:
            assert [hello["role"] for _, hello in hellos] == ["a", "b", "c"]
            assert {hello["host"] for _, hello in hellos} == {"127.0.0.1"}
            controls = [control for control, _ in hellos]
            for number, control in enumerate(controls):
                control.send({"x": number})
            answers = expect_all(controls, LIMIT_SECONDS, "{}", found.others)
            assert answers == [{"x": 0}, {"x": 1}, {"x": 2}]
            with found.watching([hello["pid"] for _, hello in hellos], 9.0) as watched:
                pass
            first, last = watched.samples
            assert first.seconds < last.seconds
            assert last.memory > 3 << 20
        found.end(3)
        assert [process.wait(LIMIT_SECONDS) for process in processes] == [3, 3]
    assert not Path(near(tmp_path).folder).exists()


def test_an_agent_that_cannot_be_there_is_told(tmp_path: Path) -> None:
    with followers(near(tmp_path)) as processes, lead(near(tmp_path)) as found:
        with (
            pytest.raises(AgentError, match=r"rank 1 on .*: there is no such agent"),
            found.started(orders("a", "none")),
        ):
            pass
        with found.started(orders("a", "b")) as ((_, _), (control, _)):
            control.send({"fail": "on purpose"})
            with pytest.raises(AgentError, match="ValueError: on purpose"):
                expect(control, LIMIT_SECONDS)
        found.end(0)
        assert processes[0].wait(LIMIT_SECONDS) == 0


def test_samples_of_other_hosts_are_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of hosts that see no process of each other."""
    monkeypatch.setattr(meeting, "host_id", lambda: "another")
    with followers(near(tmp_path)) as processes, lead(near(tmp_path)) as found:
        with found.started(orders("a", "b")) as hellos:
            pids = [hello["pid"] for _, hello in hellos]
            with (
                pytest.raises(AgentError, match=r"rank 1 .*: one of its processes has ended"),
                found.watching([pids[0], 1 << 22], 9.0),
            ):
                pass
            with found.watching(pids, 9.0) as watched:
                pass
            both = [sample.memory for sample in watched.samples]
            with Monitor(pids[:1], 9.0) as own:
                pass
            assert len(both) == 2
            assert min(both) > own.samples[0].memory
        found.end(0)
        processes[0].wait(LIMIT_SECONDS)


def test_a_rank_that_is_lost_is_named(tmp_path: Path) -> None:
    with followers(near(tmp_path, 3)) as processes, lead(near(tmp_path, 3)) as found:
        with found.started(orders("a", "b", "c")) as hellos:
            processes[1].kill()
            controls = [hellos[1][0]]
            with pytest.raises(LostError, match=r"rank 2 on .* is lost"):
                expect_all(controls, LIMIT_SECONDS, "{}", found.others)
            with pytest.raises(LostError, match="rank 2"):
                found.check()
        found.end(1)
        assert processes[0].wait(LIMIT_SECONDS) == 1


def test_ranks_end_when_rank_0_is_lost(tmp_path: Path) -> None:
    with followers(near(tmp_path)) as processes:
        with lead(near(tmp_path)) as found, found.started(orders("a", "b")):
            pass
        assert processes[0].wait(LIMIT_SECONDS) == 1
        assert "rank 0 is lost" in processes[0].stderr.read()


def test_another_command_line_is_told(tmp_path: Path) -> None:
    with followers(near(tmp_path), given="9.0") as processes:
        told = "rank 1 has --seconds 9.0, and rank 0 1.0"
        with pytest.raises(RanksError, match=told) as caught, lead(near(tmp_path)):
            pass
        assert caught.value.code == 2
        assert processes[0].wait(LIMIT_SECONDS) == 2


def test_a_rank_that_does_not_come_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "START_SECONDS", 0.0)
    told = "rank 1, 2 of 3 has not come in 0 s"
    with pytest.raises(RanksError, match=told), lead(near(tmp_path, 3)):
        pass


def test_ranks_of_several_hosts_have_a_secret(free_port: int) -> None:
    place = Place(0, 2, f"127.0.0.1:{free_port}")
    with followers(place, "this") as (friend,), lead(place, b"this") as found:
        assert not found.near
        with followers(place, "that") as (stranger,):
            assert stranger.wait(LIMIT_SECONDS) == 1
            assert "does not reach rank 0" in stranger.stderr.read()
        found.end(0)
        assert friend.wait(LIMIT_SECONDS) == 0


def test_a_port_that_is_taken_is_told(free_port: int) -> None:
    place = Place(0, 2, f"127.0.0.1:{free_port}")
    with (
        socket.create_server(("127.0.0.1", free_port)),
        pytest.raises(RanksError, match="rank 0 cannot listen at"),
        lead(place, b"this"),
    ):
        pass


def test_ports_are_handed_out(tmp_path: Path) -> None:
    place = near(tmp_path)
    with followers(place), leading(Meeting(place, None, GIVEN), command, 700) as found:
        assert found.ports() == [700, 701]
        with found.started(orders("a", "b")):
            assert found.ports() == [702, 703]
        found.end(0)


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]
