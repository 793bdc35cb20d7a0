# SPDX-License-Identifier: Apache-2.0
"""Makes the back end known to PyTorch. The plugin is built and loaded when a group is made.

PyTorch runs ``register`` at its own import: what is imported here costs every user of PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta

NAME = "tensorwire"


def register() -> None:
    import torch.distributed

    if not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    if NAME not in backend.backend_list:
        backend.register_backend(NAME, _create, devices=["cpu", "cuda"])


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from tensorwire.torch import plugin_module

    return plugin_module.load().create(store, rank, size, round(timeout.total_seconds() * 1000))
