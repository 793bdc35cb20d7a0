# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning's way of moving tensors: a learner hands its weights to many actors.

Each actor pulls the newest weights, plays with them, and pushes what it has seen. The learner
trains on that and publishes new weights. Training and playing are stand-ins here; the messages are
real, and every element of every pull is looked at and checked.

    python examples/actor_learner.py                          # a learner and four actors, here
    python examples/actor_learner.py --library both           # over stock grpcio, too
    python examples/actor_learner.py --actors 0 --port 50051  # a learner alone, until Ctrl-C
    python examples/actor_learner.py --join 127.0.0.1:50051   # an actor for it
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

import tensorwire
from tensorwire import service
from tensorwire.service import ServiceError

Weights = dict[str, np.ndarray[Any, Any]]

# Stock gRPC refuses messages of more than 4 MB unless it is told not to.
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
START_SECONDS = 60
CALL_SECONDS = 600


@service.define(name="example.Learner")
class Learner:
    """What actors can call."""

    def __init__(self, weights: int, tensors: int, actors: int, in_arena: bool) -> None:
        """weights: bytes, in so many tensors. actors: how many begin together; a step of training
        takes one batch of experience for each. in_arena: whether weights are born where actors on
        this host can read them in place."""
        self._actors = actors
        self._batches = max(actors, 1)
        self._joined = 0
        self._in_arena = in_arena
        self._elements = max(weights // 4 // tensors, 1)
        self._tensors = tensors
        self._version = 0
        self._waiting: list[np.ndarray[Any, Any]] = []
        self._pushed = threading.Condition()
        self._ended = False
        self.began = 0.0  # when all actors were there
        self.reports: list[dict[str, Any]] = []
        self._weights = self._next_weights(None)

    def join(self) -> None:
        """Returns when all actors are there, so that none is timed while another one starts."""
        with self._pushed:
            self._joined += 1
            self.began = time.perf_counter()
            self._pushed.notify_all()
            if not self._pushed.wait_for(lambda: self._joined >= self._actors, START_SECONDS):
                raise ServiceError(
                    grpc.StatusCode.DEADLINE_EXCEEDED, "the other actors are missing"
                )

    def pull(self) -> tuple[int, Weights]:
        """The newest weights and their version. They are read-only: a new version is new memory,
        so nobody waits for anybody."""
        with self._pushed:
            return self._version, self._weights

    def push(self, experience: np.ndarray) -> None:
        """What an actor has seen."""
        with self._pushed:
            self._waiting.append(experience)
            self._pushed.notify_all()

    def report(self, figures: dict[str, Any]) -> None:
        """An actor has come to its end."""
        self.reports.append(figures)

    def train(self) -> None:
        """One step for so many batches, until ``end``; for a thread."""
        while True:
            with self._pushed:
                self._pushed.wait_for(lambda: self._ended or len(self._waiting) >= self._batches)
                if len(self._waiting) < self._batches:
                    return
                del self._waiting[: self._batches]  # "training"; their memory goes back to actors
            weights = self._next_weights(self._weights)
            with self._pushed:
                self._weights = weights
                self._version += 1

    def end(self) -> None:
        """Training ends when it has used what was pushed."""
        with self._pushed:
            self._ended = True
            self._pushed.notify_all()

    def _next_weights(self, old: Weights | None) -> Weights:
        """All of version n are n. Each tensor is computed straight into its place in the arena, and
        published: nobody writes to it any more."""
        made = {}
        for i in range(self._tensors):
            name = f"layer{i}"
            if self._in_arena:
                fresh = tensorwire.empty(self._elements, np.float32, timeout=None)
            else:
                fresh = np.empty(self._elements, np.float32)
            if old is None:
                fresh.fill(0)
            else:
                np.add(old[name], np.float32(1), out=fresh)
            made[name] = tensorwire.publish(fresh) if self._in_arena else fresh
        return made


def act(address: str, library: str, pulls: int, pushes: int, rollout: int) -> None:
    """An actor: pulls, plays and pushes, and reports how long that took."""
    channel: grpc.Channel
    if library == "grpcio":
        channel = grpc.insecure_channel(address, options=OPTIONS)
    else:
        channel = tensorwire.insecure_channel(address, options=OPTIONS)
    experience = np.zeros(max(rollout // 4, 1), np.float32)
    pull_seconds, read_seconds, push_seconds = [], [], []
    with channel:
        learner = service.client(Learner, channel, timeout=CALL_SECONDS, wait_for_ready=True)
        learner.join()
        for _ in range(pulls):
            begin = time.perf_counter()
            version, weights = learner.pull()  # the version before is kept until then
            pulled = time.perf_counter()
            for (
                name,
                tensor,
            ) in weights.items():  # "playing": every element is looked at
                if tensor.max() != version or tensor[0] != version:
                    raise SystemExit(f"{name} of version {version} is wrong")
            pull_seconds.append(pulled - begin)
            read_seconds.append(time.perf_counter() - pulled)
            for _ in range(pushes):
                begin = time.perf_counter()
                learner.push(experience)
                push_seconds.append(time.perf_counter() - begin)
        learner.report(
            {
                "pull": pull_seconds,
                "read": read_seconds,
                "push": push_seconds,
                "path": str(channel.path()) if isinstance(channel, tensorwire.Channel) else "grpc",
            }
        )


def serve(library: str, port: int, learner: Learner, workers: int) -> tuple[grpc.Server, str]:
    """A server that has started, and its address."""
    if library == "grpcio":
        server = grpc.server(ThreadPoolExecutor(workers), options=OPTIONS)
    else:
        server = tensorwire.server(ThreadPoolExecutor(workers), options=OPTIONS)
    service.add_to_server(learner, server)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    return server, address


def run(library: str, arguments: argparse.Namespace) -> float:
    """The whole job, with processes of their own for the actors; its seconds."""
    learner = Learner(
        arguments.weights, arguments.tensors, arguments.actors, library == "tensorwire"
    )
    server, address = serve(library, arguments.port, learner, max(arguments.actors, 4))
    trainer = threading.Thread(target=learner.train)
    trainer.start()
    actors: list[subprocess.Popen[bytes]] = []
    try:
        print(f"{library}: the learner listens on {address}", flush=True)
        if arguments.actors == 0:
            server.wait_for_termination()
        command = [sys.executable, __file__, "--join", address, "--library", library]
        for name in ("pulls", "pushes", "rollout"):
            command += [f"--{name}", str(getattr(arguments, name))]
        actors += [subprocess.Popen(command) for _ in range(arguments.actors)]
        codes = [actor.wait() for actor in actors]
        seconds = time.perf_counter() - learner.began
        if any(codes):
            raise SystemExit(f"an actor failed (exit codes {codes})")
        learner.end()
        trainer.join()
        show(library, learner, arguments, seconds)
        return seconds
    finally:
        for actor in actors:
            actor.kill()  # those that have ended do not mind
        learner.end()
        trainer.join()
        server.stop(None).wait()


def show(library: str, learner: Learner, arguments: argparse.Namespace, seconds: float) -> None:
    def of_all(name: str, part: slice) -> float:
        found = [took for report in learner.reports for took in report[name][part]]
        return statistics.median(found) if found else float("nan")

    first, later = slice(0, 1), slice(1, None)
    version, _ = learner.pull()
    print(f"{library}: calls went by {learner.reports[0]['path']}")
    for what, part in (("first pull", first), ("later pulls", later)):
        pull, read = of_all("pull", part), of_all("read", part)
        rate = arguments.weights / (pull + read) / 1e9
        print(
            f"{library}: {what}: {pull * 1e3:.1f} ms, and {read * 1e3:.1f} ms to read: "
            f"{rate:.2f} GB/s to an actor"
        )
    push = of_all("push", slice(None))
    print(f"{library}: push: {push * 1e3:.2f} ms, {arguments.rollout / push / 1e9:.2f} GB/s")
    print(f"{library}: {version} versions, {seconds:.2f} s in all", flush=True)


def size(text: str) -> int:
    """``64M``: bytes, with K, M or G of 1024."""
    power = " KMG".find(text[-1:].upper())
    return int(text[:-1]) << 10 * power if power > 0 else int(text)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--actors", type=int, default=4, help="processes that play (4)")
    parser.add_argument("--weights", type=size, default="256M", help="bytes of one version (256M)")
    parser.add_argument("--tensors", type=int, default=16, help="that the weights consist of (16)")
    parser.add_argument("--pulls", type=int, default=3, help="of each actor (3)")
    parser.add_argument("--pushes", type=int, default=4, help="after each pull (4)")
    parser.add_argument("--rollout", type=size, default="1800K", help="bytes of a push (1800K)")
    parser.add_argument(
        "--library",
        choices=("tensorwire", "grpcio", "both"),
        default="tensorwire",
        help="what carries the calls",
    )
    parser.add_argument("--port", type=int, default=0, help="of the learner (any)")
    parser.add_argument("--join", metavar="ADDRESS", help="be an actor of that learner")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.join:
        library, pulls, pushes = arguments.library, arguments.pulls, arguments.pushes
        act(arguments.join, library, pulls, pushes, arguments.rollout)
        return
    libraries = ("tensorwire", "grpcio") if arguments.library == "both" else (arguments.library,)
    seconds = [run(library, arguments) for library in libraries]
    if len(seconds) == 2:
        ours, theirs = seconds
        print(f"tensorwire took {ours:.2f} s and grpcio {theirs:.2f} s: {theirs / ours:.1f}x")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except grpc.RpcError as error:
        raise SystemExit(f"{error.code().name}: {error.details()}") from None
