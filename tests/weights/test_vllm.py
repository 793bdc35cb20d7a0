# SPDX-License-Identifier: Apache-2.0
"""The contract of vLLM's weight transfers, kept on a stand-in for it (``stand_in/vllm``)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tests.weights.other import Other, other, publisher

from tensorwire.weights import Shard, vllm_plugin

STAND_IN = Path(__file__).parent / "stand_in"

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="there is no PyTorch"),
    pytest.mark.timeout(120),  # the import of a framework takes its time
]


@pytest.fixture(scope="module")
def worker() -> Iterator[Other]:
    with other() as process:
        process.do(f"import sys; sys.path.insert(0, {str(STAND_IN)!r})")
        process.do("import torch; from tests.weights import worker")
        yield process


def test_a_worker_loads_what_was_published(worker: Other) -> None:
    """Rows of one tensor come from two publishers; types that NumPy lacks are PyTorch's."""
    import ml_dtypes

    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    scale = np.ones(2, ml_dtypes.bfloat16)
    made = []
    for start, params in ((0, {"w": rows[:3]}), (3, {"w": rows[3:], "scale": scale})):
        box = Shard((start, 0), params["w"].shape, rows.shape, "float32")
        made.append(publisher(params, shards={"w": box}))
    targets = [f"127.0.0.1:{port}" for _, _, port in made]
    for publishing, _, _ in made:
        publishing.publish()
    worker.do("model = worker.Model(); engine = worker.engine(model)")
    worker.do(f"worker.begin(engine, targets={targets})")
    worker.do("worker.update(engine, 1)")
    assert worker.do("model.events") == ["begun", "loaded", "finished m"]
    assert worker.do("model.loaded") == {
        "w": ["torch.float32", rows.tolist()],
        "scale": ["torch.bfloat16", [1.0, 1.0]],
    }
    # Of a tensor that has not changed nothing travels, and it is loaded nevertheless.
    rows += 1
    for publishing, _, _ in made:
        publishing.publish()
    worker.do("worker.update(engine, 2)")
    assert worker.do("model.loaded") == {
        "w": ["torch.float32", rows.tolist()],
        "scale": ["torch.bfloat16", [1.0, 1.0]],
    }
    worker.do("engine.shutdown(); engine.shutdown()")
    for _, server, _ in made:
        server.stop(None)


def test_a_version_that_does_not_come_leaves_the_model_as_it_was(worker: Other) -> None:
    made, server, port = publisher({"w": np.ones(2)})
    made.publish()
    worker.do("model = worker.Model(); engine = worker.engine(model)")
    with pytest.raises(AssertionError, match=r"RuntimeError: .* not before"):
        worker.do("engine.update_weights({'version': 1})")
    worker.do(f"worker.begin(engine, targets=['127.0.0.1:{port}'], timeout=0.05)")
    with pytest.raises(AssertionError, match=r"PullTimeoutError: .*the newest is 1"):
        worker.do("worker.update(engine, 2)")
    assert worker.do("model.events") == ["begun"]
    made.publish()
    worker.do("engine.update_weights({'version': 2})")
    assert worker.do("model.loaded") == {"w": ["torch.float64", [1.0, 1.0]]}
    worker.do("engine.shutdown()")
    server.stop(None)


def test_a_trainer_of_older_releases_publishes(worker: Other) -> None:
    worker.do("params = {'w': torch.zeros(3)}; made = publisher(params)")
    worker.do(
        "type(engine).trainer_send_weights(iter({'w': torch.ones(3)}.items()),"
        " {'publisher': made[0]})"
    )
    assert worker.do("made[0].version") == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("receive_weights=lambda self, update_info, load_weights: None", "takes .* load_weights"),
        ("__init__=lambda self, config, parallel_config: None", "made of .* parallel_config"),
        ("pause=abc.abstractmethod(lambda self: None)", "must have pause"),
    ],
)
def test_another_interface_is_refused_at_the_import(worker: Other, change: str, why: str) -> None:
    worker.do("import abc")
    with pytest.raises(AssertionError, match=f"ImportError: .*{why}"):
        worker.do(f"worker.imported({change})")
    worker.do("worker.imported()")


def test_a_process_without_vllm_has_no_registry() -> None:
    vllm_plugin.register()
