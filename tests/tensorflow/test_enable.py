# SPDX-License-Identifier: Apache-2.0
"""``enable``: once, from any thread, with settings that are permitted, and errors that help."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from tests.tensorflow.tiny import Tiny

import tensorwire.tensorflow
from tensorwire import SettingError
from tensorwire.tensorflow import settings

pytestmark = pytest.mark.timeout(120)
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(tmp_path_factory.mktemp("tiny"))


ONCE = """
import sys
from concurrent.futures import ThreadPoolExecutor
import tensorwire.tensorflow as tt
assert "tensorflow" not in sys.modules
assert not tt.enabled() and tt.stats() == {}
with ThreadPoolExecutor(8) as pool:
    engines = list(pool.map(lambda _: tt.enable(), range(8)))
assert tt.enabled()
assert all(engine is engines[0] for engine in engines)
assert engines[0].protocol == tt.PROTOCOL == "grpc+tensorwire"
assert engines[0].plugin.exists()
import tensorflow as tf
assert engines[0].tensorflow == tf.version.VERSION
assert tt.stats() == {"started": 1, "received_tcp": 12, "received_tcp_bytes": 3145728}

from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef
from tensorwire.tensorflow.protocol import rewritten
def becomes(protocol):
    server_def = ServerDef(protocol=protocol)
    return ServerDef.FromString(rewritten(server_def.SerializeToString())).protocol
assert becomes("grpc") == "grpc"
assert tt.enable(replace_grpc=True) is engines[0]
assert tt.enable(replace_grpc=True) is engines[0]
assert (becomes("grpc"), becomes("grpc+verbs")) == ("grpc+tensorwire", "grpc+verbs")
print("fine")
"""


@needs_tensorflow
def test_it_is_done_once(tiny: Tiny) -> None:
    done = tiny.run(ONCE)
    assert done.stdout == "fine\n", done.stderr


STOCK = """
import tensorwire.tensorflow as tt
engine = tt.enable(replace_grpc=True)
assert (engine.protocol, engine.plugin, tt.enabled(), tt.stats()) == ("grpc", None, False, {})
import tensorflow as tf
for protocol in "grpc", "grpc+tensorwire":
    server = tf.distribute.Server({"a": ["127.0.0.1:0"]}, protocol=protocol, start=False)
    assert server.target.startswith("grpc://")
print("fine")
"""


@needs_tensorflow
def test_the_stock_engine_is_kept_where_it_is_wanted(tiny: Tiny) -> None:
    done = tiny.run(STOCK, TF_RDMA_ENABLED="false", CXX="/no/such/compiler")
    assert done.stdout == "fine\n", done.stderr


@needs_tensorflow
@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"REFUSE": "too late"}, "PluginError: the plugin does not start: too late"),
        ({"REFUSE": "A=1 is wrong", "WRONG_SETTING": "1"}, "SettingError: A=1 is wrong"),
        ({"OTHER_TABLE": "1"}, "BuildError: the plugin was built for version "),
    ],
    ids=["refuses", "setting", "other table"],
)
def test_a_plugin_that_cannot_start(tiny: Tiny, environment: dict[str, str], says: str) -> None:
    done = tiny.run("import tensorwire.tensorflow as tt; tt.enable()", **environment)
    assert done.returncode == 1
    assert says in done.stderr


@needs_tensorflow
def test_a_library_that_is_none(tiny: Tiny) -> None:
    """It is what was built, as its digest says; the compiler was wrong."""
    program = """
import hashlib
import tensorwire.tensorflow as tt
library = build.plugin(build.installed())
library.write_text("no library")
(library.parent / build.DIGEST).write_text(hashlib.sha256(b"no library").hexdigest())
try:
    tt.enable()
finally:
    import shutil
    shutil.rmtree(library.parent)
"""
    done = tiny.run(program)
    assert "BuildError: TensorFlow cannot load the plugin" in done.stderr
    assert "and try again" in done.stderr


def test_importing_it_imports_little() -> None:
    program = (
        "import sys, tensorwire.tensorflow; "
        "print({'tensorflow', 'numpy', 'grpc', 'tensorwire._core'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("true", True), ("", True), ("1", True), ("TRUE", True), ("false", False), ("0", False)],
)
def test_the_switch(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_RDMA_ENABLED", value)
    assert settings.wanted() is expected


@pytest.mark.parametrize(
    ("name", "value", "permitted"),
    [
        ("TF_RDMA_ENABLED", "perhaps", "set true, false, 1 or 0"),
        ("TENSORWIRE_TF_ARENA", "x", "set auto, traced or off"),
        ("TF_RDMA_DEV_NAME", "mlx5 0", "set names of RDMA devices as in ibv_devices"),
        ("TF_RDMA_DEV_NAME", "../x", "set names of RDMA devices"),
        ("TF_RDMA_DEV_NAME", "mlx5_0,", "set names of RDMA devices"),
        ("TF_RDMA_DEV_NAME", "mlx5_0:x", "set names of RDMA devices"),
    ],
)
def test_values_that_are_not_permitted(
    name: str, value: str, permitted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=f"{name}='{value}' is not permitted: {permitted}"):
        settings.wanted()


@pytest.mark.parametrize(
    ("name", "value", "permitted"),
    [
        ("TF_RDMA_CHUNK_SIZE", "1K", "from 64K to 64M"),
        ("TF_RDMA_ACC_SIZE", "much", "from 0 to 1M"),
        ("TF_RDMA_BUF_SIZE", "1000000000", "from 1G to 1T, a multiple of 1073741824"),
    ],
)
def test_sizes_that_are_not_permitted(name: str, value: str, permitted: str) -> None:
    # The core reads them once in a process.
    program = (
        "import os, sys; os.environ[sys.argv[1]] = sys.argv[2]\n"
        "from tensorwire.tensorflow import settings; settings.wanted()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, name, value], capture_output=True, text=True, timeout=60
    )
    assert f"SettingError: {name}='{value}' is not permitted" in done.stderr
    assert permitted in done.stderr


# The runtime reads which devices are named once in a process.
DEVICES = """
import sys
from tensorwire.tensorflow import settings
settings.rdma_devices = lambda: (*sys.argv[1:],)
print(settings.wanted())
"""


@pytest.mark.parametrize(
    ("present", "guides", "own", "says"),
    [
        ("mlx4_0 mlx4_1", "mlx5_0", "", "a device of this host: mlx4_0, mlx4_1"),
        ("mlx4_0 mlx4_1", "mlx4_0:1, mlx5_0:1", "", "a device of this host: mlx4_0, mlx4_1"),
        ("mlx4_0 mlx4_1", "mlx4_0:1, mlx5_0:1", "mlx4_1", ""),
        ("mlx4_0 mlx5_0", "mlx4_0:1, mlx5_0:1", "", ""),
        ("", "mlx4_0:1, mlx5_0:1", "", "this host has no RDMA device"),
    ],
)
def test_a_device_that_is_not_there(present: str, guides: str, own: str, says: str) -> None:
    names = {"TF_RDMA_DEV_NAME": guides, "TENSORWIRE_VERBS_DEVICE": own}
    done = subprocess.run(
        [sys.executable, "-c", DEVICES, *present.split()],
        env=os.environ | names,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ("a device of" in says), done.stderr
    assert says in done.stderr
    assert bool(says) == bool(done.stderr)


def test_names_are_what_they_say() -> None:
    assert all(hasattr(tensorwire.tensorflow, name) for name in tensorwire.tensorflow.__all__)
