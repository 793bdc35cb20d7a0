# SPDX-License-Identifier: Apache-2.0
"""Without an idea a link does something else; or the idea is refused, as the link does the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tensorwire import transports
from tensorwire.bench.suites.tf_grpc.contender import find
from tensorwire.bench.suites.tf_grpc.ideas import IDEAS, LINK_TUNING, thresholds, why_same

PROGRAM = """
import json, sys
from contextlib import ExitStack
from tensorwire import environment
from tensorwire.bench.suites.tf_grpc.agent import _load
from tensorwire.bench.suites.tf_grpc.contender import Request, find
from tensorwire.bench.suites.tf_grpc.load import Window

name, transport, origin = sys.argv[1:]
contender = find(name)
payload = (10, 10, 10, 5000, 8192, 10_240, 40_000, 1 << 20, 3 << 20)
request = Request("acknowledge", "non-serialized", origin, False, (payload,), window=4)
with ExitStack() as stack:
    address = stack.enter_context(contender.serve(transport, "127.0.0.1", 0, None))
    client = stack.enter_context(contender.connect(transport, address, None))
    before = client.channel.stats()["link"]
    load = _load(stack, contender, [client], request)
    calls = len(load.timed(0, 0.0, 0).durations)
    link, path = client.channel.stats()["link"], client.path()
window = load._size if isinstance(load, Window) else 1
sent = {
    name: (link[name] - before[name]) / calls
    for name in link
    if name.startswith(("segments_sent", "frames_sent", "chunks_sent", "copies"))
}
spin_us = environment.settings()["spin_us"]
print(json.dumps({"path": path, "sent": sent, "window": window, "spin": spin_us}))
"""
"""What a call makes its link do, how many are begun at once, and how long a link may spin."""


@cache
def done(name: str, transport: str, table: Path, origin: str = "ordinary") -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, transport, origin],
        env={**os.environ, LINK_TUNING: str(table), **find(name).environment()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    result: dict[str, Any] = json.loads(found.stdout)
    assert result["path"] == transport
    return result


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tuned") / "links.table"
    path.write_text("tcp same_host eager_bytes 65536\nshm same_host eager_bytes 8192\n")
    return path


@pytest.fixture(params=transports.names())
def transport(request: pytest.FixtureRequest, table: Path, monkeypatch: Any) -> str:
    """One of all, with a table that changes links by TCP alone: the rule of shm is its default."""
    if (reason := transports.why_not(request.param)) is not None:
        pytest.skip(reason)
    monkeypatch.setenv(LINK_TUNING, str(table))
    return str(request.param)


@pytest.mark.parametrize("idea", IDEAS)
def test_without_an_idea_a_link_does_something_else(idea: str, transport: str, table: Path) -> None:
    whole = done("tensorwire", transport, table)
    without = done(f"tensorwire-without-{idea}", transport, table)
    reason = find(f"tensorwire-without-{idea}").viable(transport)
    if reason is None:
        assert without != whole
    else:
        assert reason.startswith(f"without {idea} it is the same: ")
        assert without == whole or idea == "spinning"


def test_what_is_published_goes_without_a_copy_where_a_link_can_lend(
    transport: str, table: Path
) -> None:
    ordinary, published = (
        done("tensorwire", transport, table, origin) for origin in ("ordinary", "published")
    )
    copies = [each["sent"]["copies"] for each in (ordinary, published)]
    assert published["sent"] | {"copies": 0} == ordinary["sent"] | {"copies": 0}
    assert (copies[0] > 0) == transports.lends(transport)
    assert copies[1] == 0


def test_which_ideas_are_none() -> None:
    """By the defaults; on transports of every host."""
    usual = {LINK_TUNING: "off"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in usual.items():
            patch.setenv(name, value)
        same = {
            (idea, transport)
            for idea in IDEAS
            for transport in ("shm", "tcp")
            if why_same(idea, transport) is not None
        }
        assert same - {("spinning", "shm"), ("spinning", "tcp")} == {
            ("chunking", "shm"),
            ("eager", "shm"),
            ("tuning", "shm"),
            ("tuning", "tcp"),
        }
        patch.setenv("TENSORWIRE_EAGER_BYTES", "16K")
        assert why_same("eager", "shm") is None
        patch.setenv("TF_RDMA_ACC_SIZE", "0")
        assert "already" in (why_same("coalescing", "tcp") or "")
        patch.setenv("TENSORWIRE_SPIN_US", "0")
        assert why_same("spinning", "tcp") is not None


def test_thresholds_are_those_of_a_real_link(transport: str) -> None:
    program = """
import json, sys
from tensorwire.bench.suites.tf_grpc.contender import find

contender, transport = find("tensorwire"), sys.argv[1]
with contender.serve(transport, "127.0.0.1", 0, None) as address:
    with contender.connect(transport, address, None) as client:
        found = client.channel.path().thresholds
print(json.dumps([found[name][0] for name in ("coalesce_bytes", "eager_bytes", "chunk_bytes")]))
"""
    for variables in ({}, {LINK_TUNING: "off"}, {"TENSORWIRE_CHUNK_BYTES": "8M"}):
        settings = {**os.environ, **variables}
        found = subprocess.run(
            [sys.executable, "-c", program, transport],
            env=settings,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        expected = thresholds(transport, settings)
        assert json.loads(found.stdout) == [expected.coalesce, expected.eager, expected.chunk]
