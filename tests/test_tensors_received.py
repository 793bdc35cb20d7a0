# SPDX-License-Identifier: Apache-2.0
"""What a receiver may do with received tensors: writing raises or stays private, never crashes and
never reaches the sender. The messages here are really received, over a channel of tensorwire.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest
from tests.transports import HERE

import tensorwire
from tensorwire import _core, tensors

N = 1 << 18


class Mailbox:
    """A server that keeps what it was sent, and a channel to it."""

    def __init__(self, transport: Any = None) -> None:
        self.messages: list[list[_core.Buffer]] = []
        self.server = tensorwire.server(futures.ThreadPoolExecutor(1))
        handler: Any = grpc.unary_unary_rpc_method_handler(
            self._keep, request_deserializer=tensorwire.rpc.segments(lambda segments: segments)
        )
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("Mailbox", {"Keep": handler}),)
        )
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = tensorwire.insecure_channel(f"127.0.0.1:{port}", transport=transport)
        self._call = self.channel.unary_unary("/Mailbox/Keep", tensors.serializer)

    def _keep(self, segments: list[_core.Buffer], context: object) -> bytes:
        self.messages.append(segments)
        return b""

    def receive(self, obj: object) -> list[_core.Buffer]:
        self._call(obj, timeout=20)
        return self.messages.pop()

    def close(self) -> None:
        self.channel.close()
        self.server.stop(None).wait()


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Mailbox]:
    made = Mailbox()
    yield made
    made.close()


@pytest.fixture
def copied() -> Callable[[], dict[str, int]]:
    before = Counter(tensors.copies().reasons)
    return lambda: dict(Counter(tensors.copies().reasons) - before)


def published() -> np.ndarray[Any, Any]:
    return tensorwire.publish(np.full(N, 1, np.float32))


def test_segments_are_lent_only_when_published(mailbox: Mailbox) -> None:
    source = published()
    assert [s.leased for s in mailbox.receive(source)] == [False, True]
    assert isinstance(mailbox.receive(source)[0], _core.Buffer)
    received = mailbox.receive(np.ones(N, np.float32))
    assert tensors.loads(received).sum() == N


@pytest.mark.parametrize("make", [published, lambda: np.ones(N, np.float32)])
def test_numpy_raises(mailbox: Mailbox, make: Any, copied: Any) -> None:
    source = make()
    message = mailbox.receive({"x": source, "y": [source, 1]})
    array = tensors.loads(message)["x"]
    assert array.ctypes.data in {segment.address for segment in message}
    for write in (
        lambda: array.__setitem__(0, 5),
        lambda: array.__iadd__(1),
        lambda: np.add(array, 1, out=array),
        lambda: setattr(array.flags, "writeable", True),
        lambda: memoryview(array).cast("B").__setitem__(0, 5),
    ):
        with pytest.raises((ValueError, TypeError), match=r"read-?only|WRITEABLE"):
            write()
    assert (array == 1).all()
    assert copied() == {}


def test_torch_writes_in_private(mailbox: Mailbox, copied: Any) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    source = published()
    message = mailbox.receive(source)
    tensor = tensors.loads(message, framework="torch")
    assert tensor.data_ptr() == message[1].address
    tensor.add_(1)
    tensor[::2].zero_()
    torch.nn.init.constant_(tensor, 7)
    assert (tensor == 7).all()
    assert (source == 1).all()
    again = tensors.loads(mailbox.receive(source), framework="torch")
    assert (again == 1).all()
    again.add_(1)
    assert (tensor == 7).all()
    assert (source == 1).all()
    assert copied() == {}


def test_torch_tensors_of_one_source_do_not_share_writes(mailbox: Mailbox, copied: Any) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    source = published()
    first = tensors.loads(mailbox.receive(source), framework="torch")
    second = tensors.loads(mailbox.receive(source), framework="torch")
    seen = tensors.loads(mailbox.receive(source))
    first.add_(1)
    second.add_(2)
    assert (first == 2).all()
    assert (second == 3).all()
    assert (seen == 1).all()
    assert (source == 1).all()
    assert copied() == {}


def test_dlpack_of_a_received_array_cannot_write_to_the_sender(mailbox: Mailbox) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    source = published()
    array = tensors.loads(mailbox.receive(source))
    with pytest.warns(UserWarning, match="not writable"):
        torch.from_numpy(array).add_(1)
    assert (source == 1).all()


def test_tensorflow_never_writes_to_the_sender(mailbox: Mailbox, copied: Any) -> None:
    tf = pytest.importorskip("tensorflow", exc_type=ImportError)
    source = published()
    message = mailbox.receive(source)
    tensor = tensors.loads(message, framework="tensorflow")
    assert tensors.dumps(tensor)[1] == memoryview(message[1])
    assert copied() == {}
    # Ops reuse the buffer of an input that nobody else holds.
    tensor = tf.nn.relu(-tensor)
    tensor = tf.raw_ops.InplaceAdd(x=tensors.loads(message, framework="tensorflow"), i=[0], v=[3.0])
    variable = tf.Variable(tensors.loads(message, framework="tensorflow"))
    variable.assign_add(tf.ones(N))
    assert (source == 1).all()


def test_jax_never_writes_to_the_sender(mailbox: Mailbox, copied: Any) -> None:
    jax = pytest.importorskip("jax", exc_type=ImportError)
    source = published()
    message = mailbox.receive(source)
    array = tensors.loads(message, framework="jax")
    assert array.unsafe_buffer_pointer() == message[1].address
    jax.jit(lambda x: x + 1, donate_argnums=0)(array).block_until_ready()
    assert (source == 1).all()
    assert copied() == {}


@pytest.mark.parametrize("framework", ["numpy", "torch", "tensorflow", "jax"])
def test_a_tensor_outlives_everything_but_its_memory(framework: Any) -> None:
    if framework != "numpy":
        pytest.importorskip(framework, exc_type=ImportError)
    box = Mailbox()
    source = published()
    tensor = tensors.loads(box.receive(source), framework=framework)
    del source
    box.close()
    del box
    gc.collect()
    assert float(tensor.sum() if framework == "numpy" else np.asarray(tensor).sum()) == N


def test_the_last_view_returns_the_lease(mailbox: Mailbox) -> None:
    def used() -> int:
        gc.collect()
        mailbox.receive(b"")  # the reply takes released leases along
        return tensorwire.arena_stats()["used"]

    before = used()
    message = mailbox.receive(published())
    assert message[1].leased
    view = tensors.loads(message)[10:20]
    del message
    assert used() > before
    assert (view == 1).all()
    del view
    assert used() == before


def test_writable_arrays_are_private(mailbox: Mailbox, copied: Any) -> None:
    source = published()
    message = mailbox.receive({"x": source})
    array = tensors.loads(message, writable=True)["x"]
    assert array.ctypes.data in {segment.address for segment in message}
    array += 1
    assert (array == 2).all()
    assert (source == 1).all()
    lone = tensors.loads(mailbox.receive(source), writable=True)
    assert (lone == 1).all()
    lone[0] = 3
    assert (source == 1).all()
    assert copied() == {}


@pytest.mark.parametrize("transport", [*HERE, "grpc"])
def test_empty_tensors_arrive(transport: Any) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    mailbox = Mailbox(transport)
    for obj in (np.zeros((0, 4), "f4"), {"x": np.zeros((0, 4), "f4"), "y": np.ones(3)}):
        message = mailbox.receive(obj)
        for result in (
            tensors.loads(message, framework="torch"),
            tensors.loads(message, writable=True),
        ):
            empty = result["x"] if isinstance(result, dict) else result
            empty *= 2
            assert tuple(empty.shape) == (0, 4)
    mailbox.close()


def test_own_published_memory_is_not_taken_for_received(copied: Any) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    source = tensorwire.publish(np.ones(4, np.float32))
    base: Any = source
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, _core.Buffer)
    header = tensors.dumps(np.ones(len(base), np.uint8))[0]
    tensor = tensors.loads([header, base], framework="torch")
    tensor.zero_()
    assert (source == 1).all()
    assert copied() == {"read-only memory, writable framework": 1}
