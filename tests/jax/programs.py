# SPDX-License-Identifier: Apache-2.0
"""What ranks of a JAX program do: nothing here knows Tensorwire but for its statistics."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

import jax
from jax import lax
from tensorwire import jax as ours

AXIS = "ranks"
TYPES = ("float32", "bfloat16", "int32", "complex64")


def rows_of(name: str, rank: int, size: int) -> Any:
    """One row of a rank: small whole numbers, which all types hold."""
    return ((np.arange(6 * size) * (rank + 3)) % 7 + 1).astype(jnp.dtype(name)).reshape(1, -1)


def run(step: Callable[[Any], Any], array: Any, replicated: bool = False) -> Any:
    """What this rank gets of ``step`` on each rank's ``array``."""
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    spec = Spec(AXIS)
    shape = (mesh.size * array.shape[0], *array.shape[1:])
    given = jax.make_array_from_single_device_arrays(
        shape, NamedSharding(mesh, spec), [jax.device_put(array, jax.local_devices()[0])]
    )
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=spec, out_specs=Spec() if replicated else spec, check_vma=False
    )
    return np.asarray(jax.jit(mapped)(given).addressable_shards[0].data)


def operations(rank: int, size: int) -> list[str]:
    """Those that give something else than NumPy does."""
    following = [(k, (k + 1) % size) for k in range(size)]
    wrong = []
    for name in TYPES:
        rows = [rows_of(name, each, size) for each in range(size)]
        wide = np.stack(rows).astype(np.complex64 if name == "complex64" else np.float64)
        total = wide.sum(0)
        parts = [np.split(row, size, 1) for row in rows]
        cases: dict[str, tuple[Callable[[Any], Any], Any]] = {
            "psum": (lambda a: lax.psum(a, AXIS), total),
            "all_gather": (lambda a: lax.all_gather(a, AXIS, tiled=True), np.concatenate(rows)),
            "ppermute": (lambda a: lax.ppermute(a, AXIS, following), rows[(rank - 1) % size]),
            "all_to_all": (
                lambda a: lax.all_to_all(a, AXIS, 1, 1, tiled=True),
                np.concatenate([part[rank] for part in parts], 1),
            ),
            "psum_scatter": (
                lambda a: lax.psum_scatter(a, AXIS, scatter_dimension=1, tiled=True),
                np.split(total, size, 1)[rank],
            ),
        }
        if name != "complex64":
            cases["pmax"] = lambda a: lax.pmax(a, AXIS), wide.max(0)
        for case, (step, expected) in cases.items():
            got = run(step, rows[rank])
            if got.dtype != rows[0].dtype or not np.array_equal(got, expected.astype(got.dtype)):
                wrong.append(f"{case} of {name}: {got}, not {expected}")
    return wrong


def one_way(rank: int, size: int) -> list[Any]:
    """A permutation in which the last rank gives nothing and the first one gets nothing."""
    pairs = [(k, k + 1) for k in range(size - 1)]
    given = np.full((1, 100_000), rank + 1, np.float32)
    got = run(lambda a: lax.ppermute(a, AXIS, pairs), given)
    return [float(got.min()), float(got.max())]


def train(rank: int, size: int) -> list[float]:
    """Losses of data-parallel steps, as pjit makes them: it puts the collectives in itself."""
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    inputs = np.linspace(-1, 1, 8 * size, dtype=np.float32).reshape(8 * size, 1)

    def loss(weight: Any, x: Any) -> Any:
        return jnp.mean((x * weight - 3 * x) ** 2)

    def step(weight: Any, x: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(weight, x)
        return weight - 0.5 * slope, value

    whole, rows = NamedSharding(mesh, Spec()), NamedSharding(mesh, Spec(AXIS))
    compiled = jax.jit(step, in_shardings=(whole, rows), out_shardings=(whole, whole))
    x = jax.make_array_from_callback(inputs.shape, rows, lambda index: inputs[index])
    weight: Any = jax.make_array_from_callback((), whole, lambda _: np.float32(0))
    losses = []
    for _ in range(5):
        weight, value = compiled(weight, x)
        losses.append(float(value))
    return losses


def statistics(rank: int, size: int) -> list[tuple[int, str, list[str]]]:
    return [(found.size, found.fabric, sorted(found.operations)) for found in ours.statistics()]


def lose(rank: int, size: int) -> str:
    """The last rank dies, and the others want something of it."""
    run(lambda a: lax.psum(a, AXIS), np.ones((1, 4), np.float32))  # all have met
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        run(lambda a: lax.psum(a, AXIS), np.ones((1, 4), np.float32))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing has failed"
