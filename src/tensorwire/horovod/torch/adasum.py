# SPDX-License-Identifier: Apache-2.0
"""An optimizer that reduces by Adasum what a step has changed.

Adasum's vectors are steps: each rank makes one by its own gradients, with its own learning rate and
momentum, and all go on from where they were by the Adasum of these (S. Maleki et al., MLSys 2021,
section 4; Horovod's DistributedOptimizer(op=Adasum))."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from tensorwire.horovod.asking import Adasum
from tensorwire.horovod.process import ProcessSet
from tensorwire.horovod.torch import in_place
from tensorwire.horovod.torch.operations import grouped_allreduce_async_, synchronize

Parameter = Any


class Deltas:
    def __init__(
        self,
        parameters: Sequence[Parameter],
        names: dict[Parameter, str],
        compression: Any,
        process_set: ProcessSet,
    ) -> None:
        self._parameters = parameters
        self._name = f"adasum.{names[parameters[0]]}" if parameters else "adasum"
        self._compression = compression
        self._process_set = process_set

    def _shared(self) -> bool:
        """Whether there are others to reduce with: in an elastic job that changes."""
        return self._process_set.included() and self._process_set.size() > 1

    def starts(self) -> list[Any]:
        """Copies of the parameters; nothing where there is nobody to reduce with."""
        return [each.detach().clone() for each in self._parameters] if self._shared() else []

    def reduce(self, starts: Sequence[Any]) -> None:
        """Each parameter, as a vector, goes on from its start by the Adasum of all ranks' steps."""
        if not starts:
            return
        with torch.no_grad():
            packed = [
                self._compression.compress(each - start)
                for each, start in zip(self._parameters, starts, strict=True)
            ]
            results = synchronize(
                grouped_allreduce_async_(
                    [tensor for tensor, _ in packed],
                    name=self._name,
                    op=Adasum,
                    process_set=self._process_set,
                )
            )
            for each, start, result, (_, context) in zip(
                self._parameters, starts, results, packed, strict=True
            ):
                each.copy_(start + self._compression.decompress(result, context))


class AdasumDeltas:
    """Goes before an optimizer's own class."""

    _deltas: Deltas

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        starts = self._deltas.starts()
        result = super().step(closure)  # type: ignore[misc]
        self._deltas.reduce(starts)
        return result

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        with in_place.kept(self):
            super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def synchronize(self) -> None:
        """Nothing: gradients stay those of this rank."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        raise AssertionError("with op=Adasum step() itself reduces: there is nothing to skip")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Any number of passes make a step."""
