# SPDX-License-Identifier: Apache-2.0
"""The process that gets, which starts those that put: ``python -m
tensorwire.bench.suites.queue.agent``.

Arguments: the contender, the transport, bytes of an item, how many producers, the path of the
bench's unix socket.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from array import array

from tensorwire.bench.harness import cpu
from tensorwire.bench.harness.control import conversation
from tensorwire.bench.harness.measure import (
    WARM_UP_SHARE,
    Visit,
    WrongAnswerError,
    quantile,
)
from tensorwire.bench.harness.work import Array, checksum, payload
from tensorwire.bench.suites.queue.contender import Consumer, find
from tensorwire.bench.suites.queue.producers import END, Producers, producing

DEPTH_BYTES = 64 << 20
DEPTHS = (4, 1024)
"""A queue has room for so many bytes of items, and for so many items, at least and at most."""
COMPARED = 64 << 10
"""Bytes up to which an item is compared as a whole; larger ones are summed up."""


class Reader:
    """Gets items, and reads all of each."""

    def __init__(self, consumer: Consumer, size: int) -> None:
        self._get = consumer.get
        expected = payload(size)
        self._elements = expected.size
        self._bytes = expected.tobytes() if size <= COMPARED else None
        self._sum = checksum(expected)

    def read(self) -> bool:
        """False: it was the last of a producer. Raises WrongAnswerError."""
        item: Array = self._get()
        if item.size != self._elements:
            if item.size == END.size:
                return False
            raise WrongAnswerError(f"an item of {item.nbytes} bytes came")
        if self._bytes is not None:
            right = item.tobytes() == self._bytes
        else:
            right = checksum(item) == self._sum
        if not right:
            raise WrongAnswerError("an item came that was never put")
        return True


def visit(
    reader: Reader, producers: Producers, seconds: float, pids: list[int], path: str
) -> Visit:
    clock = time.perf_counter_ns
    producers.start()
    end = clock() + int(seconds * WARM_UP_SHARE * 1e9)
    while clock() < end:
        reader.read()
    durations = array("q")
    used = cpu.seconds(pids)
    before = begun = clock()
    end = begun + int(seconds * 1e9)
    while before < end:
        reader.read()
        after = clock()
        durations.append(after - before)
        before = after
    used = cpu.seconds(pids) - used
    producers.stop()
    rest = len(producers.pids)
    while rest:
        rest -= not reader.read()
    ordered = sorted(durations)
    return Visit(
        quantile(ordered, 0.5) / 1e3,
        quantile(ordered, 0.99) / 1e3,
        len(ordered),
        (before - begun) / 1e9,
        used,
        path,
    )


def main(arguments: list[str]) -> None:
    name, transport, size, count, path = arguments
    nbytes = int(size)
    depth = min(max(DEPTH_BYTES // nbytes, DEPTHS[0]), DEPTHS[1])
    context = multiprocessing.get_context("spawn")
    with (
        conversation(path) as control,
        find(name).serve(transport, context, depth, nbytes) as consumer,
        producing(context, int(count), name, transport, consumer.handle, nbytes) as producers,
    ):
        reader = Reader(consumer, nbytes)
        control.send({"role": "consumer", "path": consumer.path, "note": consumer.note})
        while message := control.receive():
            pids = [os.getpid(), *producers.pids]
            found = visit(reader, producers, message["seconds"], pids, consumer.path)
            control.send(found.to_json())


if __name__ == "__main__":
    main(sys.argv[1:])
