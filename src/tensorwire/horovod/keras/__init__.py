# SPDX-License-Identifier: Apache-2.0
"""Horovod for Keras: ``import tensorwire.horovod.keras as hvd``. ``model.compile`` needs
``jit_compile=False``."""

from tensorwire.horovod.asking import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    barrier,
    join,
    nccl_built,
    none_built,
)
from tensorwire.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from tensorwire.horovod.keras import callbacks, elastic
from tensorwire.horovod.process import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from tensorwire.horovod.tensorflow.compression import Compression
from tensorwire.horovod.tensorflow.gradients import DistributedOptimizer
from tensorwire.horovod.tensorflow.operations import (
    allgather,
    allreduce,
    broadcast,
    broadcast_object,
    broadcast_variables,
    reducescatter,
)
from tensorwire.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

ccl_built = cuda_built = ddl_built = gloo_built = gloo_enabled = none_built
mpi_built = mpi_enabled = mpi_threads_supported = rocm_built = none_built

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
