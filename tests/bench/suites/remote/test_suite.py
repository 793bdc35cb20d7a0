# SPDX-License-Identifier: Apache-2.0
"""``tensorwire bench remote``: who takes part in what, and that wrong figures are none."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tensorwire import cli
from tensorwire.bench.harness.measure import WrongAnswerError
from tensorwire.bench.harness.schedule import Entry
from tensorwire.bench.harness.work import Work, payload
from tensorwire.bench.suites.remote.contender import (
    BATCH,
    CASES,
    JAX,
    USUAL,
    counting,
    making,
    names,
    parts,
    preparing,
    reading,
    source,
)
from tensorwire.bench.suites.remote.suite import SIZES, Accesses, Options, plan


def options(**changed: Any) -> Options:
    given: dict[str, Any] = {
        "transports": ["shm", "tcp"],
        "cases": CASES,
        "sizes": [8, 65536],
        "peers": [],
        "rounds": 1,
        "seconds": 0.001,
    }
    return Options(**{**given, **changed})


def test_only_reads_have_sizes() -> None:
    works = [(work.case, work.size) for work in plan(CASES, [8, 65536])]
    assert works == [
        ("read", 8),
        ("read", 65536),
        ("read_published", 8),
        ("read_published", 65536),
        ("read_staged", 8),
        ("read_staged", 65536),
        ("batch", 2 << 20),
        ("fetch_add", 8),
        ("signal", 8),
        ("prepare", 6_400_000),
        ("jax", 64 << 20),
        ("jax_published", 64 << 20),
    ]


def test_who_takes_part() -> None:
    suite = Accesses.of(options(peers=["nixl", "mpi", "jax"]))
    assert [*map(str, suite.entries)] == [
        "memcpy over memory",
        "tensorwire over shm",
        "tensorwire over tcp",
        "nixl over shm",
        "nixl over tcp",
        "mpi over shm",
        "jax over tcp",
    ]
    assert {work.case for work in suite.duty(Entry("memcpy", "memory"))} == {
        *("read", "read_published", "read_staged", "batch", "jax", "jax_published")
    }
    assert {work.case for work in suite.duty(Entry("nixl", "shm"))} == {
        *("read", "batch", "prepare")
    }
    assert {work.case for work in suite.duty(Entry("mpi", "shm"))} == set(USUAL)
    assert {work.case for work in suite.duty(Entry("jax", "tcp"))} == JAX
    assert names() == ["jax", "memcpy", "mpi", "nixl", "tensorwire"]
    with pytest.raises(ValueError, match="no contender is called"):
        Accesses.of(options(peers=["nobody"]))


def test_a_read_that_reads_nothing_is_no_figure() -> None:
    work = Work("read", 64)
    out = np.zeros(16, np.float32)
    reading(work, out, lambda: np.copyto(out, payload(64))).check()
    with pytest.raises(WrongAnswerError):
        reading(work, out, lambda: None).check()


def test_an_array_that_is_another_one_is_no_figure() -> None:
    work = Work("jax", 64)
    making(work, lambda: payload(64)).check()
    with pytest.raises(WrongAnswerError):
        making(work, lambda: np.zeros(16, np.float32)).check()


def test_a_batch_is_checked_by_its_parts() -> None:
    work = Work("batch", BATCH * 8)
    out = np.zeros(BATCH * 2, np.float32)
    there, here = (source(work).view(np.uint8), out.view(np.uint8))

    def copy() -> None:
        for part, to in zip(*parts(work), strict=True):
            here[to] = there[part]

    reading(work, out, copy).check()
    with pytest.raises(WrongAnswerError):
        reading(work, out, lambda: np.copyto(here, there[: len(here)])).check()


def test_what_is_prepared_is_checked_by_what_it_reads() -> None:
    work, released = Work("prepare", 100_000 * 8), []
    out = np.zeros(200_000, np.float32)
    strided = source(work).reshape(100_000, 2, -1)[:, 0]

    def prepare(first: int) -> Any:
        parts = out.reshape(100_000, -1)
        return lambda: np.copyto(parts[first:], strided[first:]), lambda: released.append(first)

    preparing(work, out, lambda: prepare(0)).check()
    preparing(work, out, lambda: prepare(0)).call()
    assert released == [0, 0]
    with pytest.raises(WrongAnswerError):
        preparing(work, out, lambda: prepare(1)).check()


def test_what_counts_counts_by_one() -> None:
    numbers = iter([1, 2, 2])
    counting(lambda: next(numbers)).check()
    with pytest.raises(WrongAnswerError, match="after 2 came 4"):
        counting(iter([2, 4]).__next__).check()


@pytest.mark.timeout(120)
def test_a_run(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    arguments = ["bench", "remote", "--rounds", "1", "--seconds", "0.001", "--sizes", "8,64K"]
    arguments += ["--cases", ",".join(set(CASES) - JAX)]
    done = CliRunner().invoke(cli.app, [*arguments, "--output", str(output)])
    assert done.exit_code == 0, done.output
    report = json.loads(output.read_text())
    rows = {
        (row["contender"], row["transport"], row["case"], row["size"]) for row in report["rows"]
    }
    for transport in ("shm", "tcp"):
        own = {row[2:] for row in rows if row[:2] == ("tensorwire", transport)}
        cases = [case for case in CASES if case not in JAX]
        assert own == {(work.case, work.size) for work in plan(cases, [8, 65536])}
    assert ("memcpy", "memory", "batch", 2 << 20) in rows
    assert all(row["p50_us"] > 0 for row in report["rows"])


@pytest.mark.skipif(find_spec("jax") is None, reason="there is no JAX")
def test_arrays_of_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in JAX:
        monkeypatch.setitem(SIZES, case, 65536)
    output = tmp_path / "figures.json"
    arguments = ["bench", "remote", "--rounds", "1", "--seconds", "0.001"]
    arguments += ["--cases", ",".join(JAX), "--transport", "shm", "--peers", "jax"]
    done = CliRunner().invoke(cli.app, [*arguments, "--output", str(output)])
    assert done.exit_code == 0, done.output
    report = json.loads(output.read_text())
    rows = {(row["contender"], row["case"], row["size"]) for row in report["rows"]}
    assert rows == {(name, case, 65536) for name in ("memcpy", "tensorwire", "jax") for case in JAX}


def test_wrong_usage() -> None:
    for wrong in (
        ["--transport", "grpc"],
        ["--cases", "write"],
        ["--sizes", "x"],
        ["--peers", "x"],
    ):
        assert CliRunner().invoke(cli.app, ["bench", "remote", *wrong]).exit_code == 2
