# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch arrive as they are handed from stage to stage in one process, strides, too."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("there is no PyTorch", allow_module_level=True)

from tests.graph.in_threads import replayed
from torch.fx.passes.shape_prop import ShapeProp

import torch
from tensorwire import graph
from torch import nn

torch.set_num_threads(1)
pytestmark = pytest.mark.timeout(120)


class Stage(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, *given: torch.Tensor) -> Any:
        return self.compute(*given)


class Two(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x))


def cut(first: Callable[[Any], Any], x: torch.Tensor, dynamic: bool) -> graph.Program:
    """Of a program whose second machine computes what depends on the order of what it is given."""
    whole = Two(Stage(first), Stage(lambda y: (y.sum(0), y.sum(), torch.softmax(y, 0), y * 1)))
    shapes = {"x": {0: torch.export.Dim("rows", min=2)}} if dynamic else None
    exported = torch.export.export(whole.eval(), (x,), dynamic_shapes=shapes)
    return graph.program(exported, machines={"first": "a", "second": "b"})


@pytest.mark.parametrize("dynamic", [False, True], ids=["placed", "described"])
@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("transposed", lambda x: (x * 1.5).T),
        ("permuted", lambda x: (x * 1.5).reshape(-1, 7, 11).permute(2, 0, 1)),
        ("with holes", lambda x: (x * 1.5)[:, ::2]),
        ("expanded", lambda x: (x * 1.5)[:, :1].expand(-1, 5)),
        ("of one row", lambda x: (x * 1.5)[:1].T),
    ],
)
def test_the_bits_of_what_is_not_in_c_order(
    tmp_path: Path, name: str, first: Callable[[Any], Any], dynamic: bool
) -> None:
    x = torch.randn(301, 77, generator=torch.Generator().manual_seed(3))
    made = cut(first, x, dynamic)
    (edge,) = made.edges()
    assert edge.way == ("described" if dynamic and name != "of one row" else "placed")
    alone = made(x=x)
    found = replayed(made, tmp_path, [{"x": x}] * 3)
    assert found["a"] == [{}] * 3
    for step in found["b"]:
        for result in made.outputs:
            assert torch.equal(step[result], alone[result])
            assert step[result].stride() == alone[result].stride()


@pytest.mark.parametrize("by", ["fx", "export"])
def test_a_model_that_views_what_a_convolution_in_channels_last_gives(
    tmp_path: Path, by: str
) -> None:
    class Net(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.second(self.first(x).permute(0, 2, 3, 1).view(2 * 36, 8))

    net: Any = Net().eval()
    net = net.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    traced: Any
    if by == "fx":
        traced = torch.fx.symbolic_trace(net)
        ShapeProp(traced).propagate(x)
    else:
        traced = torch.export.export(net, (x,))
    made = graph.program(traced, machines={"first": "a", "second": "b", "": "b"})
    (edge,) = made.edges()
    assert (edge.shape, edge.order, edge.way) == ((2, 8, 6, 6), (0, 2, 3, 1), "placed")
    (name,) = made.outputs
    # Given in another order than it was traced with, it is computed in the order that was planned.
    for number, given in enumerate((x, x.contiguous())):
        wanted = made(x=given)[name]
        found = replayed(made, tmp_path / str(number), [{"x": given}])
        assert torch.equal(found["b"][0][name], wanted)


def test_small_tensors_that_share_a_message_keep_their_orders(tmp_path: Path) -> None:
    def several(x: torch.Tensor) -> Any:
        return (x * 2).T, (x * 3).to(torch.bfloat16).T, x + 1, (x > 0)[:, ::2]

    def flat(given: Any) -> Any:
        return [each.as_strided((each.numel(),), (1,)) * 1 for each in given]

    exported = torch.export.export(Two(Stage(several), Stage(flat)).eval(), (torch.ones(5, 7),))
    made = graph.program(exported, machines={"first": "a", "second": "b"})
    (transfer,) = graph.plan(made.edges()).transfers()
    assert [edge.order for edge in transfer.edges] == [(1, 0), (1, 0), None, None]
    x = torch.randn(5, 7)
    alone = made(x=x)
    (step,) = replayed(made, tmp_path, [{"x": x}])["b"]
    for name in made.outputs:
        assert torch.equal(step[name], alone[name])
    first, second, third, fourth = (step[name] for name in made.outputs)
    assert torch.equal(first, (x * 2).reshape(-1))
    assert torch.equal(second, (x * 3).to(torch.bfloat16).reshape(-1))
    assert torch.equal(third, (x + 1).reshape(-1))
    assert torch.equal(fourth, (x > 0)[:, ::2].reshape(-1))
