# SPDX-License-Identifier: Apache-2.0
"""Horovod for TensorFlow 2: ``import tensorwire.horovod.tensorflow as hvd``."""

from tensorwire.horovod import common
from tensorwire.horovod.common import *  # noqa: F403
from tensorwire.horovod.tensorflow import elastic
from tensorwire.horovod.tensorflow.compression import Compression
from tensorwire.horovod.tensorflow.gradients import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)
from tensorwire.horovod.tensorflow.operations import (
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    broadcast,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from tensorwire.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]
__all__ += common.__all__
