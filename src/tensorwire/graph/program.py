# SPDX-License-Identifier: Apache-2.0
"""A program cut in stages, each of which runs on one machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tensorwire.graph.edge import Edge


@dataclass(frozen=True)
class Value:
    """What a stage gives to others. shape: None for an extent that differs from step to step.
    scalar: an ``int``, ``float`` or ``bool`` of Python's, which travels as an array of no axes.
    order: the axes from the largest stride to the smallest; None for C order."""

    shape: tuple[int | None, ...]
    dtype: str
    scalar: bool = False
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Stage:
    """Operations of one machine that run together.

    run: takes the values named in ``inputs``, in that order, and returns those in ``outputs``.
    """

    machine: str
    round: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Program:
    """Stages in an order in which one process can run them.

    inputs: what each step is given, by names; a machine needs those that its stages take. values:
    of what stages give each other. outputs: the results, by names.
    """

    framework: Literal["torch", "jax"]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stages: tuple[Stage, ...]
    values: Mapping[str, Value]

    @property
    def machines(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(sorted({stage.machine for stage in self.stages}))

    def inputs_of(self, machine: str) -> tuple[str, ...]:
        """The inputs of the program that a machine needs in each step."""
        taken = {name for stage in self.stages if stage.machine == machine for name in stage.inputs}
        return tuple(name for name in self.inputs if name in taken)

    def outputs_of(self, machine: str) -> tuple[str, ...]:
        """The results of the program that a machine has after each step. One that is an input is
        with those that take it."""
        had = {name for stage in self.stages if stage.machine == machine for name in stage.outputs}
        had.update(self.inputs_of(machine))
        return tuple(name for name in self.outputs if name in had)

    def edges(self) -> list[Edge]:
        """What crosses machines: each value once to each machine that takes it, in the order in
        which the values are made."""
        made = {name: stage for stage in self.stages for name in stage.outputs}
        takers: dict[str, dict[str, None]] = {}
        for stage in self.stages:
            for name in stage.inputs:
                if name in made and made[name].machine != stage.machine:
                    takers.setdefault(name, {})[stage.machine] = None
        return [
            Edge(
                name,
                stage.machine,
                target,
                self.values[name].shape,
                self.values[name].dtype,
                round=stage.round,
                order=self.values[name].order,
            )
            for stage in self.stages
            for name in stage.outputs
            for target in takers.get(name, ())
        ]

    def check_inputs(self, names: Sequence[str], given: Mapping[str, Any]) -> None:
        """TypeError for an input that is missing, or is none of ``names``."""
        if missing := [name for name in names if name not in given]:
            raise TypeError(f"inputs are missing: {', '.join(missing)}")
        if unknown := [name for name in given if name not in names]:
            known = ", ".join(names) or "none"
            raise TypeError(f"no such inputs: {', '.join(unknown)}; there are {known}")

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        """A step in this process alone: the results by their names, with the same bits as
        ``Replay`` gives on several machines."""
        self.check_inputs(self.inputs, inputs)
        values = dict(inputs)
        for stage in self.stages:
            found = stage.run(*(values[name] for name in stage.inputs))
            values.update(zip(stage.outputs, found, strict=True))
        return {name: values[name] for name in self.outputs}
