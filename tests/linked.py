# SPDX-License-Identifier: Apache-2.0
"""A link of the binding, for tests of what rides on it."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tensorwire import _core

ALL = _core.MAY_READ | _core.MAY_WRITE | _core.MAY_UPDATE
PATIENCE = 60.0


@dataclass
class Ends:
    """A link and the server's call on it: each end's view of the other."""

    here: _core.Peer
    there: _core.Peer
    link: _core.Peer


@contextlib.contextmanager
def linked(transport: str) -> Iterator[Ends]:
    """Both ends in this process."""
    server = _core.Server()
    address = (
        f"shm:{server.listen_local()}"
        if transport == "shm"
        else f"tcp:127.0.0.1:{server.listen_tcp('127.0.0.1', 0)}"
    )
    calls: list[_core.ServerCall] = []
    arrived = threading.Event()

    def serve() -> None:
        while (fresh := server.next()) is not None:
            calls.extend(fresh)
            if fresh:
                arrived.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        session, secret = server.admit(_core.hello(), 1, 30.0)
        link = _core.connect(
            address, session, secret, server.instance, _core.hello(), timeout=PATIENCE
        )
        call = link.start("/t/Hold", None, None)
        assert arrived.wait(PATIENCE)
        yield Ends(link.share(), calls[0].process(), link)
        call.cancel()
        link.close()
    finally:
        server.close()
        thread.join()


def known(peer: _core.Peer, region: int) -> tuple[int, int]:
    """The peer's region, once its announcement has arrived."""
    deadline = threading.Event()
    for _ in range(60_000):
        if (facts := peer.region(region)) is not None:
            return facts
        deadline.wait(0.001)
    raise AssertionError(f"region {region} was never announced")
