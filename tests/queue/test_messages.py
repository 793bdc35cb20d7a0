# SPDX-License-Identifier: Apache-2.0
"""What goes in one message, and what is heard without waiting for one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from tests.queue.conftest import LIMIT, until

from tensorwire import queue, transports


def test_who_never_waits_hears_what_has_come(serve: Any) -> None:
    served = serve()
    with served.connect(prefetch=4) as consumer, served.connect() as producer:
        for number in range(3):
            producer.put(number)
        producer.flush(LIMIT)
        got: list[Any] = []

        def polled() -> bool:
            with suppress(queue.EmptyError):
                got.append(consumer.get(timeout=0))
            return len(got) == 3

        until(polled)
        assert got == [0, 1, 2]

        def flushed() -> bool:
            with suppress(queue.FullError):
                producer.flush(timeout=0)
                return True
            return False

        producer.put(3)
        until(flushed)


def test_who_puts_without_waiting_hears_of_room(serve: Any) -> None:
    served = serve(capacity=4)
    with served.connect() as first, served.connect() as second:

        def put(number: int) -> bool:
            with suppress(queue.FullError):
                first.put(number, timeout=0)
                return True
            return False

        until(lambda: put(0))
        for number in range(1, 4):
            second.put(number, timeout=LIMIT)
        second.flush(LIMIT)
        until(lambda: not put(4))  # it had heard of more room than there is now
        while served.own.get(LIMIT) != 4:
            pass
        until(lambda: put(5))
        while served.own.get(LIMIT) != 5:
            pass


def test_items_of_many_arrays_go_in_several_messages(serve: Any) -> None:
    """A message has so many segments at most, however small they are."""
    served = serve(capacity=1 << 14)
    item = [np.full(1, number, np.uint8) for number in range(200)]
    with served.connect() as client:
        client.put_batch([item] * 400, LIMIT)
        found: list[Any] = []
        while len(found) < 400:
            found += client.get_batch(4096, LIMIT)
        assert len(found) == 400
        assert all(len(each) == 200 and each[199][0] == 199 for each in found)
        with pytest.raises(queue.TooLargeError, match="in parts"):
            client.put([item[0]] * 65_534)
        assert client.stats().lost == 0


def test_an_item_of_as_many_arrays_as_a_message_takes(serve: Any) -> None:
    served = serve()
    served.own.put([np.zeros(1, np.uint8)] * 65_533)
    with served.connect() as client:
        if transports.is_local(client._peer.transport):  # an emulated RDMA device takes a minute
            assert len(client.get(LIMIT)) == 65_533
