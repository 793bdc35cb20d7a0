# SPDX-License-Identifier: Apache-2.0
"""Every contender that can run here really moves the payload, in two processes, on its path."""

from __future__ import annotations

import pytest

from tensorwire.bench.contenders.rpc.sockets import Sockets
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.suite import Results
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.rpc.contender import find, names
from tensorwire.bench.suites.rpc.messages import PAYLOADS
from tensorwire.bench.suites.rpc.suite import Calls, plan

SIZES = (8, 1 << 20)
EVERYWHERE = {"tensorwire", "grpcio", "grpc-aio", "sockets", "memcpy"}


def viable() -> list[Entry]:
    return [
        Entry(name, transport)
        for name in names()
        for transport in find(name).transports
        if find(name).viable(transport) is None
    ]


def measured(entry: Entry, works: list[Work]) -> Results:
    return Calls([entry], works, rounds=1, seconds=0.001).measure()


def duty(entry: Entry, works: list[Work]) -> list[Work]:
    return Calls([entry], works, rounds=1, seconds=0.001).duty(entry)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("contender", viable(), ids=lambda c: f"{c.contender}-{c.transport}")
def test_every_case_arrives(contender: Entry) -> None:
    works = duty(contender, plan(SIZES))
    results = measured(contender, works)
    assert results.notes == []
    assert {work for _, work in results.visits} == set(works)
    for (visits,) in results.visits.values():
        assert visits.path == contender.transport
        assert visits.calls > 0
        assert visits.cpu_seconds > 0


@pytest.mark.parametrize("transport", ["shm", "tcp", "grpc"])
def test_other_payloads_than_arrays(transport: str) -> None:
    contender = Entry("grpcio" if transport == "grpc" else "tensorwire", transport)
    works = duty(contender, plan(SIZES, payloads=PAYLOADS[1:]))
    assert {work.payload for work in works} == set(PAYLOADS[1:])
    assert {work.origin for work in works} == {"ordinary"}
    results = measured(contender, works)
    assert results.notes == []
    assert {work for _, work in results.visits} == set(works)


@pytest.mark.parametrize("name", ["tensorwire", "grpcio", "sockets", "zmq"])
def test_several_callers_share_a_client(name: str) -> None:
    library = find(name)
    contender = Entry(name, library.transports[0])
    if (why := library.viable(contender.transport)) is not None:
        assert name not in EVERYWHERE
        pytest.skip(why)
    work = Work("request", 4096, reads=True, callers=4)
    results = measured(contender, [work])
    assert results.notes == []
    assert len(results.visits[contender, work]) == 1


@pytest.mark.parametrize("name", ["tensorwire", "grpcio", "memcpy"])
def test_no_bytes_at_all(name: str) -> None:
    contender = Entry(name, find(name).transports[0])
    works = [Work(case, 0) for case in ("request", "pull", "stream")]
    results = measured(contender, works)
    assert results.notes == []
    assert len(results.visits) == 3


def test_what_is_always_there() -> None:
    assert {contender.contender for contender in viable()} >= EVERYWHERE


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("zmq", "pyzmq"),
        ("flight", "pyarrow"),
        ("nixl", "nixl"),
        ("gloo", "torch"),
        ("torch-rpc", "torch"),
        ("mooncake", "mooncake-transfer-engine-non-cuda"),
        ("ray", "ray"),
        ("ucxx", "--no-deps ucxx-cu12 libucxx-cu12 'libucx-cu12<1.22'"),
    ],
)
def test_what_is_missing_says_how_to_get_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"tensorwire.bench.contenders.rpc.{name.replace('-', '_')}"
    monkeypatch.setattr(f"{module}.find_spec", lambda module: None)
    for transport in find(name).transports:
        reason = find(name).viable(transport)
        assert reason is not None
        assert f"pip install {package}" in reason


def test_a_congestion_control_that_does_not_exist_is_no_contender() -> None:
    assert "no_such" in (Sockets("no_such").viable("tcp") or "")


def test_what_a_library_has_not() -> None:
    assert not find("zmq").supports(Work("request", 8, payload="bytes"))
    assert not find("nixl").supports(Work("stream", 8))
    assert not find("torch-rpc").supports(Work("stream", 8))
    for name in ("mooncake", "ray"):
        assert not find(name).supports(Work("stream", 8))
    assert find("ray").supports(Work("pull", 8, origin="published"))
    for name in ("mpi", "gloo", "grpc-aio", "mooncake", "ray", "ucxx"):
        assert not find(name).supports(Work("request", 8, callers=2))
