# SPDX-License-Identifier: Apache-2.0
"""Makes the engine known to vLLM, whose processes call ``register`` when they start."""

from __future__ import annotations

from functools import cache

NAME = "tensorwire"


@cache
def register() -> None:
    """The engine itself is imported when it is asked for."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ModuleNotFoundError:
        return  # a vLLM that has no such registry, so that nobody can ask for an engine
    WeightTransferEngineFactory.register_engine(NAME, "tensorwire.weights.vllm", "Engine")
