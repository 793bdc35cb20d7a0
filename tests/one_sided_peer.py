# SPDX-License-Identifier: Apache-2.0
"""Another process that exposes shared memory and waits: ``python -m tests.one_sided_peer``.

It prints the address, session, secret and instance of its server, serves one link, exposes memory
there and prints the region. Then each line it reads is an order: ``echo N`` answers N signals,
``quit`` ends it.
"""

import sys
import threading

import numpy as np
from tests.linked import ALL, PATIENCE, known

from tensorwire import _core

WORDS = 1 << 16


def main() -> None:
    server = _core.Server()
    address = f"shm:{server.listen_local()}"
    session, secret = server.admit(_core.hello(), 1, PATIENCE)
    print(address, session.hex(), secret.hex(), server.instance.hex(), flush=True)
    calls: list[_core.ServerCall] = []
    arrived = threading.Event()

    def serve() -> None:
        while (fresh := server.next()) is not None:
            calls.extend(fresh)
            if fresh:
                arrived.set()

    thread = threading.Thread(target=serve, daemon=True)  # which an error here does not outlive
    thread.start()
    assert arrived.wait(PATIENCE)
    peer = calls[0].process()
    memory = np.frombuffer(memoryview(_core.SharedMemory(8 * WORDS)), np.uint64)
    region = peer.expose(memory.data, ALL)
    print(region.id, flush=True)
    for line in sys.stdin:
        order, *arguments = line.split()
        if order == "quit":
            break
        theirs, turns = map(int, arguments)
        known(peer, theirs)
        for turn in range(1, turns + 1):
            region.wait(0, turn, PATIENCE)
            peer.write_signal(theirs, 8, b"", theirs, 0, turn)
        print("done", flush=True)
    server.close()
    thread.join()


if __name__ == "__main__":
    main()
