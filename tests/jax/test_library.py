# SPDX-License-Identifier: Apache-2.0
"""The library that JAX takes for an MPI, called as XLA calls it, without JAX."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorwire.collective import FileStore
from tensorwire.jax import library, rendezvous

LIMIT_SECONDS = 40.0
_CONTEXT = multiprocessing.get_context("spawn")


class Client:
    """JAX's coordination service, as far as ranks meet by it."""

    def __init__(self, folder: Path) -> None:
        self._store = FileStore(folder)

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def blocking_key_value_get_bytes(self, key: str, timeout_ms: int) -> bytes:
        try:
            return self._store.get(key, timeout_ms / 1000)
        except TimeoutError:
            raise RuntimeError(f"DEADLINE_EXCEEDED: {key}") from None


class Mpi:
    """Its functions and constants by MPI's names. A function that fails raises its sentence."""

    def __init__(self) -> None:
        self._library = library.load()

    def __getattr__(self, name: str) -> Any:
        if name.isupper() or name.endswith("_T"):
            return ctypes.c_ssize_t.in_dll(self._library, f"MPIABI_{name}").value
        function = self._library[f"MPIABI_{name}"]

        def call(*arguments: Any) -> None:
            # Handles are as wide as pointers.
            wide = [ctypes.c_ssize_t(a) if isinstance(a, int) else a for a in arguments]
            if (code := function(*wide)) != 0:
                text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
                self._library.MPIABI_Error_string(code, text, ctypes.byref(length))
                assert len(text.value) == length.value
                raise RuntimeError(text.value.decode())

        return call

    def split(self, color: int, key: int) -> int:
        made = ctypes.c_ssize_t()
        self.Comm_split(self.COMM_WORLD, color, key, ctypes.byref(made))
        return made.value

    def number(self, function: str, comm: int) -> int:
        found = ctypes.c_int()
        getattr(self, function)(comm, ctypes.byref(found))
        return found.value


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def sums(mpi: Mpi, comm: int, array: Any) -> Any:
    out = np.empty_like(array)
    mpi.Allreduce(pointer(array), pointer(out), array.size, mpi.FLOAT, mpi.SUM, comm)
    return out


def _serve(
    end: Connection,
    program: Callable[..., Any],
    folder: Path,
    rank: int,
    size: int,
    timeout: float,
) -> None:
    library.load()
    client = Client(folder)
    client.key_value_set_bytes(f"ready{rank}", b"1")
    for other in range(size):  # the time of joining is not that of starting
        client.blocking_key_value_get_bytes(f"ready{other}", int(LIMIT_SECONDS * 1000))
    rendezvous.join(client, rank, size, timeout)
    end.send(program(Mpi(), rank, size))


def results(
    program: Callable[..., Any],
    folder: Path,
    size: int,
    ends: int,
    timeout: float = LIMIT_SECONDS / 2,
) -> list[Any]:
    """What ``program(mpi, rank, size)`` returns on the first ``ends`` of the ranks."""
    pairs = [_CONTEXT.Pipe(duplex=False) for _ in range(size)]
    processes = [
        _CONTEXT.Process(
            target=_serve, args=(theirs, program, folder, rank, size, timeout), daemon=True
        )
        for rank, (_, theirs) in enumerate(pairs)
    ]
    try:
        for process in processes:
            process.start()
        found = []
        for rank, (mine, theirs) in enumerate(pairs[:ends]):
            theirs.close()
            assert mine.poll(LIMIT_SECONDS), f"rank {rank} has not ended"
            found.append(mine.recv())
        return found
    finally:
        for process in processes:
            process.kill()
            process.join()


def meshes(mpi: Mpi, rank: int, size: int) -> list[Any]:
    """Rows and columns of a mesh of two rows; ranks come backwards in columns."""
    row, column = mpi.split(rank // 2, rank), mpi.split(rank % 2, -rank)
    found: list[Any] = [
        (mpi.number("Comm_rank", comm), mpi.number("Comm_size", comm)) for comm in (row, column)
    ]
    mine = np.full(3, rank, np.float32)
    found += [float(sums(mpi, comm, mine)[0]) for comm in (row, column, mpi.COMM_WORLD)]
    gathered = np.empty(2, np.int32)
    own = np.array([rank], np.int32)
    mpi.Allgather(pointer(own), 1, mpi.INT32_T, pointer(gathered), 1, mpi.INT32_T, column)
    found.append(gathered.tolist())
    # Each its own row's pair, large enough that a send waits for its receiver.
    given, taken = np.full(1 << 20, rank, np.int8), np.empty(1 << 20, np.int8)
    other = 1 - mpi.number("Comm_rank", row)
    for _ in range(3):
        mpi.Sendrecv(pointer(given), given.size, mpi.BYTE, other, 0, pointer(taken), taken.size,
                     mpi.BYTE, other, 0, row, None)  # fmt: skip
    found.append((int(taken.min()), int(taken.max())))
    found.append({each.fabric for each in library.statistics()})
    assert mpi.split(mpi.UNDEFINED if rank == 3 else 0, 0) != 0 or rank == 3
    freed = ctypes.c_ssize_t(row)
    mpi.Comm_free(ctypes.byref(freed))
    assert freed.value == mpi.COMM_NULL
    with pytest.raises(RuntimeError, match="no communicator"):
        sums(mpi, row, mine)
    mpi.Finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        sums(mpi, column, mine)
    return found


@pytest.mark.parametrize("way", ["shared memory", "messages"])
def test_communicators_of_a_mesh(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "messages":
        monkeypatch.setenv("TENSORWIRE_TRANSPORT", "tcp")
    found = results(meshes, tmp_path, 4, 4)
    for rank, (row, column, of_row, of_column, of_all, gathered, pair, ways) in enumerate(found):
        assert ways == {way}
        assert row == (rank % 2, 2)
        assert column == (1 - rank // 2, 2)
        assert of_row == (1 if rank < 2 else 5)
        assert of_column == (2 if rank % 2 == 0 else 4)
        assert of_all == 6
        assert gathered == [rank % 2 + 2, rank % 2]
        assert pair == (rank ^ 1, rank ^ 1)


def loses(mpi: Mpi, rank: int, size: int) -> list[str]:
    """The last rank dies while another one receives from it and a third one sends to it."""
    comm = mpi.split(0, rank)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    array = np.zeros(1 << 22, np.int8)
    said = []
    request = ctypes.c_ssize_t()
    begin = mpi.Irecv if rank == 0 else mpi.Isend
    for attempt in (
        lambda: begin(pointer(array), array.size, mpi.BYTE, 2, 0, comm, ctypes.byref(request)),
        lambda: mpi.Wait(ctypes.byref(request), None),
        lambda: sums(mpi, comm, np.ones(4, np.float32)),
        lambda: mpi.split(0, rank),
    ):
        try:
            attempt()
        except RuntimeError as error:  # noqa: PERF203
            said.append(str(error))
        else:
            said.append("nothing")
    # XLA does not look at the split, and goes on with what it gave.
    broken = ctypes.c_ssize_t()
    with pytest.raises(RuntimeError):
        mpi.Comm_split(mpi.COMM_WORLD, 0, rank, ctypes.byref(broken))
    with pytest.raises(RuntimeError, match="rank 2"):
        sums(mpi, broken.value, np.ones(4, np.float32))
    assert mpi.number("Comm_size", broken.value) == 3
    return said


def test_a_rank_that_dies(tmp_path: Path) -> None:
    for rank, (begun, waited, summed, split) in enumerate(results(loses, tmp_path, 3, 2)):
        assert begun == "nothing"
        # A message may count as sent before its receiver wants it.
        assert "rank 2" in waited or rank == 1
        assert "rank 2" in summed
        assert "rank 2" in split


def waits(mpi: Mpi, rank: int, size: int) -> list[str]:
    """For a rank that is alive and does nothing."""
    if rank == 1:
        signal.pause()
    array, request, said = np.zeros(4, np.float32), ctypes.c_ssize_t(), []
    mpi.Irecv(pointer(array), 4, mpi.FLOAT, 1, 0, mpi.COMM_WORLD, ctypes.byref(request))
    for attempt in (
        lambda: mpi.Wait(ctypes.byref(request), None),
        lambda: sums(mpi, mpi.COMM_WORLD, array),
    ):
        try:
            attempt()
        except RuntimeError as error:  # noqa: PERF203
            said.append(str(error))
    return said


def test_a_rank_that_does_nothing(tmp_path: Path) -> None:
    [said] = results(waits, tmp_path, 2, 1, timeout=3.0)
    assert len(said) == 2
    assert all("rank 1" in text and "in time" in text for text in said), said


def alone(mpi: Mpi, rank: int, size: int) -> list[str]:
    array = np.zeros(8, np.float32)
    at, world = pointer(array), mpi.COMM_WORLD
    said = []
    for attempt in (
        lambda: mpi.Bcast(at, 8, mpi.FLOAT, 0, world),
        lambda: mpi.Allreduce(at, at, 8, mpi.LONG_DOUBLE, mpi.SUM, world),
        lambda: mpi.Allreduce(at, at, 8, mpi.FLOAT, mpi.MAXLOC, world),
        lambda: mpi.Allreduce(at, at, 4, mpi.C_COMPLEX, mpi.PROD, world),
        lambda: mpi.Allreduce(at, at, -8, mpi.FLOAT, mpi.SUM, world),
        lambda: mpi.Isend(at, 8, mpi.FLOAT, 1, 0, world, ctypes.byref(ctypes.c_ssize_t())),
        lambda: mpi.Wait(ctypes.byref(ctypes.c_ssize_t(77)), None),
        lambda: mpi.Barrier(77),
    ):
        try:
            attempt()
        except RuntimeError as error:  # noqa: PERF203
            said.append(str(error))
    mpi.Barrier(world)
    assert sums(mpi, world, array + 1).tolist() == [1] * 8
    return said


def test_what_is_wrong_or_missing_is_refused(tmp_path: Path) -> None:
    [said] = results(alone, tmp_path, 1, 1)
    for text, words in zip(
        said,
        ["MPI_Bcast is not there", "a type of MPI", "a reduction of MPI", "complex",
         "more elements", "rank 1 is no other rank", "no request", "no communicator"],
        strict=True,
    ):  # fmt: skip
        assert words in text


def test_a_jax_without_an_option_for_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=SimpleNamespace()))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    rendezvous._check_devices()
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    with pytest.raises(RuntimeError, match="2 CPU devices"):
        rendezvous._check_devices()


def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="rank 1"):
        pool.submit(rendezvous.join, Client(tmp_path), 0, 2, 0.1).result(LIMIT_SECONDS)


def test_every_name_of_the_abi_is_there() -> None:
    """MPItrampoline ends the process for want of one. Those of jaxlib, where that is installed."""
    jaxlib = find_spec("jaxlib")
    if jaxlib is None or not jaxlib.submodule_search_locations:
        pytest.skip("there is no jaxlib")
    binary = Path(jaxlib.submodule_search_locations[0]) / "libjax_common.so"
    if not binary.is_file():
        pytest.skip("this jaxlib has another layout")
    with binary.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        names = set(re.findall(rb"\0(MPIX?ABI_\w+)(?=\0)", content))
    assert len(names) > 500
    loaded = library.load()
    missing = [name for name in names if not hasattr(loaded, name.decode())]
    assert missing == []
