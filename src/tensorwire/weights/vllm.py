# SPDX-License-Identifier: Apache-2.0
"""An engine for vLLM's weight transfers: its workers pull what a ``Publisher`` publishes.

The import needs a vLLM whose engines begin and finish an update themselves, as those of 0.25 do.
For another interface it raises ImportError, which says what differs.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

import torch
from tensorwire.weights.planning import Shard
from tensorwire.weights.source import Source
from tensorwire.weights.subscriber import Subscriber

__all__ = ["Engine", "InitInfo", "UpdateInfo"]


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM's types are not here
    """targets: addresses of the publishers; name: of their publication. timeout: of this and each
    pull, in seconds."""

    targets: list[str]
    name: str = "weights"
    timeout: float = 60.0


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """version: what ``Publisher.publish`` gave; it is loaded, or a newer one."""

    version: int


class Engine(WeightTransferEngine):  # type: ignore[misc]
    """Of one worker. It keeps the weights in host memory, so that only tensors that have changed
    travel; the model's own loader takes from there what the worker needs.

    A pull that fails raises what ``Subscriber.pull`` does, before anything is loaded: the same
    update can be asked for again.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._subscriber: Subscriber | None = None
        self._timeout = 0.0

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Asks the publishers what they have. TypeError: a dtype that PyTorch lacks."""
        self.shutdown()
        rooms = _rooms(init_info)
        self._subscriber = Subscriber(init_info.targets, rooms, name=init_info.name)
        self._timeout = init_info.timeout

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._subscriber is None:
            raise RuntimeError("weights are received after init_transfer_engine(), not before")
        self._subscriber.pull(update_info.version, self._timeout)
        self.model.load_weights(iter(self._subscriber.params.items()))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
            self._subscriber = None

    @staticmethod
    def trainer_send_weights(iterator: Iterator[Any], trainer_args: Mapping[str, Any]) -> None:
        """Publishes them: ``trainer_args`` has the ``Publisher`` as "publisher". Newer releases of
        vLLM do not ask an engine for this."""
        trainer_args["publisher"].publish(params=dict(iterator))


def _rooms(info: InitInfo) -> dict[str, torch.Tensor]:
    """Host memory for all that the publishers have."""
    end = time.monotonic() + info.timeout
    rooms: dict[str, torch.Tensor] = {}
    for target in info.targets:
        source = Source(target, info.name)
        try:
            layout = source.describe(lambda: max(end - time.monotonic(), 0)).layout
        finally:
            source.close()
        for name, shards in layout.items():
            for shard in shards:
                if name not in rooms:
                    rooms[name] = torch.empty(shard.global_shape, dtype=_dtype(name, shard))
    return rooms


def _dtype(name: str, shard: Shard) -> torch.dtype:
    found = getattr(torch, shard.dtype, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name}: PyTorch has no dtype {shard.dtype}")
    return found


_MADE_OF: Final = ["self", "config", "vllm_config", "device", "model"]
_RECEIVES: Final = ["self", "update_info"]


def _check() -> None:
    made = [*inspect.signature(WeightTransferEngine.__init__).parameters]
    receives = [*inspect.signature(WeightTransferEngine.receive_weights).parameters]
    if missing := sorted(Engine.__abstractmethods__):
        why = f"engines must have {', '.join(missing)}"
    elif made != _MADE_OF:
        why = f"engines are made of {', '.join(made)}"
    elif receives != _RECEIVES:
        why = f"receive_weights takes {', '.join(receives)}"
    else:
        return
    raise ImportError(f"this vLLM has another interface of weight transfers than 0.25 had: {why}")


_check()
