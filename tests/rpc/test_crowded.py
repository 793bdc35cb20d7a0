# SPDX-License-Identifier: Apache-2.0
"""An arena that is too small is slower, and says so: in numbers, in the path and in the log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.rpc.pairings import ROOT, process

import tensorwire
from tensorwire import service
from tensorwire.observe import doctor

MIB = 1 << 20


@service.define
class Weights:
    def pull(self) -> list[np.ndarray]:
        raise NotImplementedError


# Serves 24 MiB in blocks of 2 MiB; then says what it knows of its links.
LIBRARY = """
    import json, sys
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    import tensorwire
    from tensorwire import service
    from tests.rpc.test_crowded import MIB, Weights

    class Library(Weights):
        def __init__(self):
            self.weights = [tensorwire.publish(np.full(2 * MIB, n, np.uint8)) for n in range(12)]

        def pull(self) -> list[np.ndarray]:
            return self.weights

    server = tensorwire.server(ThreadPoolExecutor(2))
    service.add_to_server(Library(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    while sys.stdin.readline():
        told = {
            "paths": [str(path) for path in server.paths()],
            "stats": server.stats(),
            "arena": tensorwire.arena_stats(),
        }
        print(json.dumps(told), flush=True)
    server.stop(None)
"""


class Library:
    def __init__(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self.child, self.stdin, self.stdout = child, child.stdin, child.stdout
        self.target = f"127.0.0.1:{int(self.stdout.readline())}"

    def ask(self) -> Any:
        self.stdin.write("\n")
        self.stdin.flush()
        return json.loads(self.stdout.readline())

    def end(self) -> str:
        """What it has logged."""
        self.stdin.close()
        assert self.child.stderr is not None
        told = self.child.stderr.read()
        assert self.child.wait() == 0
        return told


@contextmanager
def library() -> Iterator[Library]:
    command = [sys.executable, "-c", textwrap.dedent(LIBRARY)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as child:
        try:
            yield Library(child)
        finally:
            child.kill()


def test_what_finds_no_lease_is_told_where_people_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_BUFFER_BYTES", "32M")
    with library() as lender:
        channels = [
            tensorwire.insecure_channel(lender.target, transport="shm", options=[("n", n)])
            for n in range(3)
        ]
        kept = []
        for channel in channels:
            assert channel.path().crowded == ""
            kept.append(service.client(Weights, channel, timeout=30).pull())
            assert [int(weight[-1]) for weight in kept[-1]] == list(range(12))
            path = channel.path()
            # The first reader has 16 of 24 MiB on lease; it is no other with the next ones.
            assert "tensors that came as copies: 4" in path.crowded
            assert path.crowded in str(path)
        told = lender.ask()
        reason = re.compile(
            r"the peer would hold \d+ bytes of the arena.*TENSORWIRE_BUFFER_BYTES is 32M, "
            r"and 64M would have been enough"
        )
        assert told["arena"]["wanted"] == 64 * MIB
        for path, stats in zip(told["paths"], told["stats"], strict=True):
            assert stats["segments_sent_crowded"] == 4
            assert reason.search(stats["crowded_reason"])
            assert "crowded: tensors sent as copies: 4" in path
            assert reason.search(path)
        log = lender.end()
    lines = [line for line in log.splitlines() if "TENSORWIRE_BUFFER_BYTES" in line]
    assert len(lines) == 2  # one at once; at the end, that there were two more
    assert reason.search(lines[0])
    assert "1 more since the last line" in lines[1]
    for channel in channels:
        channel.close()


def test_the_size_that_is_told_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_BUFFER_BYTES", "64M")
    with library() as lender:
        with tensorwire.insecure_channel(lender.target, transport="shm") as channel:
            weights = service.client(Weights, channel, timeout=30).pull()
            assert channel.path().crowded == ""
            assert len(weights) == 12
        assert lender.ask()["arena"]["wanted"] == 0
        assert "TENSORWIRE_BUFFER_BYTES" not in lender.end()


def test_doctor_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_BUFFER_BYTES", "32M")
    command = [sys.executable, "-m", "tensorwire", "doctor", "--transport", "shm"]
    with process(kind="tensorwire") as (target, _):
        done = subprocess.run([*command, "--json", target], capture_output=True, text=True)
        report = json.loads(done.stdout)["peer"]
    assert "is 32M, and 128M would have been enough" in report["crowded"]
    assert [transfer["nbytes"] for transfer in report["transfers"]] == list(doctor.TRANSFERS)
