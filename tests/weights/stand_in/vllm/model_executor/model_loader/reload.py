# SPDX-License-Identifier: Apache-2.0
"""Around the weights that a model loads."""

from __future__ import annotations

from typing import Any


def initialize_layerwise_reload(model: Any) -> None:
    model.events.append("begun")


def finalize_layerwise_reload(model: Any, model_config: Any) -> None:
    model.events.append(f"finished {model_config}")
