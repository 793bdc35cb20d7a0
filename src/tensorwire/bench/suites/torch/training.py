# SPDX-License-Identifier: Apache-2.0
"""A model, and its steps by each of PyTorch's ways to train one on several ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tensorwire.bench.harness.measure import WrongAnswerError

LAYERS: Final = 16
RATE: Final = 0.1
"""Of learning, in the step that is checked."""
STILL: Final = 1e-6
"""... and in those that are timed: the model stays what it is, however long that takes."""
AGREES: Final = 1e-2
"""How far a change of weights may be from the one that it should be, as a part of it: sums are
rounded in another order."""
TRIES: Final = 5
_TRIED_SECONDS: Final = 0.1
"""Of a step at most, where longer ones are told from it."""


def width_of(size: int) -> int:
    """Of each of ``LAYERS`` square layers that have about so many bytes of float32 together."""
    return max(8, round(math.sqrt(size / 4 / LAYERS) / 8) * 8)


def whole(size: int) -> int:
    """The bytes of the weights, and so of the gradients, that come next to ``size``."""
    return 4 * LAYERS * width_of(size) ** 2


def model_of(size: int) -> Any:
    """The same for all ranks: linear layers without biases, and ReLU between them."""
    import torch

    width = width_of(size)
    random = torch.Generator().manual_seed(1)
    layers: list[Any] = []
    for _ in range(LAYERS):
        linear = torch.nn.Linear(width, width, bias=False)
        with torch.no_grad():
            linear.weight.normal_(0, (2 / width) ** 0.5, generator=random)
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def batch_of(size: int, rows: int, rank: int) -> Any:
    import torch

    random = torch.Generator().manual_seed(100 + rank)
    return torch.randn(rows, width_of(size), generator=random)


@dataclass(frozen=True)
class Training:
    """model: as it is trained; optimizer: of it; input: of this rank."""

    model: Any
    optimizer: Any
    input: Any

    def step(self) -> None:
        self.model(self.input).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def weights(self) -> list[Any]:
        """Copies, in the order of layers, whole also where ranks have shares of them."""
        found = [weight.detach() for weight in self.model.parameters()]
        return [(w.full_tensor() if hasattr(w, "full_tensor") else w).clone() for w in found]


def _data_parallel(model: Any) -> tuple[Any, Any]:
    from torch.nn.parallel import DistributedDataParallel

    import torch

    parallel = DistributedDataParallel(model)
    return parallel, torch.optim.SGD(parallel.parameters(), lr=RATE)


def _fully_sharded(model: Any) -> tuple[Any, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import torch

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def _zero(model: Any) -> tuple[Any, Any]:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    import torch

    parallel = DistributedDataParallel(model)
    return parallel, ZeroRedundancyOptimizer(
        parallel.parameters(), optimizer_class=torch.optim.Adam, lr=RATE
    )


@dataclass(frozen=True)
class Way:
    """shared: makes a model one of all ranks, and gives it with its optimizer, which is of that
    class of ``torch.optim``, or shares one out."""

    shared: Callable[[Any], tuple[Any, Any]]
    optimizer: str


WAYS: Final = {
    "ddp": Way(_data_parallel, "SGD"),
    "fsdp": Way(_fully_sharded, "SGD"),
    "zero": Way(_zero, "Adam"),
}
"""What is measured, by its name."""


def training(case: str, size: int, rows: int) -> Training:
    """By all ranks of the default group."""
    import torch

    model, optimizer = WAYS[case].shared(model_of(size))
    return Training(model, optimizer, batch_of(size, rows, torch.distributed.get_rank()))


def alone(optimizer: str, size: int, inputs: Any) -> Training:
    """By this process, without ``torch.distributed``."""
    import torch

    model = model_of(size)
    return Training(model, getattr(torch.optim, optimizer)(model.parameters(), lr=RATE), inputs)


def check(case: str, found: Training, size: int, rows: int) -> None:
    """Makes one step, and compares it with that of a model which one process trains on the batches
    of all ranks. Raises WrongAnswerError."""
    import torch

    ranks = range(torch.distributed.get_world_size())
    batches = [batch_of(size, rows, rank) for rank in ranks]
    whole = alone(WAYS[case].optimizer, size, torch.cat(batches))
    before = whole.weights()
    for each in (whole, found):
        each.rate(RATE)
        each.step()
    for number, (old, new, wanted) in enumerate(
        zip(before, found.weights(), whole.weights(), strict=True)
    ):
        change, wrong = (wanted - old).norm().item(), (new - wanted).norm().item()
        if not wrong <= AGREES * change:
            raise WrongAnswerError(
                f"after a step of {case} layer {number} is wrong by {wrong:.2g}, where its weights "
                f"have changed by {change:.2g}"
            )


def rows_within(size: int, seconds: float) -> int:
    """How many rows of input make a step of one process that trains alone take about so much of a
    core's time; at least 1."""
    import torch

    if seconds == 0:
        return 1
    torch.set_num_threads(1)

    def took(rows: int) -> float:
        one = alone("SGD", size, batch_of(size, rows, 0))
        one.step()
        times = []
        for _ in range(TRIES):
            began = time.process_time()  # whatever else the host does
            one.step()
            times.append(time.process_time() - began)
        return min(times)

    tried = min(seconds, _TRIED_SECONDS)
    return max(1, round(enough(took, tried) * seconds / tried))


def enough(took: Callable[[int], float], seconds: float) -> int:
    """How many rows take about so long, where more rows take longer, but for noise; at least 1."""
    rows, before, now = 1, 0.0, took(1)
    while now < seconds:
        rows, before, now = 2 * rows, now, took(2 * rows)
    if rows == 1:
        return 1
    return rows // 2 + round((seconds - before) / (now - before) * (rows // 2))
