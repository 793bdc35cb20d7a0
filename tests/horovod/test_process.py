# SPDX-License-Identifier: Apache-2.0
"""``init()`` and ``shutdown()`` of a process."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tensorwire import collective
from tensorwire.horovod import process


def test_an_init_that_fails_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts for nothing: its keys are free, and the first one that succeeds has the process
    leave at its end."""
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_", "PMI", "SLURM_", "RANK", "WORLD_SIZE")):
            monkeypatch.delenv(name)
    at_exit: list[Any] = []
    times: list[int] = []
    entered = process._Meeting

    def meeting(where: Any, time: int) -> process._Meeting:
        times.append(time)
        return entered(where, time)

    monkeypatch.setattr(process, "_times", 0)
    monkeypatch.setattr(process, "_leaves", False)
    monkeypatch.setattr(process, "_Meeting", meeting)
    monkeypatch.setattr(process, "atexit", SimpleNamespace(register=at_exit.append))
    with monkeypatch.context() as patched:

        def fail(*_: object, **__: object) -> None:
            raise collective.GroupError(14, "nobody has come")

        patched.setattr(collective, "join", fail)
        with pytest.raises(collective.GroupError, match="nobody has come"):
            process.init()
    assert at_exit == []
    for _ in range(2):
        process.init()
        process.shutdown()
    assert times == [1, 1, 2]
    assert at_exit == [process.shutdown]
