# SPDX-License-Identifier: Apache-2.0
"""Processes that are machines of a program."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import forked

LIMIT_SECONDS = 50.0


class Machine:
    def __init__(self, module: str, argument: dict[str, Any]) -> None:
        self._child = forked.start(module, argument, {"JAX_PLATFORMS": "cpu"})

    def said(self) -> dict[str, Any]:
        """The next thing that it prints."""
        ready, _, _ = select.select([self._child.stdout], [], [], LIMIT_SECONDS)
        assert ready, "it says nothing"
        line = self._child.stdout.readline()
        assert line, "it has ended without a word; standard error says why"
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self) -> None:
        self._child.kill()


@contextmanager
def running(
    module: str, names: Sequence[str], folder: Path, case: str, **more: Any
) -> Iterator[dict[str, Machine]]:
    """``more``: for all of them, or by the name of each."""
    machines = {}
    try:
        for name in names:
            own = more.get(name, {})
            everyone = {key: value for key, value in more.items() if key not in names}
            argument = {"case": case, "machine": name, "folder": str(folder), **everyone, **own}
            machines[name] = Machine(module, argument)
        yield machines
    finally:
        for machine in machines.values():
            machine.kill()
