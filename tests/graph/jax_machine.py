# SPDX-License-Identifier: Apache-2.0
"""A machine of a JAX program, in a process of its own: it prints what it has come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax
from tensorwire import graph

WIDTH = 32


def loss(layers: list[Any], x: Any) -> Any:
    mask = x > 0  # in no scope, and used by the last stage
    for number, layer in enumerate(layers):
        with jax.named_scope("first" if number < 2 else "last"):
            x = x + jax.nn.gelu(x @ layer)
    with jax.named_scope("last"):
        return jnp.sum((x * mask) ** 2)


def arguments(step: int) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(step)
    layers = [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(4)]
    return layers, rng.standard_normal((8, WIDTH)).astype(np.float32)


def program() -> graph.Program:
    """A training step: activations go one way, their gradients come back."""
    return graph.program(jax.make_jaxpr(jax.value_and_grad(loss))(*arguments(0)))


def given(made: graph.Program, step: int) -> dict[str, Any]:
    return dict(zip(made.inputs, jax.tree.leaves(arguments(step)), strict=True))


def main(argument: dict[str, Any]) -> None:
    made = program()
    machine, good, results = argument["machine"], True, []
    with graph.Replay(
        made, graph.plan(made.edges()), machine, Path(argument["folder"]), timeout=30
    ) as replay:
        for step in range(argument["steps"]):
            inputs = given(made, step)
            results.append(replay.step(**{name: inputs[name] for name in replay.inputs}))
    for step, found in enumerate(results):
        alone = made(**given(made, step))
        good &= all(np.array_equal(value, alone[name]) for name, value in found.items())
    print(json.dumps({"good": good, "outputs": list(results[0])}), flush=True)
