# SPDX-License-Identifier: Apache-2.0
"""Horovod for Keras: ``import tensorwire.horovod.tensorflow.keras as hvd``. ``model.compile`` needs
``jit_compile=False``."""

from tensorwire.horovod import common
from tensorwire.horovod.common import *  # noqa: F403
from tensorwire.horovod.tensorflow.compression import Compression
from tensorwire.horovod.tensorflow.gradients import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
)
from tensorwire.horovod.tensorflow.keras import callbacks, elastic
from tensorwire.horovod.tensorflow.keras.operations import (
    allgather,
    allreduce,
    broadcast,
    reducescatter,
)
from tensorwire.horovod.tensorflow.operations import (
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
)
from tensorwire.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "reducescatter",
]
__all__ += common.__all__
