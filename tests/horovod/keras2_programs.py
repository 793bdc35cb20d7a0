# SPDX-License-Identifier: Apache-2.0
"""Those with TensorFlow in processes that have imported ``tf_keras``: for TF_USE_LEGACY_KERAS=1."""

from tests.horovod.tensorflow_programs import main

__all__ = ["main"]
