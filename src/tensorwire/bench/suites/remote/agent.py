# SPDX-License-Identifier: Apache-2.0
"""One end of a contender in a process of its own: ``python -m
tensorwire.bench.suites.remote.agent``.

Arguments: ``client`` or ``owner``, the contender, its transport, the path of the bench's unix
socket. The agent does what the bench tells it there and ends when the bench closes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from tensorwire.bench.harness import measure
from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.remote.contender import Contender, find


def own(control: Control, contender: Contender, transport: str) -> None:
    with contender.own(transport) as owner:
        control.send({"role": "owner", "pid": os.getpid(), "address": owner.address})
        while message := control.receive():
            owner.prepare(Work(**message["work"]))
            control.send({"ready": True})
            owner.attend()


def access(control: Control, contender: Contender, transport: str) -> None:
    control.send({"role": "client", "pid": os.getpid()})
    if not (message := control.receive()):
        return
    pids = [os.getpid(), int(message["owner_pid"])]
    with contender.connect(transport, message["address"]) as client:
        control.send({"path": client.path(), "note": client.note()})
        while message := control.receive():
            work = Work(**message["work"])
            with client.access(work) as measured:
                visit = measure.visit_calls(
                    [measured.call], measured.check, message["seconds"], pids, client.path
                )
            control.send(visit.to_json())


def main(arguments: list[str]) -> None:
    role, name, transport, path = arguments
    ends: dict[str, Callable[[Control, Contender, str], None]] = {"owner": own, "client": access}
    with conversation(path) as control:
        contender = find(name)
        contender.join()
        ends[role](control, contender, transport)


if __name__ == "__main__":
    main(sys.argv[1:])
