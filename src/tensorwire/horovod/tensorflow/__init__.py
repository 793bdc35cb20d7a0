# SPDX-License-Identifier: Apache-2.0
"""Horovod for TensorFlow 2: ``import tensorwire.horovod.tensorflow as hvd``."""

from tensorwire.horovod import common
from tensorwire.horovod.common import *  # noqa: F403
from tensorwire.horovod.tensorflow import elastic
from tensorwire.horovod.tensorflow.compression import Compression
from tensorwire.horovod.tensorflow.gradients import DistributedGradientTape, DistributedOptimizer
from tensorwire.horovod.tensorflow.operations import (
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    broadcast,
    broadcast_object,
    broadcast_variables,
    grouped_allreduce,
    reducescatter,
)
from tensorwire.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "elastic",
    "grouped_allreduce",
    "reducescatter",
]
__all__ += common.__all__
