# SPDX-License-Identifier: Apache-2.0
"""Model weights from trainers to those who use them: versions that other processes pull, whole or
not at all, resharded on the way, and without a copy on one host."""

from tensorwire.weights.errors import (
    ChecksumError,
    DisagreementError,
    PublisherLostError,
    PullTimeoutError,
    WeightsError,
)
from tensorwire.weights.planning import Part, Plan, PlanError, Shard, plan
from tensorwire.weights.publisher import PublicationStats, Publisher
from tensorwire.weights.subscriber import Subscriber, Version, View

__all__ = [
    "ChecksumError",
    "DisagreementError",
    "Part",
    "Plan",
    "PlanError",
    "PublicationStats",
    "Publisher",
    "PublisherLostError",
    "PullTimeoutError",
    "Shard",
    "Subscriber",
    "Version",
    "View",
    "WeightsError",
    "plan",
]
