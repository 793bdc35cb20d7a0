# SPDX-License-Identifier: Apache-2.0
"""Parameters of frameworks, and how these cut them, each in a process that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from tests.weights.other import Other, channel, other, publisher

from tensorwire import weights
from tensorwire.weights.layouts import Split, box_of

pytestmark = pytest.mark.timeout(120)  # the import of a framework takes its time

FRAMEWORKS = [name for name in ("torch", "jax") if find_spec(name)]


@pytest.fixture(scope="module")
def trainer() -> Iterator[tuple[dict[str, Any], weights.Publisher, int]]:
    params = {
        "w": np.arange(48, dtype=np.float32).reshape(8, 6),
        "b": np.ones(6, np.float32),
    }
    made, server, port = publisher(params)
    made.publish()
    yield params, made, port
    server.stop(None)


@pytest.fixture(scope="module")
def torch() -> Iterator[Other]:
    if "torch" not in FRAMEWORKS:
        pytest.skip("there is no PyTorch")
    with other() as process:
        process.do("import torch")
        yield process


@pytest.fixture(scope="module")
def jax() -> Iterator[Other]:
    if "jax" not in FRAMEWORKS:
        pytest.skip("there is no JAX")
    flags = "--xla_force_host_platform_device_count=4"
    with other(XLA_FLAGS=flags, JAX_PLATFORMS="cpu") as process:
        process.do("import jax")
        process.do("from jax.sharding import NamedSharding, PartitionSpec")
        process.do("mesh = jax.make_mesh((4,), ('x',))")
        yield process


@pytest.mark.parametrize(
    ("mesh", "coordinate", "placements", "box"),
    [
        ((4,), (1,), [None], ((0, 0), (8, 6))),
        ((4,), (1,), [Split(0)], ((2, 0), (2, 6))),
        ((4,), (3,), [Split(1)], ((0, 6), (8, 0))),
        ((4,), (2,), [Split(1)], ((0, 4), (8, 2))),
        ((2, 2), (1, 1), [Split(0), Split(1)], ((4, 3), (4, 3))),
        ((2, 2), (1, 0), [Split(0), Split(0)], ((4, 0), (2, 6))),
        # Tensor parallelism along the second axis of the mesh cuts first, FSDP what that left.
        ((2, 2), (1, 0), [Split(0, strided=True), Split(0)], ((2, 0), (2, 6))),
    ],
)
def test_boxes(mesh: Any, coordinate: Any, placements: Any, box: Any) -> None:
    assert box_of((8, 6), mesh, coordinate, placements) == box


def test_boxes_are_those_of_pytorch(torch: Other) -> None:
    torch.do(
        "import torch.distributed as dist\n"
        "from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh\n"
        "from torch.distributed.tensor._utils import compute_local_shape_and_global_offset\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "from tensorwire.weights.parameters import Parameters\n"
        "def boxes(rank):\n"
        "    dist.init_process_group('fake', rank=rank, world_size=8, store=FakeStore())\n"
        "    found = []\n"
        "    for shape, kinds in (((8,), [Shard(0)]), ((8,), [Shard(1)]), ((8,), [Replicate()]),\n"
        "                         ((2, 4), [Replicate(), Shard(0)]),\n"
        "                         ((2, 4), [Shard(0), Shard(1)]),\n"
        "                         ((2, 4), [Shard(1), Shard(1)])):\n"
        "        mesh = init_device_mesh('cpu', shape)\n"
        "        local, start = compute_local_shape_and_global_offset((13, 10), mesh, kinds)\n"
        "        tensor = DTensor.from_local(torch.zeros(local), mesh, kinds, run_check=False,\n"
        "                                    shape=torch.Size((13, 10)), stride=(10, 1))\n"
        "        (mine,) = Parameters({'w': tensor}).layout['w']\n"
        "        assert mine.global_shape == (13, 10)\n"
        "        theirs = [list(start), list(local)]\n"
        "        if 0 not in local:\n"
        "            assert [list(mine.start), list(mine.shape)] == theirs, (mine, theirs)\n"
        "        assert list(mine.shape) == list(local), (mine, theirs)\n"
        "        found.append(mine.nbytes)\n"
        "    dist.destroy_process_group()\n"
        "    return found\n"
    )
    assert all(len(torch.do(f"boxes({rank})")) == 6 for rank in (0, 3, 6, 7))


def test_a_state_dict_is_filled_in_place(torch: Other, trainer: Any) -> None:
    _, _, port = trainer
    torch.do("params = {'w': torch.nn.Parameter(torch.zeros(6, 8).t()), 'b': torch.zeros(6)}")
    torch.do("at = [each.data_ptr() for each in params.values()]")
    torch.do(f"reader = weights.Subscriber(channel({port}, 'shm'), params)")
    assert torch.do("reader.pull(timeout=10).number") == 1
    assert torch.do("[each.data_ptr() for each in reader.params.values()] == at")
    assert torch.do("reader.params['w'] is params['w']")
    assert torch.do("params['w'].detach().flatten().tolist()") == list(range(48))


def test_bfloat16_goes_as_it_is(torch: Other) -> None:
    torch.do("half = {'w': torch.arange(4096, dtype=torch.bfloat16)}; made = publisher(half)")
    torch.do("made[0].publish(checksum=True)")
    torch.do("into = {'w': torch.zeros(4096, dtype=torch.bfloat16)}")
    torch.do("reader = weights.Subscriber(channel(made[2], 'tcp'), into)")
    assert torch.do("reader.pull(timeout=10).nbytes") == 8192
    assert torch.do("bool((into['w'] == half['w']).all())")


def test_a_view_has_tensors_of_a_framework(torch: Other, trainer: Any) -> None:
    _, _, port = trainer
    torch.do("into = {'w': np.zeros((8, 6), np.float32), 'b': np.zeros(6, np.float32)}")
    torch.do(f"reader = weights.Subscriber(channel({port}, 'shm'), into)")
    torch.do(
        "with reader.view(timeout=10, framework='torch') as view:\n"
        "    kinds = [each.dtype is torch.float32 for each in view.values()]\n"
        "    found = view['w'].flatten().tolist()"
    )
    assert torch.do("found") == list(range(48))
    assert torch.do("kinds") == [True, True]
    assert torch.do("float(into['w'].sum())") == 0


def test_arrays_of_jax_are_made_anew(jax: Other, trainer: Any) -> None:
    params, made, port = trainer
    jax.do(
        "params = {'w': jax.device_put(np.zeros((8, 6), np.float32),"
        " NamedSharding(mesh, PartitionSpec('x'))), 'b': jax.numpy.zeros(6)}"
    )
    jax.do("sharding, old = params['w'].sharding, params['w']")
    jax.do(f"reader = weights.Subscriber(channel({port}, 'shm'), params)")
    assert jax.do("reader.pull(timeout=10).nbytes") == 48 * 4 + 24
    assert jax.do("np.asarray(reader.params['w']).ravel().tolist()") == list(range(48))
    assert jax.do("reader.params['w'].sharding == sharding")
    assert jax.do("reader.params['b'].tolist()") == [1] * 6
    assert jax.do("float(old.sum())") == 0
    params["b"] += 1
    made.publish()
    assert jax.do("reader.pull(timeout=10).changed") == ["b"]
    assert jax.do("reader.params['b'].tolist()") == [2] * 6


def test_arrays_of_jax_are_published_by_their_boxes(jax: Other) -> None:
    jax.do(
        "def rows(number): return {'w': jax.device_put(np.full((8, 6), number, np.float32),"
        " NamedSharding(mesh, PartitionSpec('x')))}"
    )
    jax.do("made = publisher(rows(3))")
    jax.do("made[0].publish()")
    assert jax.do("len(made[0]._parameters.layout['w'])") == 4
    mine = {"w": np.zeros((8, 6), np.float32)}
    with weights.Subscriber(channel(jax.do("made[2]"), "shm"), mine) as reader:
        reader.pull(timeout=10)
        assert (mine["w"] == 3).all()
        jax.do("made[0].publish(params=rows(4))")  # an optimizer makes new arrays
        reader.pull(at_least=2, timeout=10)
        assert (mine["w"] == 4).all()


def test_names_of_a_tree() -> None:
    tree: Any = {"layers": [{"kernel": np.zeros(2)}, {"kernel": np.zeros(3)}], "none": None}
    made, server, port = publisher(tree)
    made.publish()
    assert sorted(made._parameters.layout) == ["['layers'][0]['kernel']", "['layers'][1]['kernel']"]
    into: Any = {"layers": [{"kernel": np.ones(2)}, {"kernel": np.ones(3)}], "none": None}
    with weights.Subscriber(channel(port, "shm"), into) as reader:
        assert reader.pull(timeout=10).nbytes == 40
        assert not into["layers"][1]["kernel"].any()
    server.stop(None)
