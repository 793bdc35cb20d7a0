# SPDX-License-Identifier: Apache-2.0
"""A parameter server, a worker, or a node that is both, in a process of its own:
``python -m tensorwire.bench.suites.tf_grpc.agent``.

Arguments: the contender, its transport, the role, the number of this process, the host and the port
where it serves, the file with the token of its servers (empty: they ask for none), and the path of
the bench's unix socket. The agent does what the bench tells it there, and ends when the bench
closes it, also in the middle of a call that is not answered.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tensorwire.bench.harness.control import Control, conversation
from tensorwire.bench.suites.collectives.agent import end_with
from tensorwire.bench.suites.tf_grpc.contender import Client, Contender, Request, expected, find
from tensorwire.bench.suites.tf_grpc.load import Times, Turns, Window

SERVER: Final = "server"
WORKER: Final = "worker"
NODE: Final = "node"


def work(control: Control, contender: Contender, clients: Sequence[Client]) -> None:
    """Makes ready for a request, and calls when it is told to, again and again."""
    while message := control.receive():
        request = Request.from_json(message["request"])
        with ExitStack() as stack:
            load = _load(stack, contender, clients, request)
            control.send({"ready": True})
            if not (message := _begin(control)):
                return
            warming = load.until(message["begin"])
            before = _serialization_ns(clients)
            calls = load.timed(message["begin"], message["seconds"], message["rate"])
            # The bench takes the processors' time between these two, before any goes into telling.
            control.send({"ended": True})
            if not control.receive():
                return
            times = Times.of(calls)
            serialization_ns = _serialization_ns(clients) - before
            more = {"serialization": serialization_ns, "warming": warming}
            control.send({**times.to_json(), **_told(clients), **more})


def _begin(control: Control) -> dict[str, Any]:
    """What the bench says next, once it has been told the time by this host's clock."""
    while "clock" in (message := control.receive()):
        control.send({"clock": time.monotonic_ns()})
    return message


def _load(
    stack: ExitStack, contender: Contender, clients: Sequence[Client], request: Request
) -> Turns | Window:
    answers = expected(contender, request)
    if request.window > 1 and contender.windows:
        begins = [stack.enter_context(client.begun(request)) for client in clients]
        return Window(begins, answers, request.window)
    return Turns([stack.enter_context(client.calls(request)) for client in clients], answers)


def _serialization_ns(clients: Sequence[Client]) -> int:
    return sum(client.serialization_ns() for client in clients)


def _told(clients: Sequence[Client]) -> dict[str, Any]:
    paths = dict.fromkeys(client.path() for client in clients)
    return {"path": " and ".join(paths), "note": clients[0].note()}


def main(arguments: list[str]) -> None:
    name, transport, role, number, host, port, token_file, path = arguments
    with conversation(path) as control, ExitStack() as stack:
        end_with(control)
        contender = find(name)
        folder = os.path.dirname(path)
        stack.enter_context(contender.joined(transport, folder, int(number)))
        token = Path(token_file).read_text().strip() if token_file else None
        address = ""
        if role != WORKER:
            address = stack.enter_context(contender.serve(transport, host, int(port), token))
        control.send({"role": f"{int(number):06}", "pid": os.getpid(), "address": address})
        message = control.receive()  # a server hears nothing until the bench closes
        if not message:
            return
        clients = [
            stack.enter_context(contender.connect(transport, each, token))
            for each in message["addresses"]
        ]
        control.send(_told(clients))
        work(control, contender, clients)


if __name__ == "__main__":
    main(sys.argv[1:])
