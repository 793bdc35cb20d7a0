# SPDX-License-Identifier: Apache-2.0
"""JAX programs whose collectives are groups', between processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

from tensorwire import jax as ours

if find_spec("jax") is None:
    pytest.skip("there is no JAX", allow_module_level=True)

from tests.jax.ranks import Ranks

pytestmark = pytest.mark.timeout(120)  # the first test has the ranks import JAX


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    running = Ranks(2)
    yield running
    running.close()


def test_operations_are_numpys(two: Ranks) -> None:
    assert two.results("operations") == [[], []]


def test_a_permutation_of_some(two: Ranks) -> None:
    assert two.results("one_way") == [[0, 0], [1, 1]]


def test_training_by_pjit(two: Ranks) -> None:
    """Of the weight 3, from 0: each step takes the same part of the way."""
    first, second = two.results("train")
    assert first == second
    inputs = np.linspace(-1, 1, 16)
    mean = float((inputs**2).mean())
    expected = [9 * mean * (1 - mean) ** (2 * step) for step in range(5)]
    assert first == pytest.approx(expected, rel=1e-4)


def test_which_way_data_went(two: Ranks) -> None:
    two.results("one_way")
    for world, *meshes in two.results("statistics"):
        assert world == (2, "shared memory", ["all_gather"])
        assert meshes
        assert all(mesh[:2] == (2, "shared memory") for mesh in meshes)
        assert "all_reduce" in meshes[0][2]


def test_a_rank_that_dies(two: Ranks) -> None:
    """The last one that uses these ranks."""
    two.begin("lose")
    found = two.result(0)
    assert "JaxRuntimeError" in found
    assert "rank 1" in found


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ours.environment()}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_is_too_late_once_jax_is_there() -> None:
    ended = run(
        "import sys, types\n"
        "sys.modules['jaxlib'] = types.ModuleType('jaxlib')\n"
        "import tensorwire.jax\n"
        "tensorwire.jax.enable()\n"
    )
    assert "before the first import of jax" in ended.stderr


def test_several_devices_of_a_process_are_refused() -> None:
    """XLA would take them for processes."""
    ended = run(
        "import tensorwire.jax\n"
        "tensorwire.jax.enable()\n"
        "import jax\n"
        "from jax._src import distributed\n"
        "jax.config.update('jax_platforms', 'cpu')\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"
        "distributed.global_state.client = object()\n"
        "jax.devices()\n"
    )
    assert ended.returncode != 0
    assert "2 CPU devices" in ended.stderr


def test_run_sets_the_environment_unless_the_user_has() -> None:
    names = sorted(ours.environment())
    program = f"import json, os; print(json.dumps([os.environ.get(n) for n in {names}]))"
    command = (
        "import sys; from tensorwire.cli import main\n"
        f"sys.argv = ['tensorwire', 'run', '--', sys.executable, '-c', {program!r}]\n"
        "main()"
    )
    expected = [ours.environment()[name] for name in names]
    assert json.loads(run(command).stdout) == expected
    own = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    assert json.loads(run(command, **own).stdout) == [own.get(name) for name in names]
