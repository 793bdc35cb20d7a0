# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from tensorwire.horovod.asking import Sum
from tensorwire.horovod.process import size
from tensorwire.horovod.torch.operations import (
    allgather_async,
    allreduce_async_,
    synchronize,
)

_BatchNorm: Any = torch.nn.modules.batchnorm._BatchNorm  # typed or not, as PyTorch is installed
_Function: Any = torch.autograd.Function


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc]
    """``torch.nn.BatchNorm1d`` to ``3d``, that is trained as if the batches of all ranks were one:
    statistics and gradients of the input are those of that batch. Gradients of ``weight`` and
    ``bias`` are this rank's share of them, for the optimizer to add up. ``(N, C, ...)``; batches
    may have different sizes."""

    def _check_input_dim(self, tensor: Any) -> None:
        if tensor.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, and got {tensor.dim()}")

    def forward(self, input: Any) -> Any:
        if not self.training or size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        momentum = self.momentum
        if self.track_running_stats:
            self.num_batches_tracked += 1
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        return _Normalize.apply(
            input,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.eps,
            momentum,
        )


def _shaped(vector: Any, like: Any) -> Any:
    """One number for each channel, along the second axis."""
    return vector.reshape(1, -1, *[1] * (like.dim() - 2))


class _Normalize(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        context: Any,
        given: Any,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        eps: float,
        momentum: float,
    ) -> Any:
        # As accurate as float32 also where the tensor is not.
        wide = given.float() if given.dtype in (torch.float16, torch.bfloat16) else given
        axes = [axis for axis in range(wide.dim()) if axis != 1]
        mine = wide.numel() // wide.shape[1]
        mean = wide.sum(axes) / max(mine, 1)
        squares = (wide - _shaped(mean, wide)).square().sum(axes)
        counts = torch.full_like(mean, mine)
        found = torch.stack([counts, mean, squares]).unsqueeze(0)
        counts, means, squares = synchronize(allgather_async(found)).unbind(1)
        count = counts.sum(0)
        mean = (counts * means).sum(0) / count
        squares = (squares + counts * (means - mean).square()).sum(0)
        scale = (squares / count + eps).rsqrt()
        if running_mean is not None:
            unbiased = squares / (count - 1)
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        context.save_for_backward(given, weight, mean, scale, count)
        normal = (wide - _shaped(mean, wide)) * _shaped(scale, wide)
        if weight is not None:
            normal = normal * _shaped(weight, wide) + _shaped(bias, wide)
        return normal.to(given.dtype)

    @staticmethod
    def backward(context: Any, gradient: Any) -> tuple[Any, ...]:
        given, weight, mean, scale, count = context.saved_tensors
        wide = given.to(mean.dtype)
        upstream = gradient.to(mean.dtype)
        axes = [axis for axis in range(wide.dim()) if axis != 1]
        normal = (wide - _shaped(mean, wide)) * _shaped(scale, wide)
        of_bias = upstream.sum(axes)
        of_weight = (upstream * normal).sum(axes)
        sums = torch.stack([of_bias, of_weight])
        synchronize(allreduce_async_(sums, op=Sum))
        through = _shaped(sums[0] / count, wide) + normal * _shaped(sums[1] / count, wide)
        factor = scale if weight is None else scale * weight
        of_input = ((upstream - through) * _shaped(factor, wide)).to(given.dtype)
        if weight is None:
            return of_input, None, None, None, None, None, None
        return (
            of_input,
            of_weight.to(weight.dtype),
            of_bias.to(weight.dtype),
            None,
            None,
            None,
            None,
        )
