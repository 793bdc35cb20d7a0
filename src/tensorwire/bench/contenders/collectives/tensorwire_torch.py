# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with Tensorwire's back end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from tensorwire import _core
from tensorwire.bench.suites.collectives.contender import Contender, Meeting, Rank
from tensorwire.bench.suites.collectives.operations import DTYPES
from tensorwire.bench.suites.collectives.torch_ranks import joined, why_no_torch
from tensorwire.bench.suites.collectives.ways import WAYS


class TensorwireTorch(Contender):
    role = "own"
    transports = ("shm",)
    packages = ("torch",)
    dtypes = frozenset(DTYPES)
    devices = frozenset({"cpu", "cuda"})

    def lacks_on(self, device: str) -> Mapping[str, str]:
        if device == "cpu":
            return self.lacks
        uneven = ("all_gather_v", "reduce_scatter_v")
        return dict.fromkeys(uneven, "on devices all shares are of one size")

    def viable(self, transport: str) -> str | None:
        return why_no_torch() or _why_no_plugin()

    @contextmanager
    def join(self, meeting: Meeting) -> Iterator[Rank]:
        from tensorwire.torch.registration import register

        register()  # PyTorch 2.4 does not do so at its own import
        with joined(meeting, "tensorwire", "shm") as rank:
            rank.barrier()
            # The transport is not asked for: what the barrier has taken tells it.
            taken = {way for _, way, _, _ in _core.group_statistics()} - WAYS["memory"].keys()
            rank.path = ", ".join(sorted(taken)) or "shm"
            yield rank


@cache
def _why_no_plugin() -> str | None:
    """Builds it where that has not been done: the ranks have no time to wait for it."""
    from tensorwire.plugins import PluginError
    from tensorwire.torch import build

    try:
        build.plugin(build.installed())
    except PluginError as error:
        return str(error)
    return None
