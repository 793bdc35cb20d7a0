# SPDX-License-Identifier: Apache-2.0
"""The back end "tensorwire" of ``torch.distributed``, for tensors of the CPU and of CUDA devices.

Importing this registers it. Where PyTorch is 2.5 or newer that happens by itself, with PyTorch's
own import: ``torch.distributed.init_process_group("tensorwire")`` needs nothing else.
"""

from tensorwire.plugins import BuildError, PluginError, UnsupportedError
from tensorwire.torch.barrier import monitored_barrier
from tensorwire.torch.registration import register

__all__ = ["BuildError", "PluginError", "UnsupportedError", "monitored_barrier"]

register()
