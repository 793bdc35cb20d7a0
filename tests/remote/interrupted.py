# SPDX-License-Identifier: Apache-2.0
"""A program that puts into a channel, and is interrupted over and over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from tests.alarms import alarmed
from tests.remote.pairs import PATIENCE, pair

from tensorwire import remote
from tensorwire.tensors import TensorSpec


def main(argument: Any) -> None:
    """Says how often, which numbers a ``put`` has put that returned, and what has come."""
    transport, static, items, rounds, latest = argument
    spec = TensorSpec((4 if static else None, 5), "float32")
    put: list[int] = []
    number = 0

    with (
        pair(transport) as there,
        remote.receiver(there.host, "c", spec, depth=3) as receiver,
        remote.sender(there.device, "c") as sender,
        ThreadPoolExecutor(1) as pool,
    ):

        def receive() -> list[set[float]]:
            got: list[set[float]] = []
            with suppress(remote.ChannelClosedError):
                while True:
                    got.append({*receiver.get(timeout=PATIENCE).ravel().tolist()})
            return got

        def put_next() -> None:
            nonlocal number
            number += 1
            tensor = np.full((4 if static else number % 7 + 1, 5), number, np.float32)
            put.extend([number for _ in map(sender.put, (tensor,))])

        got = pool.submit(receive)
        came = alarmed(rounds, put_next, lambda: len(put) == items, latest)
        sender.close(PATIENCE)
        for said in (came, put, [[*each] for each in got.result(PATIENCE)]):
            print(said, flush=True)
