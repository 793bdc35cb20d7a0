# SPDX-License-Identifier: Apache-2.0
"""Who holds what of the weights: that a wrong place is seen, and what both ends have in common."""

from __future__ import annotations

import numpy as np

from tensorwire.bench.harness.work import Work
from tensorwire.bench.suites.weights.contender import COPIED, RESHARDED, shapes
from tensorwire.bench.suites.weights.shards import held, intersections, values
from tensorwire.weights import Shard, plan

WORK = Work(RESHARDED, 1 << 30)
TRAINERS = [held(WORK, rank, 6, 4) for rank in range(4)]
RECEIVERS = [held(WORK, rank, 6, 4) for rank in (4, 5)]


def test_trainers_have_rows_and_receivers_parts() -> None:
    kinds = {name: RECEIVERS[1][name] for name in ("embed", "layers.0.0", "layers.0.3")}
    kinds["norm"] = RECEIVERS[1]["layers.0.6"]
    assert TRAINERS[1]["embed"].start == (2560, 0)
    assert TRAINERS[1]["embed"].shape == (2560, 16384)
    assert kinds == {
        "embed": Shard((5120, 0), (5120, 16384), (10240, 16384), "uint8"),
        "layers.0.0": Shard((1024, 0), (1024, 2048), (2048, 2048), "uint8"),
        "layers.0.3": Shard((0, 1024), (2048, 1024), (2048, 2048), "uint8"),
        "norm": Shard((0,), (4096,), (4096,), "uint8"),
    }
    assert held(Work(COPIED, 1 << 20), 1, 3, 1) == held(Work(COPIED, 1 << 20), 0, 3, 1)


def test_a_plan_moves_the_intersections() -> None:
    """Half a gibibyte to each of two receivers, and the vectors to both."""
    sources = [{name: [box] for name, box in each.items()} for each in TRAINERS]
    common = [intersections(TRAINERS, each) for each in RECEIVERS]
    for receiver, nbytes in zip(RECEIVERS, common, strict=True):
        made = plan(sources, {name: [box] for name, box in receiver.items()})
        assert made.nbytes == nbytes == sum(box.nbytes for box in receiver.values())
    assert sum(common) == sum(shapes(WORK.size).values()) + 74 * 4096
    assert intersections([{"w": Shard((0,), (2,), (6,), "uint8")}], {
        "w": Shard((1,), (4,), (6,), "uint8")
    }) == 1  # fmt: skip


def test_no_box_is_like_another_one() -> None:
    whole = values(Shard.whole((512, 512), "uint8"), 3)
    box = values(Shard((256, 128), (64, 64), (512, 512), "uint8"), 3)
    assert (whole[256:320, 128:192] == box).all()
    for rows, columns in ((256, 0), (0, 128), (0, 0), (128, 256)):
        assert not (whole[rows : rows + 64, columns : columns + 64] == box).any()
    assert not (values(Shard.whole((512, 512), "uint8"), 4) == whole).any()
    assert (np.broadcast_to(values(Shard.whole((9,), "uint8"), 252), 9) == 1).all()
