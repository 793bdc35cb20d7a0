# SPDX-License-Identifier: Apache-2.0
"""What travels instead of gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class _None:
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


class _Float16:
    """Floats in 16 bits; the context is the type that they had."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        if tensor.dtype.is_floating:
            return tf.cast(tensor, tf.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor if context is None else tf.cast(tensor, context)


class Compression:
    none = _None
    fp16 = _Float16
