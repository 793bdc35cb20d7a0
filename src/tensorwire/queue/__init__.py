# SPDX-License-Identifier: Apache-2.0
"""Bounded queues of trees of tensors between processes: many producers, many consumers.

One process serves a queue, others connect to it. An item is handed to one consumer at most once.
"""

from tensorwire.queue.client import QueueClient, connect
from tensorwire.queue.errors import (
    BudgetError,
    ClosedError,
    EmptyError,
    FullError,
    NoQueueError,
    QueueError,
    ServerLostError,
    TooLargeError,
)
from tensorwire.queue.local import Queue, serve
from tensorwire.queue.store import Stats

__all__ = [
    "BudgetError",
    "ClosedError",
    "EmptyError",
    "FullError",
    "NoQueueError",
    "Queue",
    "QueueClient",
    "QueueError",
    "ServerLostError",
    "Stats",
    "TooLargeError",
    "connect",
    "serve",
]
