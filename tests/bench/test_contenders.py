# SPDX-License-Identifier: Apache-2.0
"""Every contender that can run here really moves the payload, in two processes, on its path."""

from __future__ import annotations

import pytest

from tensorwire.bench import runner
from tensorwire.bench.peers import NAMES, peer
from tensorwire.bench.runner import Contender
from tensorwire.bench.work import PAYLOADS, Work, plan

SIZES = (8, 1 << 20)
EVERYWHERE = {"tensorwire", "grpcio", "sockets", "memcpy"}


def viable() -> list[Contender]:
    return [
        Contender(name, transport)
        for name in NAMES
        for transport in peer(name).transports
        if peer(name).viable(transport) is None
    ]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("contender", viable(), ids=lambda c: f"{c.name}-{c.transport}")
def test_every_case_arrives(contender: Contender) -> None:
    works = runner.duty(contender, plan(SIZES))
    results = runner.run([contender], works, rounds=1, seconds=0.001)
    assert results.notes == []
    assert {work for _, work in results.visits} == set(works)
    for (visits,) in results.visits.values():
        assert visits.path == contender.transport
        assert visits.calls > 0
        assert visits.cpu_seconds > 0


@pytest.mark.parametrize("transport", ["shm", "tcp", "grpc"])
def test_other_payloads_than_arrays(transport: str) -> None:
    contender = Contender("grpcio" if transport == "grpc" else "tensorwire", transport)
    works = runner.duty(contender, plan(SIZES, payloads=PAYLOADS[1:]))
    assert {work.payload for work in works} == set(PAYLOADS[1:])
    assert {work.origin for work in works} == {"ordinary"}
    results = runner.run([contender], works, rounds=1, seconds=0.001)
    assert results.notes == []
    assert {work for _, work in results.visits} == set(works)


@pytest.mark.parametrize("name", ["tensorwire", "grpcio", "sockets", "zmq"])
def test_several_callers_share_a_client(name: str) -> None:
    library = peer(name)
    contender = Contender(name, library.transports[0])
    if library.viable(contender.transport) is not None:
        assert name not in EVERYWHERE
        return
    work = Work("request", 4096, reads=True, callers=4)
    results = runner.run([contender], [work], rounds=1, seconds=0.001)
    assert results.notes == []
    assert len(results.visits[contender, work]) == 1


@pytest.mark.parametrize("name", ["tensorwire", "grpcio", "memcpy"])
def test_no_bytes_at_all(name: str) -> None:
    contender = Contender(name, peer(name).transports[0])
    works = [Work(case, 0) for case in ("request", "pull", "stream")]
    results = runner.run([contender], works, rounds=1, seconds=0.001)
    assert results.notes == []
    assert len(results.visits) == 3


def test_what_is_always_there() -> None:
    assert {contender.name for contender in viable()} >= EVERYWHERE


@pytest.mark.parametrize(
    ("name", "package"),
    [("zmq", "pyzmq"), ("flight", "pyarrow"), ("mpi", "mpi4py"), ("nixl", "nixl")],
)
def test_what_is_missing_says_how_to_get_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"tensorwire.bench.peers.{name}.find_spec", lambda module: None)
    for transport in peer(name).transports:
        reason = peer(name).viable(transport)
        assert reason is not None
        assert f"pip install {package}" in reason


def test_mpi_needs_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.bench.peers.mpi.find_spec", lambda module: object())
    monkeypatch.setattr("tensorwire.bench.peers.mpi.launcher", lambda: None)
    assert "mpiexec" in (peer("mpi").viable("shm") or "")


def test_a_congestion_control_that_does_not_exist_is_no_contender() -> None:
    assert "no_such" in (peer("sockets-no_such").viable("tcp") or "")


def test_what_a_library_has_not() -> None:
    assert not peer("zmq").supports(Work("request", 8, payload="bytes"))
    assert not peer("nixl").supports(Work("stream", 8))
    assert not peer("mpi").supports(Work("request", 8, callers=2))
