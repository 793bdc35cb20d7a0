# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch, TensorFlow and JAX: no copy where there is a way, and said so where not.

What a receiver does to a received tensor never reaches the sender; memory of the runtime itself is
the business of test_arrays.py and of the conformance suite.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.test_tensors_hostile import message, tensor

from tensorwire import tensors
from tensorwire.tensors import DecodeError, TensorSpec, dtypes, frameworks, wire

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

FRAMEWORKS = ("torch", "tensorflow", "jax")
JAX = 3
"""Its number on the wire."""


def load(name: str) -> Any:
    return pytest.importorskip(name, exc_type=ImportError)


@pytest.fixture
def copied() -> Any:
    before = Counter(tensors.copies().reasons)
    return lambda: dict(Counter(tensors.copies().reasons) - before)


def aligned(data: bytes) -> memoryview:
    """Writable memory at a multiple of 64 bytes, as the runtime receives into."""
    memory: Any = np.zeros(len(data) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memoryview(memory)[start : start + len(data)]


def received(obj: object) -> list[memoryview]:
    """Segments as a receiver gets them: another process's bytes in aligned, private memory."""
    return [aligned(bytes(segment)) for segment in tensors.dumps(obj)]


def address(view: Any) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_tensors_over_read_only_memory(framework: Any, shape: Any, copied: Any) -> None:
    load(framework)
    source = np.zeros(shape, "f4", order="F")
    result = tensors.loads(tensors.join(tensors.dumps({"w": source})), framework=framework)["w"]
    assert frameworks.framework_of(result) == framework
    assert tuple(result.shape) == shape
    assert copied() == {}
    source.flags.writeable = False
    assert tuple(frameworks.of_array(source, framework).shape) == shape


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "same"])
@pytest.mark.parametrize("name", sorted(dtypes.EXTENDED))
def test_a_dtype_is_there_or_refused(name: str, framework: Any) -> None:
    """A peer chooses the dtype and, where the framework is to be the same, that one, too."""
    load("jax" if framework == "same" else framework)
    nbytes = 4 * dtypes.EXTENDED[name]
    for shape in ([2, 2], [4], [0]):
        size = nbytes if all(shape) else 0
        data = message([tensor(name, shape, size, None, JAX)], [[wire.TENSOR, 0]]) + bytes(size)
        try:
            result: Any = tensors.loads(data, framework=framework)
        except DecodeError:
            continue
        assert tuple(result.shape) == tuple(shape)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_empty_tensors_of_a_foreign_byte_order(framework: Any) -> None:
    load(framework)
    joined = tensors.join(tensors.dumps(np.zeros((0, 3), ">i4")))
    result = tensors.loads(joined, framework=framework)
    assert (tuple(result.shape), frameworks.framework_of(result)) == ((0, 3), framework)


def test_an_empty_array_may_be_written_where_that_is_asked_for(copied: Any) -> None:
    joined = tensors.join(tensors.dumps(np.zeros((0, 3))))
    result = tensors.loads(joined, writable=True)
    result *= 2
    assert (result.shape, result.flags.writeable) == ((0, 3), True)
    assert copied() == {}


# --------------------------------------------------------------------------------------- PyTorch


TORCH_DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex32", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_torch_dtypes_both_ways_without_a_copy(name: str, shape: Any, copied: Any) -> None:
    torch = load("torch")
    dtype = getattr(torch, name)
    source = torch.arange(6, dtype=torch.uint8)[: int(np.prod(shape))].reshape(shape)
    source = source.to(torch.float32).to(dtype) if name != "complex32" else source.to(dtype)
    segments = tensors.dumps({"w": source})
    if source.numel():
        assert address(segments[1]) == source.data_ptr()
    message = received({"w": source})
    result = tensors.loads(message, framework="torch")["w"]
    assert result.dtype is dtype
    assert result.shape == source.shape
    assert bytes(tensors.dumps(result)[1]) == bytes(segments[1])
    if source.numel():
        assert result.data_ptr() == address(message[1])
    assert copied() == {}


def test_torch_strides_travel(copied: Any) -> None:
    torch = load("torch")
    source = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    result = tensors.loads(received(source), framework="torch")
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result, source)
    bfloat = tensors.loads(received(source.bfloat16()), framework="torch")
    assert torch.equal(bfloat, source.bfloat16())
    assert copied() == {}


def test_torch_parameters_and_views(copied: Any) -> None:
    torch = load("torch")
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    assert address(tensors.dumps(parameter)[1]) == parameter.data_ptr()
    assert copied() == {}
    conjugate = torch.tensor([1 + 2j, 3j]).conj()
    assert tensors.loads(tensors.dumps(conjugate)).tolist() == [1 - 2j, -3j]
    assert copied() == {"stored differently by the framework": 1}
    assert tensors.loads(tensors.dumps(parameter[:, ::2])).tolist() == [[0, 2], [3, 5]]
    assert copied()["non-contiguous"] == 1
    state = torch.nn.Linear(2, 2).state_dict()
    back = tensors.loads(tensors.dumps(state), framework="torch", like=state)
    assert all(torch.equal(back[k], state[k]) for k in state)


def test_torch_tensors_over_read_only_memory_are_private(copied: Any) -> None:
    torch = load("torch")
    joined = tensors.join(tensors.dumps(np.zeros(3, np.float32)))
    before = bytes(joined)
    result = tensors.loads(joined, framework="torch")
    result.add_(1)
    assert result.tolist() == [1, 1, 1]
    assert joined == before
    assert copied() == {"read-only memory, writable framework": 1}
    assert isinstance(result, torch.Tensor)


def test_torch_over_unaligned_or_foreign_byte_order(copied: Any) -> None:
    torch = load("torch")
    joined = tensors.join(tensors.dumps(np.arange(3.0)))
    memory = bytearray(len(joined) + 1)
    memory[1:] = joined
    assert tensors.loads(memoryview(memory)[1:], framework="torch").tolist() == [0, 1, 2]
    assert copied() == {"alignment": 1}
    result = tensors.loads(received(np.arange(3, dtype=">i4")), framework="torch")
    assert (result.tolist(), result.dtype) == ([0, 1, 2], torch.int32)
    assert copied() == {"alignment": 1, "byte order": 1}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.*quantized")
def test_torch_refusals() -> None:
    torch = load("torch")
    for source, reason in (
        (torch.zeros(2, device="meta"), r"obj\[0\]: a torch tensor on meta: .*\.cpu\(\)"),
        (torch.zeros(2).to_sparse(), r"obj\[0\]: a torch tensor that is torch\.sparse_coo"),
        (torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8), "that is quantized"),
        (torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "dtype bits8 cannot travel"),
    ):
        with pytest.raises(TypeError, match=reason):
            tensors.dumps([source])
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(3)
    with pytest.raises(TypeError, match=r"obj\[0\]: a .*FakeTensor without usable memory"):
        tensors.dumps([fake])
    for dtype in ("datetime64[s]", "float6_e2m3fn"):
        message = tensors.dumps([np.zeros(2, tensors.TensorSpec(dtype=dtype).numpy_dtype)])
        with pytest.raises(DecodeError, match=r"obj\[0\]: torch has no dtype"):
            tensors.loads(message, framework="torch")


def test_torch_dtypes_need_no_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = load("torch")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    source = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    assert torch.equal(tensors.loads(received(source), framework="torch"), source)


# ------------------------------------------------------------------------------------- TensorFlow


TENSORFLOW_DTYPES = {
    **dict.fromkeys(
        ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
    ),
    **dict.fromkeys(("float16", "float32", "float64", "complex64", "complex128", "bfloat16")),
    **dict.fromkeys(
        ("float8_e5m2", "float8_e4m3fn", "int4"), "stored differently by the framework"
    ),
}


@pytest.mark.parametrize("name", TENSORFLOW_DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensorflow_dtypes_both_ways(name: str, shape: Any, copied: Any) -> None:
    tf = load("tensorflow")
    spec = TensorSpec(dtype=name)
    values = np.arange(6)[: int(np.prod(shape))].astype(spec.numpy_dtype).reshape(shape)
    source = tf.convert_to_tensor(values)
    segments = tensors.dumps({"w": source})
    assert tensors.describe(source)[0].framework == "tensorflow"
    assert copied() == {}
    message = received({"w": source})
    result = tensors.loads(message, framework="tensorflow")["w"]
    assert result.dtype == source.dtype
    assert result.shape == source.shape
    back = tensors.dumps(result)
    assert bytes(back[1]) == bytes(segments[1])
    reason = TENSORFLOW_DTYPES[name]
    assert copied() == ({reason: 1} if reason else {})
    if source.shape.num_elements() and not reason:
        assert address(back[1]) == address(message[1])


def test_tensorflow_variables_and_order(copied: Any) -> None:
    tf = load("tensorflow")
    variable = tf.Variable([1.0, 2.0])
    segments = tensors.dumps(variable)
    variable.assign_add([1.0, 1.0])
    assert tensors.loads(segments).tolist() == [1, 2]
    assert copied() == {}
    result = tensors.loads(received(np.ones((2, 3), "f4", order="F")), framework="tensorflow")
    assert result.shape == (2, 3)
    assert copied() == {"framework wants C order": 1}


def test_tensorflow_over_unaligned_memory_is_copied(copied: Any) -> None:
    load("tensorflow")
    for dtype in ("float32", "bfloat16"):
        values = np.ones(16, TensorSpec(dtype=dtype).numpy_dtype)
        header, payload = tensors.dumps(values)
        message = [header, aligned(bytes(32) + bytes(payload))[32:]]
        result = tensors.loads(message, framework="tensorflow")
        assert tensors.loads(tensors.dumps(result)).tolist() == [1] * 16
        assert address(tensors.dumps(result)[1]) % 64 == 0
    assert copied() == {"alignment": 2}


def test_tensorflow_refusals() -> None:
    tf = load("tensorflow")
    with pytest.raises(TypeError, match=r"obj\[0\]: a TensorFlow tensor of strings"):
        tensors.dumps([tf.constant(["a"])])
    with pytest.raises(TypeError, match=r"obj\[0\]: a .*RaggedTensor is neither"):
        tensors.dumps([tf.ragged.constant([[1], [1, 2]])])
    quantized = tf.bitcast(tf.constant([1], tf.int8), tf.qint8)
    with pytest.raises(TypeError, match=r"obj\[0\]: dtype qint8 cannot travel"):
        tensors.dumps([quantized])
    seen = []

    @tf.function  # type: ignore[untyped-decorator]
    def traced(x: Any) -> Any:
        with pytest.raises(TypeError, match=r"obj\[0\]: a symbolic TensorFlow tensor"):
            tensors.dumps([x])
        seen.append(x)
        return x

    traced(tf.constant(1.0))
    assert seen
    for dtype in ("datetime64[s]", "float8_e8m0fnu"):
        message = tensors.dumps([np.zeros(2, TensorSpec(dtype=dtype).numpy_dtype)])
        with pytest.raises(DecodeError, match=r"obj\[0\]: tensorflow has no dtype"):
            tensors.loads(message, framework="tensorflow")


# -------------------------------------------------------------------------------------------- JAX


JAX_DTYPES = {
    **dict.fromkeys(("bool", "uint8", "int8", "int16", "int32", "uint16", "uint32")),
    **dict.fromkeys(("float16", "float32", "complex64", "bfloat16")),
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu")),
    **dict.fromkeys(("int4", "uint4", "int2"), "stored differently by the framework"),
}


@pytest.mark.parametrize("name", JAX_DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_jax_dtypes_both_ways(name: str, shape: Any, copied: Any) -> None:
    jax = load("jax")
    values = np.ones(shape, TensorSpec(dtype=name).numpy_dtype)
    source = jax.numpy.asarray(values)
    segments = tensors.dumps({"w": source})
    reason = JAX_DTYPES[name]
    assert copied() == ({reason: 1} if reason else {})
    if values.size and not reason:
        assert address(segments[1]) == source.unsafe_buffer_pointer()
    message = received({"w": source})
    before = Counter(copied())
    result = tensors.loads(message, framework="jax")["w"]
    assert isinstance(result, jax.Array)
    assert (result.dtype, result.shape) == (source.dtype, source.shape)
    assert bytes(tensors.dumps(result)[1]) == bytes(segments[1])
    if values.size and not reason:
        assert result.unsafe_buffer_pointer() == address(message[1])
        assert Counter(copied()) == before


def test_jax_never_narrows() -> None:
    jax = load("jax")
    message = tensors.dumps([np.zeros(2, np.float64)])
    with pytest.raises(DecodeError, match=r"obj\[0\]: float64 needs .*jax_enable_x64"):
        tensors.loads(message, framework="jax")
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        assert tensors.loads(message, framework="jax")[0].dtype == np.float64


def test_jax_copies_are_said_so(copied: Any) -> None:
    load("jax")
    header, payload = tensors.dumps(np.ones(16, np.float32))
    message = [header, aligned(bytes(4) + bytes(payload))[4:]]
    assert tensors.loads(message, framework="jax").tolist() == [1] * 16
    assert copied() == {"alignment": 1}
    assert tensors.loads(received(np.arange(3, dtype=">i2")), framework="jax").tolist() == [0, 1, 2]
    assert copied() == {"alignment": 1, "byte order": 1}


def test_jax_donation_does_not_write_to_received_memory() -> None:
    jax = load("jax")
    joined = aligned(tensors.join(tensors.dumps(np.zeros(1024, np.float32)))).toreadonly()
    result = tensors.loads(joined, framework="jax")
    jax.jit(lambda x: x + 1, donate_argnums=0)(result).block_until_ready()
    assert not any(joined[-4096:])


def test_jax_refusals() -> None:
    jax = load("jax")
    with pytest.raises(TypeError, match=r"obj\[0\]: dtype key<.*> cannot travel"):
        tensors.dumps([jax.random.key(0)])
    deleted = jax.numpy.zeros(3)
    deleted.delete()
    with pytest.raises(
        TypeError, match=r"obj\[0\]: a .*ArrayImpl without usable memory: .*deleted"
    ):
        tensors.dumps([deleted])
    with pytest.raises(DecodeError, match="jax has no dtype datetime64"):
        tensors.loads(tensors.dumps(np.zeros(2, "M8[s]")), framework="jax")

    def traced(x: Any) -> Any:
        with pytest.raises(TypeError, match=r"obj\[0\]: .*[Tt]race"):
            tensors.dumps([x])
        return x

    assert jax.jit(traced)(1.0) == 1


# ------------------------------------------------------------------------------------ all of them


def make(name: str, values: Any) -> Any:
    if name == "torch":
        return load("torch").from_numpy(values)
    if name == "tensorflow":
        return load("tensorflow").convert_to_tensor(values)
    return load("jax").numpy.asarray(values)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_same_keeps_the_framework_and_like_chooses_it(name: str) -> None:
    source = make(name, np.arange(3, dtype=np.float32))
    message = received({"w": source, "n": np.zeros(2)})
    same = tensors.loads(message, framework="same")
    assert type(same["w"]) is type(source)
    assert type(same["n"]) is np.ndarray
    like = {"w": source, "n": np.ones(2)}
    assert type(tensors.loads(message, like=like)["w"]) is type(source)
    assert type(tensors.loads(message)["w"]) is np.ndarray
    with pytest.raises(DecodeError, match=r"obj\['w'\]: expected a tensor float32\[4\]"):
        tensors.loads(message, like=like | {"w": make(name, np.zeros(4, np.float32))})


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_specs_take_dtypes_of_frameworks(name: str) -> None:
    module = load(name)
    dtype = (module.numpy if name == "jax" else module).bfloat16
    spec = TensorSpec((3,), dtype)
    assert spec.dtype == "bfloat16"
    tensor = make(name, np.zeros(3, np.float32))
    assert "got float32[3]" in spec.check(tensor)
    assert TensorSpec((3,), "float32").check(tensor) == ""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    code = ("numpy", *FRAMEWORKS).index(name)
    header, payload = tensors.dumps(np.zeros(3, np.float32))
    message = [_with_framework(header, code), payload]
    with pytest.raises(ImportError, match=f"asked for as {name}, which cannot be imported"):
        tensors.loads(message, framework=name)  # type: ignore[arg-type]
    assert type(tensors.loads(message, framework="same")) is np.ndarray


def _with_framework(header: bytes | memoryview, code: int) -> bytes:
    """The header of one NumPy array with another framework's code."""
    from tensorwire.tensors import wire

    parsed = wire.decode(bytes(header))
    head = parsed.tensors[0]
    changed = wire.TensorHead(head.dtype, head.shape, head.nbytes, head.order, code)
    return wire.encode([changed], [(wire.TENSOR, 0)])  # type: ignore[list-item]
