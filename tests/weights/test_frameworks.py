# SPDX-License-Identifier: Apache-2.0
"""Parameters of frameworks, and how these cut them, each in a process that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from tests.weights.other import Other, channel, eventually, other, publisher

from tensorwire import weights
from tensorwire.tensors import dtypes
from tensorwire.weights.layouts import Split, box_of

pytestmark = pytest.mark.timeout(120)  # the import of a framework takes its time

FRAMEWORKS = [name for name in ("torch", "tensorflow", "jax") if find_spec(name)]


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
def tensorflow() -> Iterator[Other]:
    if "tensorflow" not in FRAMEWORKS:
        pytest.skip("there is no TensorFlow")
    with other() as process:
        process.do("import tensorflow")
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


def test_a_variable_of_which_one_box_changes(tensorflow: Other) -> None:
    """The other box is what the variable holds, and not what it held at first."""
    halves = [np.ones((4, 2), np.float32) for _ in range(2)]
    made = []
    for number, half in enumerate(halves):
        shard = weights.Shard((0, 2 * number), (4, 2), (4, 4), "float32")
        made.append(publisher({"w": half}, shards={"w": shard}))
    ports = [port for _, _, port in made]
    targets = [f"127.0.0.1:{port}" for port in ports]
    tensorflow.do("import tensorflow as tf")
    tensorflow.do("v = tf.Variable(tf.fill((4, 4), -7.))")
    tensorflow.do(f"s = weights.Subscriber({targets}, {{'w': v}})")
    try:
        for value in (1, 2, 3):
            halves[0][:] = value
            for each, _, _ in made:
                each.publish()
            tensorflow.do("s.pull(timeout=20)")
            assert tensorflow.do("v.numpy().tolist()") == [[value, value, 1, 1]] * 4
        tensorflow.do("v.assign(tf.fill((4, 4), 9.))")  # the user's own stays where nothing comes
        halves[0][:] = 4
        for each, _, _ in made:
            each.publish()
        tensorflow.do("s.pull(timeout=20)")
        assert tensorflow.do("v.numpy().tolist()") == [[4, 4, 9, 9]] * 4
    finally:
        tensorflow.do("s.close()")
        for _, server, _ in made:
            server.stop(None)


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


class Viewed:
    """A publication, and another process that views it as tensors of a framework."""

    def __init__(self, process: Other, framework: str) -> None:
        self.process = process
        self.framework = framework
        self.params = {
            "w": np.arange(1 << 18, dtype=np.float32).reshape(512, 512),
            "b": np.ones(1000, np.float32),
        }
        self.made, self.server, self.port = publisher(self.params)
        self.made.publish()
        process.do("import ctypes, gc, sys")
        process.do("from tensorwire import tensors")
        process.do(
            "def reader(port, way, columns=512):\n"
            "    into = {'w': np.zeros((512, columns), np.float32), 'b': np.zeros(1000, 'f4')}\n"
            "    box = weights.Shard((0, 0), (512, columns), (512, 512), 'float32')\n"
            "    return weights.Subscriber(channel(port, way), into, shards={'w': box})"
        )
        process.do("def at(tensor): return np.asarray(tensor).__array_interface__['data'][0]")
        process.do("def places(view): return {name: at(view[name]) for name in view}")
        process.do(  # as an operation of the framework may, whatever flags the memory had
            "def spoil(tensor): ctypes.memset(at(tensor), 255, np.asarray(tensor).nbytes)"
        )
        process.do(
            "def first(view): return [float(np.asarray(view[name]).flat[1]) for name in view]"
        )
        process.do(
            "def viewed(reader, framework): return reader.view(timeout=10, framework=framework)"
        )

    def subscribe(self, name: str, way: str = "shm", columns: int = 512) -> None:
        self.process.do(f"{name} = reader({self.port}, {way!r}, {columns})")

    def look(self, name: str, what: str, framework: str | None = None) -> Any:
        """Within a view of its own."""
        self.process.do(
            f"with viewed({name}, {framework or self.framework!r}) as view: found = {what}"
        )
        return self.process.do("found")


@pytest.fixture(params=["torch", "tensorflow"])
def viewed(request: pytest.FixtureRequest) -> Iterator[Viewed]:
    found = Viewed(request.getfixturevalue(request.param), request.param)
    yield found
    found.server.stop(None)


def test_a_view_of_a_framework_that_writes_is_where_the_publisher_has_it(viewed: Viewed) -> None:
    viewed.subscribe("one")
    lent = viewed.look("one", "places(view)", "numpy")
    for _ in range(2):
        assert viewed.look("one", "places(view)") == lent
    kind = "tensorflow.float32" if viewed.framework == "tensorflow" else "torch.float32"
    assert viewed.look("one", f"[tuple(view['w'].shape), view['w'].dtype == {kind}]") == [
        [512, 512],
        True,
    ]
    assert viewed.look("one", "first(view)") == [1, 1]
    eventually(lambda: viewed.made.stats().leased == 0)


def test_what_is_written_to_a_view_stays_there(viewed: Viewed) -> None:
    for name in ("one", "two", "three"):
        viewed.subscribe(name)
    process, framework = viewed.process, viewed.framework
    process.do(
        "with viewed(one, 'numpy') as before, "
        f"viewed(two, {framework!r}) as mine, viewed(three, {framework!r}) as theirs:\n"
        "    for tensor in mine.values(): spoil(tensor)\n"
        "    del tensor\n"
        "    found = [first(before), first(theirs), bool(np.isnan(first(mine)).all())]\n"
        "    with viewed(one, 'numpy') as after: found.append(first(after))"
    )
    assert process.do("found") == [[1, 1], [1, 1], True, [1, 1]]
    # By itself a view is in the mapping that all later ones have, too.
    for _ in range(2):
        assert viewed.look("one", "[spoil(each) for each in view.values()]") == [None, None]
        assert viewed.look("one", "first(view)", "numpy") == [1, 1]
    eventually(lambda: viewed.made.stats().leased == 0)
    mine = {name: np.zeros_like(each) for name, each in viewed.params.items()}
    with weights.Subscriber(channel(viewed.port, "shm"), mine) as reader:
        reader.pull(timeout=10)
    for name, each in viewed.params.items():
        assert (mine[name] == each).all()


def test_a_tensor_of_a_view_outlives_all_else(viewed: Viewed) -> None:
    viewed.subscribe("one")
    process = viewed.process
    process.do(f"with viewed(one, {viewed.framework!r}) as view: kept = view['w']")
    viewed.params["w"] += 1
    viewed.made.publish()
    assert process.do("float(np.asarray(kept)[511, 511])") == (1 << 18) - 1
    assert viewed.made.stats().leased > 0
    assert viewed.look("one", "first(view)") == [1, 2]
    process.do("one.close()")
    viewed.made.close()
    viewed.server.stop(None).wait()
    assert process.do("float(np.asarray(kept)[511, 511])") == (1 << 18) - 1
    process.do("spoil(kept)")
    assert process.do("bool(np.isnan(np.asarray(kept)).all())")
    process.do("del kept")


def test_a_view_over_tcp_is_what_was_received(viewed: Viewed) -> None:
    viewed.subscribe("one", "tcp")
    viewed.process.do("copies = tensors.copies().tensors")
    assert viewed.look("one", "[first(view), [spoil(each) for each in view.values()]][0]") == [1, 1]
    assert viewed.process.do("tensors.copies().tensors == copies")
    assert viewed.look("one", "first(view)") == [1, 1]


def test_a_view_of_who_writes_in_place_is_what_was_received(torch: Other) -> None:
    params = {"w": np.ones(1 << 16, np.float32)}
    made, server, port = publisher(params, mode="in_place")
    made.publish()
    torch.do("from tensorwire import tensors")
    torch.do("into = {'w': torch.zeros(1 << 16)}; copies = tensors.copies().tensors")
    torch.do(f"reader = weights.Subscriber(channel({port}, 'shm'), into)")
    torch.do("with reader.view(timeout=10, framework='torch') as view: found = view['w'].add_(1)")
    assert torch.do("float(found.sum())") == 2 << 16
    assert torch.do("tensors.copies().tensors == copies")
    assert (params["w"] == 1).all()
    server.stop(None)


def test_columns_of_a_view(viewed: Viewed) -> None:
    """They lie apart, which PyTorch takes and TensorFlow does not."""
    viewed.subscribe("one", columns=128)
    lent = viewed.look("one", "places(view)", "numpy")
    found = viewed.look("one", "places(view)")
    assert (found["w"] == lent["w"]) is (viewed.framework == "torch")
    assert viewed.look("one", "float(np.asarray(view['w'])[1, 0])") == 512


def test_a_view_of_bfloat16_is_no_copy(torch: Other) -> None:
    made, server, port = publisher({"w": np.arange(1 << 16).astype(dtypes.own("bfloat16"))})
    made.publish()
    torch.do("into = {'w': torch.zeros(1 << 16, dtype=torch.bfloat16)}")
    torch.do(f"reader = weights.Subscriber(channel({port}, 'shm'), into)")
    torch.do("with reader.view(timeout=10) as view: at = view['w'].ctypes.data")
    torch.do(
        "with reader.view(timeout=10, framework='torch') as view:\n"
        "    found = [view['w'].data_ptr() == at, view['w'].dtype is torch.bfloat16,\n"
        "             float(view['w'][3])]"
    )
    assert torch.do("found") == [True, True, 3]
    server.stop(None)


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
