# SPDX-License-Identifier: Apache-2.0
"""One end of a contender in a process of its own: ``python -m tensorwire.bench.suites.rpc.agent``.

Arguments: ``server`` or ``client``, the contender, its transport, the path of the bench's unix
socket. The agent does what the bench tells it there and ends when the bench closes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.rpc.contender import Contender, find
from tensorwire.bench.suites.rpc.visits import first, visit


def serve(control: Control, contender: Contender, transport: str) -> None:
    with contender.serve(transport) as server:
        control.send({"role": "server", "pids": server.pids(), "address": server.address})
        while message := control.receive():
            server.prepare(Work(**message["work"]))
            control.send({"ready": True})
            server.attend()


def call(control: Control, contender: Contender, transport: str) -> None:
    control.send({"role": "client"})
    if not (message := control.receive()):
        return
    pids = [os.getpid(), *message["server_pids"]]
    with contender.connect(transport, message["address"]) as client:
        control.send({"path": client.path(), "note": client.note()})
        while message := control.receive():
            work = Work(**message["work"])
            if message["seconds"] is None:
                found = first(client, work, pids)
            else:
                found = visit(client, work, message["seconds"], pids)
            control.send(found.to_json())


def main(arguments: list[str]) -> None:
    role, name, transport, path = arguments
    ends: dict[str, Callable[[Control, Contender, str], None]] = {"server": serve, "client": call}
    with conversation(path) as control:
        contender = find(name)
        contender.join()
        ends[role](control, contender, transport)


if __name__ == "__main__":
    main(sys.argv[1:])
