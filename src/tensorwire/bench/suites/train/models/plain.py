# SPDX-License-Identifier: Apache-2.0
"""Models that are one chain of layers. Each returns the features below the last, linear layer."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwire.bench.suites.train.models.layers import Network, Tensor, average_pool, max_pool


def trivial(net: Network, x: Tensor) -> Tensor:
    """One unit, then 4096: next to nothing to compute, 16 MiB to exchange."""
    x = net.dense(x, 1)
    return net.dense(x, 4096)


def softmax(net: Network, x: Tensor) -> Tensor:
    """Softmax regression: the last layer alone."""
    return x


def fcn5(net: Network, x: Tensor) -> Tensor:
    """Five fully connected layers: 204 MiB of parameters for images of 784 pixels."""
    for _ in range(4):
        x = net.dense(x, 4096)
    return x


def lenet(net: Network, x: Tensor) -> Tensor:
    """LeCun et al. 1998, in the wider form that is customary for MNIST."""
    x = max_pool(net.conv(x, 32, 5), 2, 2)
    x = max_pool(net.conv(x, 64, 5), 2, 2)
    return net.dense(x, 512)


def cifar10_quick(net: Network, x: Tensor) -> Tensor:
    """Caffe's small network for CIFAR-10, with one fully connected layer."""
    x = max_pool(net.conv(x, 32, 5), 3, 2, "SAME")
    x = average_pool(net.conv(x, 32, 5), 3, 2, "SAME")
    return average_pool(net.conv(x, 64, 5), 3, 2, "SAME")


def alexnet(net: Network, x: Tensor) -> Tensor:
    """Krizhevsky 2014 ("One weird trick")."""
    x = max_pool(net.conv(x, 64, 11, 4, "VALID"), 3, 2)
    x = max_pool(net.conv(x, 192, 5), 3, 2)
    x = net.conv(x, 384, 3)
    x = net.conv(x, 384, 3)
    x = max_pool(net.conv(x, 256, 3), 3, 2)
    x = net.dropout(net.dense(x, 4096))
    return net.dropout(net.dense(x, 4096))


def overfeat(net: Network, x: Tensor) -> Tensor:
    """Sermanet et al. 2013, the fast model."""
    x = max_pool(net.conv(x, 96, 11, 4, "VALID"), 2, 2)
    x = max_pool(net.conv(x, 256, 5, 1, "VALID"), 2, 2)
    x = net.conv(x, 512, 3)
    x = net.conv(x, 1024, 3)
    x = max_pool(net.conv(x, 1024, 3), 2, 2)
    x = net.dropout(net.dense(x, 3072))
    return net.dropout(net.dense(x, 4096))


def vgg(net: Network, x: Tensor, depths: Sequence[int]) -> Tensor:
    """Simonyan and Zisserman 2014. depths: convolutions at each of the five resolutions."""
    for depth, filters in zip(depths, (64, 128, 256, 512, 512), strict=True):
        for _ in range(depth):
            x = net.conv(x, filters, 3)
        x = max_pool(x, 2, 2)
    x = net.dropout(net.dense(x, 4096))
    return net.dropout(net.dense(x, 4096))


def vgg11(net: Network, x: Tensor) -> Tensor:
    return vgg(net, x, (1, 1, 2, 2, 2))


def vgg16(net: Network, x: Tensor) -> Tensor:
    return vgg(net, x, (2, 2, 3, 3, 3))


def vgg19(net: Network, x: Tensor) -> Tensor:
    return vgg(net, x, (2, 2, 4, 4, 4))
