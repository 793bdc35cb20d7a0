# SPDX-License-Identifier: Apache-2.0
"""What vLLM's worker does with an engine, on the stand-in for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any
from unittest.mock import patch

from vllm.distributed.weight_transfer import base
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

import torch
from tensorwire.weights import vllm_plugin


class Model:
    """It keeps what it was given to load, as lists, and the order of what happened to it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.loaded: dict[str, Any] = {}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.events.append("loaded")
        self.loaded = {name: [str(each.dtype), each.tolist()] for name, each in weights}


def engine(model: Model) -> Any:
    vllm_plugin.register()
    vllm_plugin.register()  # a plugin may be called again
    config = {"backend": vllm_plugin.NAME}
    return WeightTransferEngineFactory.create_engine(config, {"model_config": "m"}, "cpu", model)


def begin(engine: Any, **info: Any) -> None:
    engine.init_transfer_engine(engine.parse_init_info(info))


def update(engine: Any, version: int) -> None:
    engine.start_weight_update()
    engine.update_weights({"version": version})
    engine.finish_weight_update()


def imported(**changed: Any) -> None:
    """The engine's module is imported again, where engines are made of something else."""
    made: Any = type(base.WeightTransferEngine)(
        "WeightTransferEngine", (base.WeightTransferEngine,), changed
    )
    sys.modules.pop("tensorwire.weights.vllm", None)
    with patch.object(base, "WeightTransferEngine", made):
        import_module("tensorwire.weights.vllm")
