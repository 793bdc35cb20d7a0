# SPDX-License-Identifier: Apache-2.0
"""GoogLeNet (Szegedy et al. 2014), Inception v3 (2015) and Inception v4 (2016).

A module is written as its branches; a branch is its convolutions, each (filters, size), after a
pooling or not. None of them has the auxiliary classifier.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwire.bench.suites.train.models.layers import (
    Network,
    Tensor,
    average_pool,
    join,
    max_pool,
    spatial_mean,
)

Size = int | tuple[int, int]
Convolutions = Sequence[tuple[int, Size]]

ROW, COLUMN = (1, 7), (7, 1)


def chain(
    net: Network, x: Tensor, convolutions: Convolutions, norm: str = "beta", reduce: bool = False
) -> Tensor:
    """reduce: the last convolution halves the resolution, without padding."""
    *first, last = convolutions
    for filters, size in first:
        x = net.conv(x, filters, size, norm=norm)
    return net.conv(x, *last, 2, "VALID", norm) if reduce else net.conv(x, *last, norm=norm)


def googlenet(net: Network, x: Tensor) -> Tensor:
    def module(x: Tensor, one: int, *others: int) -> Tensor:
        three_in, three, five_in, five, pooled = others
        return join(
            [
                chain(net, x, [(one, 1)], "bias"),
                chain(net, x, [(three_in, 1), (three, 3)], "bias"),
                chain(net, x, [(five_in, 1), (five, 5)], "bias"),
                chain(net, max_pool(x, 3, 1, "SAME"), [(pooled, 1)], "bias"),
            ]
        )

    x = max_pool(net.conv(x, 64, 7, 2), 3, 2, "SAME")
    x = max_pool(chain(net, x, [(64, 1), (192, 3)], "bias"), 3, 2, "SAME")
    x = module(x, 64, 96, 128, 16, 32, 32)
    x = max_pool(module(x, 128, 128, 192, 32, 96, 64), 3, 2, "SAME")
    x = module(x, 192, 96, 208, 16, 48, 64)
    x = module(x, 160, 112, 224, 24, 64, 64)
    x = module(x, 128, 128, 256, 24, 64, 64)
    x = module(x, 112, 144, 288, 32, 64, 64)
    x = max_pool(module(x, 256, 160, 320, 32, 128, 128), 3, 2, "SAME")
    x = module(x, 256, 160, 320, 32, 128, 128)
    x = module(x, 384, 192, 384, 48, 128, 128)
    return spatial_mean(x)


def inception3(net: Network, x: Tensor) -> Tensor:
    x = net.conv(x, 32, 3, 2, "VALID", "beta")
    x = net.conv(x, 32, 3, 1, "VALID", "beta")
    x = max_pool(net.conv(x, 64, 3, norm="beta"), 3, 2)
    x = net.conv(x, 80, 1, 1, "VALID", "beta")
    x = max_pool(net.conv(x, 192, 3, 1, "VALID", "beta"), 3, 2)
    for pooled in (32, 64, 64):
        x = join(
            [
                chain(net, x, [(64, 1)]),
                chain(net, x, [(48, 1), (64, 5)]),
                chain(net, x, [(64, 1), (96, 3), (96, 3)]),
                chain(net, average_pool(x, 3, 1, "SAME"), [(pooled, 1)]),
            ]
        )
    x = join(
        [
            chain(net, x, [(384, 3)], reduce=True),
            chain(net, x, [(64, 1), (96, 3), (96, 3)], reduce=True),
            max_pool(x, 3, 2),
        ]
    )
    for n in (128, 160, 160, 192):
        x = join(
            [
                chain(net, x, [(192, 1)]),
                chain(net, x, [(n, 1), (n, ROW), (192, COLUMN)]),
                chain(net, x, [(n, 1), (n, COLUMN), (n, ROW), (n, COLUMN), (192, ROW)]),
                chain(net, average_pool(x, 3, 1, "SAME"), [(192, 1)]),
            ]
        )
    x = join(
        [
            chain(net, x, [(192, 1), (320, 3)], reduce=True),
            chain(net, x, [(192, 1), (192, ROW), (192, COLUMN), (192, 3)], reduce=True),
            max_pool(x, 3, 2),
        ]
    )
    for pool in (average_pool, max_pool):
        one = chain(net, x, [(320, 1)])
        three = chain(net, x, [(384, 1)])
        threes = split(net, three, 384)
        double = chain(net, x, [(448, 1), (384, 3)])
        doubles = split(net, double, 384)
        x = join([one, *threes, *doubles, chain(net, pool(x, 3, 1, "SAME"), [(192, 1)])])
    return spatial_mean(x)


def inception4(net: Network, x: Tensor) -> Tensor:
    x = inception4_stem(net, x)
    for _ in range(4):
        x = join(
            [
                chain(net, average_pool(x, 3, 1, "SAME"), [(96, 1)]),
                chain(net, x, [(96, 1)]),
                chain(net, x, [(64, 1), (96, 3)]),
                chain(net, x, [(64, 1), (96, 3), (96, 3)]),
            ]
        )
    x = join(
        [
            max_pool(x, 3, 2),
            chain(net, x, [(384, 3)], reduce=True),
            chain(net, x, [(192, 1), (224, 3), (256, 3)], reduce=True),
        ]
    )
    for _ in range(7):
        x = join(
            [
                chain(net, average_pool(x, 3, 1, "SAME"), [(128, 1)]),
                chain(net, x, [(384, 1)]),
                chain(net, x, [(192, 1), (224, ROW), (256, COLUMN)]),
                chain(net, x, [(192, 1), (192, ROW), (224, COLUMN), (224, ROW), (256, COLUMN)]),
            ]
        )
    x = join(
        [
            max_pool(x, 3, 2),
            chain(net, x, [(192, 1), (192, 3)], reduce=True),
            chain(net, x, [(256, 1), (256, ROW), (320, COLUMN), (320, 3)], reduce=True),
        ]
    )
    for _ in range(3):
        pooled = chain(net, average_pool(x, 3, 1, "SAME"), [(256, 1)])
        one = chain(net, x, [(256, 1)])
        threes = split(net, chain(net, x, [(384, 1)]), 256)
        double = chain(net, x, [(384, 1), (448, (1, 3)), (512, (3, 1))])
        x = join([pooled, one, *threes, *split(net, double, 256)])
    return net.dropout(spatial_mean(x), 0.8)


def inception4_stem(net: Network, x: Tensor) -> Tensor:
    x = net.conv(x, 32, 3, 2, "VALID", "beta")
    x = net.conv(x, 32, 3, 1, "VALID", "beta")
    x = net.conv(x, 64, 3, norm="beta")
    x = join([max_pool(x, 3, 2), net.conv(x, 96, 3, 2, "VALID", "beta")])
    short = net.conv(net.conv(x, 64, 1, norm="beta"), 96, 3, 1, "VALID", "beta")
    long = chain(net, x, [(64, 1), (64, ROW), (64, COLUMN)])
    x = join([short, net.conv(long, 96, 3, 1, "VALID", "beta")])
    return join([net.conv(x, 192, 3, 2, "VALID", "beta"), max_pool(x, 3, 2)])


def split(net: Network, x: Tensor, filters: int) -> list[Tensor]:
    """A 3x3 convolution as a row beside a column."""
    return [net.conv(x, filters, size, norm="beta") for size in ((1, 3), (3, 1))]
