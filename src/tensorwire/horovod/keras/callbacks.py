# SPDX-License-Identifier: Apache-2.0
"""``tensorwire.horovod.tensorflow.keras.callbacks`` by the other name that Horovod has for it."""

from tensorwire.horovod.tensorflow.keras import callbacks
from tensorwire.horovod.tensorflow.keras.callbacks import *  # noqa: F403

__all__: list[str] = []
__all__ += callbacks.__all__
