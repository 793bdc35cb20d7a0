# SPDX-License-Identifier: Apache-2.0
"""A machine of a PyTorch program, in a process of its own: it prints what it has come to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tensorwire import graph
from torch import nn

WIDTH = 64
THREE = {"first": "a", "second": "b", "": "c"}
TWO = {"first": "a", "second": "b", "": "b"}


class Net(nn.Module):  # type: ignore[misc, unused-ignore]
    """The mask skips a stage; ``second`` gives a view of what it was given, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
        self.third = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        mask = hidden > 0
        return self.third(self.second(hidden) * mask), hidden.T


def program(*, dynamic: bool = False, where: dict[str, str] | None = None) -> graph.Program:
    shapes = {"x": {0: torch.export.Dim("batch", min=2)}} if dynamic else None
    exported = torch.export.export(Net().eval(), (inputs(0),), dynamic_shapes=shapes)
    return graph.program(exported, machines=where or THREE)


def inputs(step: int, batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(step))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


torch.set_num_threads(1)
PROGRAMS = {dynamic: program(dynamic=dynamic) for dynamic in (False, True)}
"""Made before the fork, since that takes seconds."""


def replayed(machine: str, folder: Path, **more: Any) -> graph.Replay:
    made = PROGRAMS[more.pop("dynamic", False)]
    plan = graph.plan(made.edges(), depth=more.pop("depth", 2))
    return graph.Replay(made, plan, machine, folder, **{"timeout": 30.0, **more})


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, wanted[name]) for name, value in found.items())


def steps(replay: graph.Replay, batches: list[int]) -> dict[str, Any]:
    """All results are looked at after the last step: none was written over."""
    kept = [
        replay.step(**({"x": inputs(step, batch)} if replay.inputs else {}))
        for step, batch in enumerate(batches)
    ]
    alone = [replay.program(x=inputs(step, batch)) for step, batch in enumerate(batches)]
    good = [same(found, wanted) for found, wanted in zip(kept, alone, strict=True)]
    return {"outputs": list(kept[0]), "good": all(good), "steps": replay.steps}


def main(argument: dict[str, Any]) -> None:
    case, machine, folder = argument["case"], argument["machine"], Path(argument["folder"])
    more = argument.get("more", {})
    try:
        if case == "steps":
            found = {}
            for name, transport, dynamic, batches in argument["runs"]:
                with replayed(
                    machine, folder / name, transport=transport, dynamic=dynamic
                ) as replay:
                    found[name] = steps(replay, batches)
            say(**found)
        elif case == "endless":
            with replayed(machine, folder, **more) as replay:
                for step in range(10**9):
                    replay.step(**({"x": inputs(step)} if replay.inputs else {}))
                    if step == 3:
                        say(running=True)
        elif case == "fails":
            with replayed(machine, folder, **more) as replay:
                replay.step(**({"x": inputs(0)} if replay.inputs else {}))
                if machine == "b":
                    raise ArithmeticError("the loss is no number")
                replay.step(**({"x": inputs(1)} if replay.inputs else {}))
        elif case == "another shape":
            with replayed(machine, folder, **more) as replay:
                for step in range(9):
                    x = inputs(step, 5 if step == 2 else 4)
                    replay.step(**({"x": x} if replay.inputs else {}))
        elif case == "stops early":
            with replayed(machine, folder, **more) as replay:
                for step in range(2 if machine == "a" else 1):
                    replay.step(**({"x": inputs(step)} if replay.inputs else {}))
        elif case == "meets":
            with replayed(machine, folder, **more):
                say(met=True)
    except (graph.ReplayError, graph.PlanError, ArithmeticError) as error:
        say(error=type(error).__name__, text=str(error), machine=getattr(error, "machine", None))
    sys.stdout.flush()
