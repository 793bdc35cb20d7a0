# SPDX-License-Identifier: Apache-2.0
"""Engines by name, which are imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar


class WeightTransferEngineFactory:
    known: ClassVar[dict[str, tuple[str, str]]] = {}

    @classmethod
    def register_engine(cls, name: str, module_path_or_cls: str, class_name: str) -> None:
        if name in cls.known:
            raise ValueError(f"{name} is there already")
        cls.known[name] = module_path_or_cls, class_name

    @classmethod
    def create_engine(cls, config: Any, vllm_config: Any, device: Any, model: Any) -> Any:
        module, name = cls.known[config["backend"]]
        return getattr(import_module(module), name)(config, vllm_config, device, model)
