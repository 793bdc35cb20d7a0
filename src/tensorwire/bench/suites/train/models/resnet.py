# SPDX-License-Identifier: Apache-2.0
"""Residual networks with bottleneck blocks (He et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorwire.bench.suites.train.models.layers import Network, Tensor, max_pool, spatial_mean


def resnet(net: Network, x: Tensor, depths: Sequence[int]) -> Tensor:
    """depths: blocks at each of the four resolutions."""
    x = max_pool(net.conv(x, 64, 7, 2, norm="gamma"), 3, 2, "SAME")
    for stage, depth in enumerate(depths):
        for block in range(depth):
            x = bottleneck(net, x, 64 << stage, 2 if stage and not block else 1)
    return spatial_mean(x)


def bottleneck(net: Network, x: Tensor, filters: int, stride: int) -> Tensor:
    shortcut = x
    if int(x.shape[-1]) != 4 * filters:
        shortcut = net.conv(x, 4 * filters, 1, stride, norm="gamma", relu=False)
    x = net.conv(x, filters, 1, stride, norm="gamma")
    x = net.conv(x, filters, 3, norm="gamma")
    x = net.conv(x, 4 * filters, 1, norm="gamma", relu=False)
    return tf.nn.relu(x + shortcut)


def resnet50(net: Network, x: Tensor) -> Tensor:
    return resnet(net, x, (3, 4, 6, 3))


def resnet101(net: Network, x: Tensor) -> Tensor:
    return resnet(net, x, (3, 4, 23, 3))


def resnet152(net: Network, x: Tensor) -> Tensor:
    return resnet(net, x, (3, 8, 36, 3))
