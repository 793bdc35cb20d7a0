# SPDX-License-Identifier: Apache-2.0
"""Tensors of other frameworks, seen as NumPy arrays over the same memory, and back.

No framework is imported to find out whether an object is one of its tensors: an object of a
framework cannot exist before its module. Receiving imports what the caller asked for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from tensorwire.tensors import dtypes
from tensorwire.tensors.errors import DecodeError
from tensorwire.tensors.wire import TensorHead

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike

Array = np.ndarray[Any, Any]
Framework = Literal["numpy", "torch", "tensorflow", "jax"]

# The index is the code on the wire.
NAMES: Final[tuple[Framework, ...]] = ("numpy", "torch", "tensorflow", "jax")
NUMPY, TORCH, TENSORFLOW, JAX = range(4)

# Why bytes are copied, in the words of ``describe`` and ``copies``.
NON_CONTIGUOUS: Final = "non-contiguous"
PACKED: Final = "stored differently by the framework"
SHARDED: Final = "spread over several devices"
READ_ONLY: Final = "read-only memory, writable framework"
UNALIGNED: Final = "alignment"
BYTE_ORDER: Final = "byte order"
ROW_MAJOR: Final = "framework wants C order"

# XLA and TensorFlow use aligned vector loads on what they are given.
_ALIGNMENT: Final = 64
_CPU_DEVICES: Final = frozenset((1, 3))  # DLPack: kDLCPU, kDLCUDAHost


class HostTensor(NamedTuple):
    """A tensor of any framework as an array over its memory."""

    array: Array
    """Elements of ``dtype``, or of its storage type where NumPy lacks the type."""
    dtype: str
    framework: int
    copied: str
    """Why ``array`` is a copy; empty if it is not."""


# ------------------------------------------------------------------------------------- inwards


def as_host(obj: object) -> HostTensor | None:
    """``obj`` as a tensor in host memory, None if it is no tensor of any kind.

    ``TypeError`` for a tensor that cannot travel: on an accelerator, sparse, of objects, ...
    """
    if type(obj) is np.ndarray:
        return HostTensor(obj, dtypes.name_of(obj.dtype), NUMPY, "")
    if isinstance(obj, np.ndarray):
        if isinstance(obj, np.ma.MaskedArray):
            raise TypeError("a masked array: send its .data and .mask")
        return HostTensor(obj.view(np.ndarray), dtypes.name_of(obj.dtype), NUMPY, "")
    # Not by the buffer protocol, by which a time is eight bytes.
    if isinstance(obj, np.generic) and not isinstance(obj, (str, bytes)):
        return HostTensor(np.asarray(obj), dtypes.name_of(obj.dtype), NUMPY, "")
    inwards = next(
        (_INWARDS[code] for code in (TORCH, TENSORFLOW, JAX) if _is_tensor(obj, code)),
        _from_protocol,
    )
    try:
        return inwards(obj)
    except TypeError:
        raise
    except Exception as error:
        # Each framework has errors of its own for tensors without host memory: deleted, traced,
        # fake, functional.
        reason = str(error).partition("\n")[0]
        raise TypeError(f"a {_type_name(obj)} without usable memory: {reason}") from error


def signature(obj: object) -> tuple[str, tuple[int, ...]] | None:
    """(dtype, shape) of a tensor, wherever its memory is; None if ``obj`` is no tensor."""
    if isinstance(obj, (np.ndarray, np.generic)):
        return dtypes.name_of(obj.dtype), obj.shape
    for code in (TORCH, TENSORFLOW, JAX):
        if _is_tensor(obj, code):
            tensor: Any = obj
            name = str(tensor.dtype) if code == TORCH else tensor.dtype.name
            return name.removeprefix("torch."), tuple(tensor.shape)
    host = _from_protocol(obj)
    return None if host is None else (host.dtype, host.array.shape)


def framework_of(obj: object) -> Framework:
    for code in (TORCH, TENSORFLOW, JAX):
        if _is_tensor(obj, code):
            return NAMES[code]
    return "numpy"


def _classes(code: int) -> tuple[type, ...]:
    """The tensor classes of a framework that is loaded, () for one that is not (or not yet)."""
    module = sys.modules.get(NAMES[code])
    if module is None:
        return ()
    names = {TORCH: ("Tensor",), TENSORFLOW: ("Tensor", "Variable"), JAX: ("Array",)}[code]
    return tuple(cls for name in names if (cls := getattr(module, name, None)) is not None)


def _is_tensor(obj: object, code: int) -> bool:
    return isinstance(obj, _classes(code))


def _type_name(obj: object) -> str:
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def _from_torch(tensor: Any) -> HostTensor:
    import torch

    if tensor.device.type != "cpu":
        raise TypeError(f"a torch tensor on {tensor.device}: copy it to the host first (.cpu())")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout)
        raise TypeError(f"a torch tensor that is {kind}: send .dequantize() or .to_dense()")
    name = str(tensor.dtype).removeprefix("torch.")
    dtypes.require(name)
    copied = ""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor, copied = tensor.resolve_conj().resolve_neg(), PACKED
    if name in dtypes.EXTENDED:
        tensor = tensor.view(getattr(torch, f"int{8 * tensor.element_size()}"))
        return HostTensor(tensor.numpy().view(dtypes.storage(name)), name, TORCH, copied)
    return HostTensor(tensor.numpy(), name, TORCH, copied)


def _from_tensorflow(tensor: Any) -> HostTensor:
    if hasattr(tensor, "read_value"):
        # A variable: its value shares the buffer, which an assignment then replaces.
        tensor = tensor.read_value()
    if not hasattr(tensor, "backing_device"):
        raise TypeError("a symbolic TensorFlow tensor: call it outside of tf.function")
    if not tensor.backing_device.endswith("CPU:0"):
        raise TypeError(
            f"a TensorFlow tensor on {tensor.backing_device}: copy it to the host first "
            "(with tf.device('CPU:0'): tf.identity(tensor))"
        )
    name = tensor.dtype.name
    if name == "string":
        raise TypeError("a TensorFlow tensor of strings: send tensor.numpy().tolist()")
    dtypes.require(name)
    if name in dtypes.EXTENDED and tensor.shape.rank == 0:
        # TensorFlow would give a scalar, which has no memory to share.
        import tensorflow

        array: Array = np.asarray(tensorflow.reshape(tensor, [1])).reshape(())
        return HostTensor(array, name, TENSORFLOW, "")
    return HostTensor(np.asarray(tensor), name, TENSORFLOW, "")


def _from_jax(array: Any) -> HostTensor:
    devices = array.devices()
    platforms = sorted({device.platform for device in devices} - {"cpu"})
    if platforms:
        raise TypeError(
            f"a JAX array on {platforms[0]}: copy it to the host first (jax.device_get(array))"
        )
    name = array.dtype.name
    dtypes.require(name)
    copied = SHARDED if len(devices) > 1 else PACKED if name in dtypes.SUB_BYTE else ""
    return HostTensor(np.asarray(array), name, JAX, copied)


_INWARDS: Final[dict[int, Callable[[Any], HostTensor | None]]] = {
    TORCH: _from_torch,
    TENSORFLOW: _from_tensorflow,
    JAX: _from_jax,
}


def _from_protocol(obj: object) -> HostTensor | None:
    """Any other object that exports its memory: array.array, bytearray, mmap, DLPack."""
    if isinstance(obj, bytes):
        return None
    try:
        view = memoryview(obj)  # type: ignore[arg-type]
    except TypeError:
        pass
    else:
        array: Array = np.asarray(view)
        return HostTensor(array, dtypes.name_of(array.dtype), NUMPY, "")
    device = getattr(obj, "__dlpack_device__", None)
    if device is None or isinstance(obj, type):
        return None
    kind, number = device()
    if kind not in _CPU_DEVICES:
        raise TypeError(
            f"a {_type_name(obj)} on an accelerator (DLPack device {int(kind)}:{number}): "
            "copy it to the host first"
        )
    array = np.from_dlpack(obj)  # type: ignore[arg-type]
    return HostTensor(array, dtypes.name_of(array.dtype), NUMPY, "")


def dense_order(array: Array) -> tuple[int, ...] | None:
    """The axes from the largest stride to the smallest if the array fills its memory densely."""
    order = tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    return order if array.transpose(order).flags.c_contiguous else None


def raw(array: Array) -> memoryview:
    """The bytes of a C-contiguous array."""
    try:
        return array.data.cast("B")
    except (TypeError, ValueError):  # it is empty, or memoryview does not know its type
        pass
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


# ------------------------------------------------------------------------------------ outwards


def load_framework(name: str) -> ModuleType:
    """Imports a framework; ``ImportError`` that says which one is missing for what."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"tensors were asked for as {name}, which cannot be imported: {error}"
        ) from error


def is_importable(name: str) -> bool:
    try:
        load_framework(name)
    except ImportError:
        return False
    return True


def from_memory(head: TensorHead, memory: BytesLike, framework: str) -> tuple[object, str]:
    """A tensor of ``framework`` over ``memory``, and why its bytes were copied ("" if not).

    The memory has exactly ``head.nbytes`` bytes. ``DecodeError`` if the framework lacks the type.
    """
    if framework == "numpy":
        # Over writable memory an array could be made writable again.
        return _view(head, memoryview(memory).toreadonly(), dtypes.resolve(head.dtype)), ""
    return _OUTWARDS[framework](head, memory)


def writable_from_memory(head: TensorHead, memory: BytesLike) -> tuple[Array, str]:
    """As ``from_memory`` for NumPy, but the array may be written, which nobody else sees."""
    dtype = dtypes.resolve(head.dtype)
    alias = _alias(head, memory)
    array = _view(head, memory if alias is None else alias, dtype)
    if alias is None:
        return array.copy(order="K"), READ_ONLY
    array.flags.writeable = True
    return array, ""


def of_array(array: Array, framework: Framework) -> Any:
    """A tensor of ``framework`` over the memory of an array, or the array itself. What the
    framework does not take as it is, it copies: read-only memory for PyTorch and TensorFlow, what
    is not in C order for all but PyTorch. ``ValueError``: there is no such framework, or, as
    ``DecodeError``, it lacks the type.
    """
    if framework not in NAMES:
        raise ValueError(f"framework is one of {NAMES}, not {framework!r}")
    if framework == "numpy":
        return array
    name = dtypes.name_of(array.dtype)
    flags = array.flags
    if framework == "torch" and flags.writeable and flags.aligned and array.dtype.isnative:
        dtype = _torch_dtype(name)
        plain = array.view(dtypes.storage(name)) if name in dtypes.EXTENDED else array
        return _torch_over(plain, dtype)
    dense = np.ascontiguousarray(array).reshape(array.shape)
    head = TensorHead(name, array.shape, array.nbytes, None, NUMPY)
    return from_memory(head, raw(dense), framework)[0]


def _view(head: TensorHead, memory: Any, dtype: dtypes.DType) -> Array:
    """A read-only array over ``memory``."""
    # Not np.ndarray(buffer=): it lets go of the exporter, which might then be resized.
    array: Array = np.frombuffer(memory, dtype)
    order = head.order
    if order is None:
        array = array.reshape(head.shape)
    else:
        array = array.reshape([head.shape[axis] for axis in order]).transpose(np.argsort(order))
    array.flags.writeable = False
    return array


class _Alias:
    """Received memory as writable bytes, for frameworks that know no read-only tensors."""

    def __init__(self, memory: Array) -> None:
        self.memory = memory
        writable = {"data": (memory.ctypes.data, False)}
        self.__array_interface__ = memory.__array_interface__ | writable


def _is_private(memory: Any) -> bool:
    """True for memory of the runtime that was received, which nobody else sees written."""
    core: Any = sys.modules.get("tensorwire._core")  # loaded, if it made the memory
    owner: Any = memory.obj if isinstance(memory, memoryview) else memory
    if core is None or not isinstance(owner, core.Buffer):
        return False
    if not owner.leased:
        return not core.is_published(owner)
    # In the sender's memory: only bytes that nobody has seen yet can be had apart from other views.
    if memory is not owner:
        return False
    try:
        owner.separate()
    except core.StatusError:
        return False
    return True


def _alias(head: TensorHead, memory: BytesLike) -> Any:
    """The memory as bytes that may be written without harm to anybody else. None: it has to be
    copied."""
    if not head.nbytes:
        return bytearray()  # NumPy makes no array writable again over read-only memory
    if _is_private(memory):
        received: Any = memory
        return np.asarray(_Alias(np.frombuffer(received, np.uint8)))
    return None if memoryview(memory).readonly else memory


def _writable(head: TensorHead, memory: BytesLike, dtype: dtypes.DType) -> tuple[Array, str]:
    """An array that a framework may write to without harm to anybody else, in native byte order."""
    alias = _alias(head, memory)
    array = _view(head, memory if alias is None else alias, dtype)
    if not dtype.isnative:
        return array.astype(dtype.newbyteorder("="), order="K"), BYTE_ORDER
    if alias is None:
        return array.copy(order="K"), READ_ONLY
    if not array.flags.aligned:
        return array.copy(order="K"), UNALIGNED
    array.flags.writeable = True
    return array, ""


def _lacks(framework: str, name: str) -> DecodeError:
    return DecodeError(f"{framework} has no dtype {name}")


def _torch_dtype(name: str) -> Any:
    torch: Any = load_framework("torch")
    dtype = getattr(torch, name.removeprefix(">"), None)
    if not isinstance(dtype, torch.dtype):
        raise _lacks("torch", name)
    return dtype


def _torch_over(array: Array, dtype: Any) -> Any:
    """array: of the dtype's storage type."""
    torch: Any = sys.modules["torch"]  # which has the dtype
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def _to_torch(head: TensorHead, memory: BytesLike) -> tuple[object, str]:
    dtype = _torch_dtype(head.dtype)
    array, copied = _writable(head, memory, dtypes.storage(head.dtype))
    return _torch_over(array, dtype), copied


def _to_tensorflow(head: TensorHead, memory: BytesLike) -> tuple[object, str]:
    tensorflow: Any = load_framework("tensorflow")
    name = head.dtype.removeprefix(">")
    try:
        tensorflow.as_dtype(name)
    except TypeError:
        raise _lacks("tensorflow", head.dtype) from None
    array, copied = _writable(head, memory, dtypes.storage(head.dtype))
    if not array.flags.c_contiguous:
        array, copied = np.ascontiguousarray(array), copied or ROW_MAJOR
    bitcast = name == "bfloat16"
    if name in dtypes.EXTENDED and not bitcast:
        # TensorFlow has no bitcast to these; its conversion from NumPy copies.
        return tensorflow.convert_to_tensor(array.view(dtypes.resolve(name))), copied or PACKED
    if copied or (head.nbytes and array.ctypes.data % _ALIGNMENT):
        if bitcast:
            tensor = tensorflow.convert_to_tensor(array)
            return tensorflow.bitcast(tensor, name), copied or UNALIGNED
        return tensorflow.convert_to_tensor(array), copied or UNALIGNED
    tensor = tensorflow.experimental.dlpack.from_dlpack(array.__dlpack__())
    return (tensorflow.bitcast(tensor, name) if bitcast else tensor), ""


_NO_DTYPE: Final = ("INVALID_ARGUMENT", "UNIMPLEMENTED")
"""How JAX begins to say that its native part lacks a dtype which its Python part has."""


def _to_jax(head: TensorHead, memory: BytesLike) -> tuple[object, str]:
    jax: Any = load_framework("jax")
    array = _view(head, memory, dtypes.resolve(head.dtype))
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind in "mM":
        raise _lacks("jax", head.dtype)
    try:
        kept = jax.dtypes.canonicalize_dtype(dtype)
    except TypeError:
        raise _lacks("jax", head.dtype) from None
    if kept != dtype:
        raise DecodeError(
            f"{head.dtype} needs jax.config.update('jax_enable_x64', True): JAX would narrow it"
        )
    copied = ""
    if dtype != array.dtype:
        array, copied = array.astype(dtype), BYTE_ORDER
    # JAX takes memory of its alignment as it is, since its arrays are never written.
    try:
        result = jax.device_put(array)
    except TypeError:
        raise _lacks("jax", head.dtype) from None
    except RuntimeError as error:
        if not str(error).startswith(_NO_DTYPE):  # but memory, or the device
            raise
        raise _lacks("jax", head.dtype) from None
    if not copied and head.nbytes and all(device.platform == "cpu" for device in result.devices()):
        if head.dtype in dtypes.SUB_BYTE:
            copied = PACKED
        elif result.unsafe_buffer_pointer() != array.ctypes.data:
            copied = UNALIGNED
    return result, copied


_OUTWARDS: Final[dict[str, Callable[[TensorHead, BytesLike], tuple[object, str]]]] = {
    "torch": _to_torch,
    "tensorflow": _to_tensorflow,
    "jax": _to_jax,
}
