# SPDX-License-Identifier: Apache-2.0
"""``tensorwire.horovod.tensorflow.keras.elastic`` by the other name that Horovod has for it."""

from tensorwire.horovod.tensorflow.keras import elastic
from tensorwire.horovod.tensorflow.keras.elastic import *  # noqa: F403

__all__: list[str] = []
__all__ += elastic.__all__
