# SPDX-License-Identifier: Apache-2.0
"""``hvd.elastic`` for PyTorch: training that goes on when ranks are lost and when others come."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from tensorwire.horovod.elastic import ObjectState, State, run
from tensorwire.horovod.process import rank, size
from tensorwire.horovod.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

_Sampler: Any = torch.utils.data.Sampler


class ElasticSampler(_Sampler):  # type: ignore[misc]
    """Shares a data set among the ranks, and what is left of it among others after a reset.

    Give it to the :class:`TorchState`, call ``record_batch`` after each batch, and ``set_epoch`` at
    the end of each epoch. ``seed``: the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """All of the data set is to be done again, in the order of that epoch."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Each rank has done so many samples more."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Shares what has not been done among the ranks of now."""
        self.rank, self.num_replicas = rank(), size()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """The same number on each rank: some come twice where they cannot be shared evenly."""
        missing = self.total_size - len(self.remaining_indices)
        again = (self.remaining_indices * self.num_replicas)[:missing]
        return iter((self.remaining_indices + again)[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


def _sync_sampler(sampler: ElasticSampler) -> None:
    sampler.load_state_dict(broadcast_object(sampler.state_dict(), 0, "elastic.sampler"))


# What has a state_dict(), and how that of rank 0 gets to all.
_SYNC: tuple[tuple[Any, Callable[[Any], None]], ...] = (
    (torch.nn.Module, lambda model: broadcast_parameters(model.state_dict(), 0)),
    (torch.optim.Optimizer, lambda optimizer: broadcast_optimizer_state(optimizer, 0)),
    (ElasticSampler, _sync_sampler),
)


class TorchState(ObjectState):
    """A model, an optimizer, samplers, and plain attributes:
    ``TorchState(model, optimizer, epoch=0, batch=0)``."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        named = {"model": model, "optimizer": optimizer, **kwargs}
        self._parts: dict[str, Any] = {
            name: each for name, each in named.items() if _synchronizes(each)
        }
        self._kept: dict[str, Any] = {}
        plain = {name: each for name, each in kwargs.items() if name not in self._parts}
        super().__init__(broadcast_object, rank, **plain)
        for name, each in named.items():
            setattr(self, name, each)
        self._keep()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_parts", ()):
            self._parts[name] = value
        super().__setattr__(name, value)

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(copy.deepcopy(self._kept[name]))
        super().restore()

    def sync(self) -> None:
        for part in self._parts.values():
            synchronize = _synchronizes(part)
            assert synchronize is not None
            synchronize(part)
        self._keep()
        super().sync()

    def _keep(self) -> None:
        self._kept = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()}


def _synchronizes(value: Any) -> Callable[[Any], None] | None:
    return next((way for kind, way in _SYNC if isinstance(value, kind)), None)


__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
