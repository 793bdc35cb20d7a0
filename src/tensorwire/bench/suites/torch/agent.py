# SPDX-License-Identifier: Apache-2.0
"""One rank of a training: ``python -m tensorwire.bench.suites.torch.agent``.

Arguments: the contender, the transport, the rank, how many there are, how many rows of input the
steps of each size have, as a JSON object, and the path of the bench's unix socket. The conversation
is that of ``tensorwire.bench.suites.collectives.agent``.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Mapping, Sequence

from tensorwire.bench.harness.control import conversation
from tensorwire.bench.harness.measure import timed_calls
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.collectives.agent import TIMEOUT_SECONDS, answer, end_with
from tensorwire.bench.suites.collectives.contender import Meeting
from tensorwire.bench.suites.torch.contender import find
from tensorwire.bench.suites.torch.training import STILL, Training, check, training


class Driver:
    """Runs the steps that are asked for, and checks the first of each work. rows: of input, by the
    size of the model."""

    def __init__(self, rows: Mapping[int, int]) -> None:
        self._rows = rows
        self._checked: set[Work] = set()
        self._training: Training | None = None

    def open(self, work: Work) -> None:
        rows = self._rows[work.size]
        made = training(work.case, work.size, rows)
        if work not in self._checked:
            check(work.case, made, work.size, rows)
            self._checked.add(work)
        made.rate(STILL)
        self._training = made

    def run(self, calls: int) -> tuple[array[int], float]:
        assert self._training is not None
        return timed_calls(self._training.step, calls)

    def ways(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._training = None


def main(arguments: list[str]) -> None:
    name, transport, rank, size, rows, path = arguments
    with conversation(path) as control:
        end_with(control)
        import torch

        torch.set_num_threads(1)
        folder = os.path.join(os.path.dirname(path), "meeting")
        meeting = Meeting(int(rank), int(size), folder, TIMEOUT_SECONDS)
        with find(name).join(meeting, transport):
            control.send({"role": f"{meeting.rank:06}", "path": transport, "note": ""})
            found = {int(nbytes): count for nbytes, count in json.loads(rows).items()}
            answer(control, Driver(found))


if __name__ == "__main__":
    main(sys.argv[1:])
