# SPDX-License-Identifier: Apache-2.0
"""A model behind a typed service: clients send batches and get predictions.

The model is a linear layer; what is timed is a whole call, and clients check every answer.

    python examples/model_server.py                          # a server and two clients, here
    python examples/model_server.py --library both           # over stock grpcio, too
    python examples/model_server.py --clients 0 --port 50051 # a server alone, until Ctrl-C
    python examples/model_server.py --connect 127.0.0.1:50051
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import grpc
import numpy as np

import tensorwire
from tensorwire import service
from tensorwire.tensors import TensorSpec

FEATURES = 4096
CLASSES = 16
CALL_SECONDS = 60

# What is sent has to fit: another shape is an error at the client, before anything is sent.
Batch = Annotated[np.ndarray, TensorSpec(shape=(None, FEATURES), dtype="float32")]
Scores = Annotated[np.ndarray, TensorSpec(shape=(None, CLASSES), dtype="float32")]

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@service.define(name="example.Model")
class Model:
    """What clients can call."""

    def __init__(self) -> None:
        self._weights = weights()
        self._lock = threading.Lock()
        self.reports: list[dict[str, Any]] = []

    def predict(self, batch: Batch) -> Scores:
        """The batch lies in the client's memory as long as this method has it, if both are on one
        host: nothing is copied on the way here."""
        scores: np.ndarray[Any, Any] = batch @ self._weights
        return scores

    def report(self, figures: dict[str, Any]) -> None:
        """A client has come to its end."""
        with self._lock:
            self.reports.append(figures)


def weights() -> np.ndarray[Any, Any]:
    """Of both ends, so that clients know what to expect."""
    return (np.arange(FEATURES * CLASSES, dtype=np.float32) % 7).reshape(FEATURES, CLASSES)


def ask(address: str, library: str, requests: int, rows: int) -> None:
    """A client: times so many calls with batches of so many rows."""
    channel: grpc.Channel
    if library == "grpcio":
        channel = grpc.insecure_channel(address, options=OPTIONS)
    else:
        channel = tensorwire.insecure_channel(address, options=OPTIONS)
    batch = np.ones((rows, FEATURES), np.float32)
    expected = weights().sum(axis=0)
    seconds = []
    with channel:
        model = service.client(Model, channel, timeout=CALL_SECONDS, wait_for_ready=True)
        model.predict(batch)  # opens the way
        for _ in range(requests):
            begin = time.perf_counter()
            scores = model.predict(batch)
            seconds.append(time.perf_counter() - begin)
            if not (scores == expected).all():
                raise SystemExit("a prediction is wrong")
        model.report(
            {
                "seconds": seconds,
                "path": str(channel.path()) if isinstance(channel, tensorwire.Channel) else "grpc",
            }
        )


def run(library: str, arguments: argparse.Namespace) -> float:
    """The server, with processes of their own for the clients; the median seconds of a call."""
    pool = ThreadPoolExecutor(max(arguments.clients, 4))
    if library == "grpcio":
        server = grpc.server(pool, options=OPTIONS)
    else:
        server = tensorwire.server(pool, options=OPTIONS)
    model = Model()
    service.add_to_server(model, server)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{arguments.port}')}"
    server.start()
    clients: list[subprocess.Popen[bytes]] = []
    try:
        print(f"{library}: the model is served at {address}", flush=True)
        if arguments.clients == 0:
            server.wait_for_termination()
        command = [sys.executable, __file__, "--connect", address, "--library", library]
        for name in ("requests", "rows"):
            command += [f"--{name}", str(getattr(arguments, name))]
        clients += [subprocess.Popen(command) for _ in range(arguments.clients)]
        codes = [client.wait() for client in clients]
        if any(codes):
            raise SystemExit(f"a client failed (exit codes {codes})")
    finally:
        for client in clients:
            client.kill()  # those that have ended do not mind
        server.stop(None).wait()
    calls: list[float] = sorted(took for report in model.reports for took in report["seconds"])
    median, slow = statistics.median(calls), calls[int(len(calls) * 0.99)]
    nbytes = arguments.rows * FEATURES * 4
    print(f"{library}: calls went by {model.reports[0]['path']}")
    print(
        f"{library}: {len(calls)} predictions for {nbytes / 1e6:.2f} MB each: "
        f"p50 {median * 1e6:.0f} us, p99 {slow * 1e6:.0f} us",
        flush=True,
    )
    return median


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=2, help="processes that ask (2)")
    parser.add_argument("--requests", type=int, default=300, help="of each client (300)")
    parser.add_argument("--rows", type=int, default=64, help="of a batch, 16 KiB each (64)")
    parser.add_argument(
        "--library",
        choices=("tensorwire", "grpcio", "both"),
        default="tensorwire",
        help="what carries the calls",
    )
    parser.add_argument("--port", type=int, default=0, help="of the server (any)")
    parser.add_argument("--connect", metavar="ADDRESS", help="be a client of that server")
    arguments = parser.parse_args()
    if arguments.connect:
        ask(arguments.connect, arguments.library, arguments.requests, arguments.rows)
        return
    libraries = ("tensorwire", "grpcio") if arguments.library == "both" else (arguments.library,)
    medians = [run(library, arguments) for library in libraries]
    if len(medians) == 2:
        print(f"a call takes grpcio {medians[1] / medians[0]:.1f} times as long")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except grpc.RpcError as error:
        raise SystemExit(f"{error.code().name}: {error.details()}") from None
