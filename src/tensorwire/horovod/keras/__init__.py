# SPDX-License-Identifier: Apache-2.0
"""``tensorwire.horovod.tensorflow.keras`` by the other name that Horovod has for it:
``import tensorwire.horovod.keras as hvd``."""

from tensorwire.horovod.tensorflow import keras
from tensorwire.horovod.tensorflow.keras import *  # noqa: F403

__all__: list[str] = []
__all__ += keras.__all__
