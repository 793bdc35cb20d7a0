# SPDX-License-Identifier: Apache-2.0
"""Ray: a method of an actor of this host, called with an array that goes into the object store with
each call (ordinary) or was put there before (published). The client's process is the driver of a
cluster that the server's process starts, on loopback, without dashboard and usage statistics.
Messages are pickled, and calls pass by gRPC."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, Final

from tensorwire import signals
from tensorwire.bench.harness.work import Work, answer, payload
from tensorwire.bench.suites.rpc.contender import Call, Client, Contender, Server, ready

ACTOR: Final = "receiver"
NAMESPACE: Final = "tensorwire-bench"
STORE_BYTES: Final = 4 << 30
"""Of shared memory at most, of which objects that are in use take a part."""
_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}
"""Nothing is told to anybody. The second one keeps all of Ray's ports to 127.0.0.1: on Linux it
listens at all interfaces else, whatever address it is given."""


class Receiver:
    """What the actor does. Arrays that it is given lie in the object store."""

    def __init__(self) -> None:
        self.work = Work("request", 0)
        self.reply: Any = None

    def pid(self) -> int:
        return os.getpid()

    def prepare(self, work: Work) -> None:
        import ray

        self.work = work
        array = payload(work.size if work.case == "pull" else 0)
        self.reply = [ray.put(array)] if work.origin == "published" else array

    def take(self, array: Any) -> int:
        return answer(array, self.work.reads)

    def give(self) -> Any:
        """The array, or the reference to it in a list, by which it is not resolved."""
        return self.reply


class _Server(Server):
    def __init__(self, actor: Any, address: str) -> None:
        self.actor = actor
        self.address = address

    def prepare(self, work: Work) -> None:
        import ray

        ray.get(self.actor.prepare.remote(work))

    def pids(self) -> list[int]:
        import ray

        return [os.getpid(), ray.get(self.actor.pid.remote())]


class _Client(Client):
    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def path(self) -> str:
        return "shm"  # where the only object store of a host is

    def note(self) -> str:
        return "CPU without that of Ray's own processes"

    def call(self, work: Work) -> AbstractContextManager[Call]:
        import ray

        get, actor, reads = ray.get, self.actor, work.reads
        published = work.origin == "published"
        if work.case == "pull":

            def pull() -> int:
                found = get(actor.give.remote())
                return answer(get(found[0]) if published else found, reads)

            return ready(pull)
        array: Any = payload(work.size)
        message = ray.put(array) if published else array
        return ready(lambda: int(get(actor.take.remote(message))))


@contextmanager
def joined(token: str, **options: Any) -> Iterator[None]:
    """token: without which Ray's ports do nothing for anybody; else it would keep one in the user's
    home."""
    os.environ.update(_SETTINGS)
    os.environ["RAY_AUTH_TOKEN"] = token
    import ray

    ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", **options)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def cluster(token: str) -> Iterator[str]:
    """Starts one of this host, in which this process then is; yields its address."""
    with (
        signals.folder("tensorwire-bench-") as folder,
        joined(
            token,
            address="local",
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=folder,
        ),
    ):
        import ray

        yield str(ray.get_runtime_context().gcs_address)


class Ray(Contender):
    transports = ("shm",)
    packages = ("ray",)
    cases = frozenset({"request", "pull"})
    origins = frozenset({"ordinary", "published"})
    concurrent = False

    def viable(self, transport: str) -> str | None:
        return None if find_spec("ray") else "Ray is not installed: pip install ray"

    @contextmanager
    def serve(self, transport: str) -> Iterator[Server]:
        token = secrets.token_hex(32)
        with cluster(token) as address:
            import ray

            actor = ray.remote(Receiver).options(name=ACTOR).remote()
            yield _Server(actor, f"{token}@{address}")

    @contextmanager
    def connect(self, transport: str, address: str) -> Iterator[Client]:
        token, _, cluster = address.partition("@")
        with joined(token, address=cluster):
            import ray

            yield _Client(ray.get_actor(ACTOR))
