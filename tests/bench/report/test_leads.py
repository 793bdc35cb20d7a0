# SPDX-License-Identifier: Apache-2.0
"""Who is ahead of us."""

from __future__ import annotations

import pytest
from tests.bench.report import made

from tensorwire.bench.harness.rows import Row
from tensorwire.bench.report.leads import leads


def test_who_is_ahead_and_by_how_much() -> None:
    rows = [*made.sweep("grpcio", 3), *made.sweep("tensorwire"), *made.sweep("zmq", 0.5)]
    found = leads(made.run(rows).measured)
    assert [(each.other.row.contender, each.other.row.size) for each in found.peers] == [
        *(("zmq", 8), ("zmq", 65536), ("zmq", 1 << 20))
    ]
    assert all(each.ratio.value == pytest.approx(2) for each in found.peers)
    assert all(each.ratio.beyond_noise for each in found.peers)
    assert found.compared == 6
    assert found.limits == []


def test_limits_stand_apart() -> None:
    found = leads(made.run([*made.sweep("memcpy", 0.1), *made.sweep("tensorwire")]).measured)
    assert (found.peers, found.compared) == ([], 0)
    assert [each.other.row.contender for each in found.limits] == ["memcpy"] * 3


def ours(factor: float, transport: str, origin: str = "ordinary") -> list[tuple[Row, list[float]]]:
    return [*made.sweep("tensorwire", factor, (1 << 20,), transport=transport, origin=origin)]


def test_one_over_our_transport_is_compared_with_that() -> None:
    rows = [*ours(1, "shm"), *ours(9, "tcp"), *made.sweep("zmq", 4, (1 << 20,), transport="tcp")]
    (lead,) = leads(made.run(rows).measured).peers
    assert lead.ours.row.transport == "tcp"


def test_one_over_another_transport_is_compared_with_each_of_ours() -> None:
    rows = [*ours(1, "shm"), *ours(9, "tcp"), *made.sweep("grpcio", 4, (1 << 20,))]
    found = leads(made.run(rows).measured)
    assert [each.ours.row.transport for each in found.peers] == ["tcp"]
    assert found.compared == 2


def test_an_arena_that_others_lack_does_not_count() -> None:
    rows = [*ours(9, "tcp"), *ours(1, "tcp", "published"), *made.sweep("zmq", 4, (1 << 20,))]
    (lead,) = leads(made.run(rows).measured).peers
    assert lead.ours.row.origin == "ordinary"


def test_what_counts_as_much_as_others_do_is_compared_with_them() -> None:
    """Not what begins later; that is compared with a limit."""
    size = (1 << 20,)
    rows = [
        *made.sweep("tensorwire", 1, size, case="copied"),
        *made.sweep("tensorwire", 2, size, case="published"),
        *made.sweep("zmq", 1.5, size, case="copied"),
        *made.sweep("memcpy", 0.5, size, case="copied"),
    ]
    found = leads(made.run(rows, as_others={"published": "copied"}).measured)
    assert [each.ours.row.case for each in found.peers] == ["published"]
    assert [each.ours.row.case for each in found.limits] == ["copied"]
    assert found.compared == 1
    assert leads(made.run(rows).measured).peers == []


def test_what_is_only_announced_is_not_compared() -> None:
    rows = [*ours(1, "shm", "published"), *made.sweep("zmq", 4, (1 << 20,), transport="shm")]
    found = leads(made.run(rows).measured)
    assert (found.peers, found.compared) == ([], 0)


def test_works_of_other_receivers_are_not_compared() -> None:
    rows = [*made.sweep("tensorwire", 9), *made.sweep("zmq", 1, reads=True)]
    assert leads(made.run(rows).measured).compared == 0


def test_rows_without_a_figure_in_common_are_not_compared() -> None:
    rows = [*made.sweep("zmq"), *made.sweep("tensorwire", p50_us=None)]
    assert leads(made.run(rows).measured).compared == 0
