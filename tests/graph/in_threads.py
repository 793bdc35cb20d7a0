# SPDX-License-Identifier: Apache-2.0
"""The machines of a program as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorwire import graph


def replayed(
    program: graph.Program,
    folder: Path,
    inputs: Sequence[Mapping[str, Any]],
    *,
    steps: Mapping[str, int] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What each machine has come to: its results of each step, or the error that ended it.

    inputs: of the program, for each step. steps: how many a machine takes, where not all of them.
    """
    found: dict[str, Any] = {}

    def machine(name: str) -> None:
        try:
            with graph.Replay(
                program, graph.plan(program.edges()), name, folder, **{"timeout": 40, **options}
            ) as replay:
                found[name] = [
                    replay.step(**{key: given[key] for key in replay.inputs})
                    for given in inputs[: (steps or {}).get(name)]
                ]
        except Exception as error:
            found[name] = error

    threads = [threading.Thread(target=machine, args=(name,)) for name in program.machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return found
