# SPDX-License-Identifier: Apache-2.0
"""Groups between hosts, as far as the kernel's namespaces make them: two networks with a cable
between them, and no folder in common by which processes could share memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60.0
ADDRESSES = ("10.77.0.1", "10.77.0.2")

RANK = """
import json, sys
import numpy as np
from tensorwire.collective import RankLostError, join

folder, rank = sys.argv[1], int(sys.argv[2])
with join(folder, rank, 4, timeout=60) as group:
    array = np.arange(300_000, dtype=np.float32) % 97 + rank
    total = group.all_reduce(array.copy())
    same = bool((total == np.arange(300_000) % 97 * 4 + 6).all())
    rows = group.all_gather(np.full(70_000, rank))
    same = same and bool((rows == np.arange(4)[:, None]).all())
    average = group.all_reduce(np.full(3, rank + 1.0), "average")
    same = same and bool((average == 2.5).all())
    group.barrier()
    print(json.dumps([group.fabric, same]), flush=True)
    try:
        while True:
            group.all_reduce(array, "max")
    except RankLostError as error:
        print(error, flush=True)
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_SECONDS)


@pytest.fixture
def networks() -> Iterator[list[str]]:
    """The two namespaces, each as the path of a file of /proc."""
    if os.geteuid() != 0:
        pytest.skip("two network namespaces with a cable between them need root")
    with contextlib.ExitStack() as stack:
        holders = []
        for _ in ADDRESSES:
            command = ["unshare", "--net", "sh", "-c", "echo ready; exec sleep 600"]
            try:
                holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            except FileNotFoundError as error:
                pytest.skip(str(error))
            stack.enter_context(holder)
            stack.callback(holder.kill)
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                pytest.skip("no network namespaces here")
            holders.append(holder)
        pids = [str(holder.pid) for holder in holders]
        try:
            run(
                *("ip", "link", "add", "tw0", "netns", pids[0]),
                *("type", "veth", "peer", "name", "tw0", "netns", pids[1]),
            )
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no cable between network namespaces: {error}")
        files = [f"--net=/proc/{pid}/ns/net" for pid in pids]
        for file, address in zip(files, ADDRESSES, strict=True):
            run("nsenter", file, "ip", "address", "add", f"{address}/24", "dev", "tw0")
            for device in ("lo", "tw0"):
                run("nsenter", file, "ip", "link", "set", device, "up")
        yield files


@contextlib.contextmanager
def four_ranks(networks: list[str], **settings: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two of each host."""
    with contextlib.ExitStack() as stack:
        # Its name leaves room for the address of a socket.
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tw", dir="/tmp")))
        sockets = [top / "first", top / "second"]
        store = top / "store"
        for folder in (*sockets, store):
            folder.mkdir(mode=0o700)
        processes = []
        for rank in range(4):
            host = rank // 2
            hide = 'mount -t tmpfs none "$0" && exec "$@"'
            process = subprocess.Popen(
                [
                    *("nsenter", networks[host], "unshare", "--mount"),
                    *("sh", "-c", hide, str(sockets[1 - host])),
                    *(sys.executable, "-c", RANK, str(store), str(rank)),
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    "TENSORWIRE_RUNTIME_DIR": str(sockets[host]),
                    "TENSORWIRE_GROUP_HOST": ADDRESSES[host],
                    **settings,
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return process.stdout.readline()


def test_memory_within_a_host_and_messages_between(networks: list[str]) -> None:
    with four_ranks(networks) as processes:
        for process in processes:
            assert json.loads(line(process)) == ["shared memory and messages", True]
        # The one that speaks for its host.
        processes[2].send_signal(signal.SIGKILL)
        for rank in (0, 1, 3):
            assert "rank 2" in line(processes[rank])
            assert processes[rank].wait(LIMIT_SECONDS) == 0


def test_a_host_that_is_cut_off_is_missed(networks: list[str]) -> None:
    with four_ranks(networks, TENSORWIRE_SILENCE_SECONDS="1") as processes:
        for process in processes:
            assert json.loads(line(process)) == ["shared memory and messages", True]
        run("nsenter", networks[0], "ip", "link", "set", "tw0", "down")
        for rank, process in enumerate(processes):
            others = (2, 3) if rank < 2 else (0, 1)
            error = line(process)
            assert any(f"rank {other} (" in error for other in others), error
            assert process.wait(LIMIT_SECONDS) == 0
