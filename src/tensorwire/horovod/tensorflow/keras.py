# SPDX-License-Identifier: Apache-2.0
"""``horovod.tensorflow.keras``, which is ``tensorwire.horovod.keras`` by another name."""

from tensorwire.horovod.keras import *  # noqa: F403
from tensorwire.horovod.keras import __all__ as __all__
