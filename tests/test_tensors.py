# SPDX-License-Identifier: Apache-2.0
"""tensorwire.tensors: what goes in comes out, over the same memory."""

from __future__ import annotations

import array
import collections
import ctypes
import dataclasses
import datetime
import enum
import math
import mmap
import subprocess
import sys
from typing import Any, NamedTuple

import hypothesis.extra.numpy as st_np
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorwire
from tensorwire import tensors
from tensorwire.tensors import DecodeError, TensorSpec, wire

PLAIN_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", ">f4", ">i8", ">c16", "<u2"),
    *("datetime64[ns]", "timedelta64[25s]", "datetime64[Y]", ">M8[ms]"),
]
ML_DTYPES = [
    name
    for name in dir(ml_dtypes)
    if isinstance(getattr(ml_dtypes, name), type)
    and issubclass(getattr(ml_dtypes, name), np.generic)
]


class Point(NamedTuple):
    x: Any
    y: Any


class Tagged(np.ndarray[Any, Any]):
    pass


class Colour(enum.IntEnum):
    RED = 1


def roundtrip(obj: object, **options: Any) -> Any:
    """Through segments; the joined form must give the same."""
    segments = tensors.dumps(obj)
    result = tensors.loads(segments, **options)
    assert_same(tensors.loads(tensors.join(segments), **options), result)
    return result


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, np.generic):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, (float, complex)):
        assert np.complex128(a).tobytes() == np.complex128(b).tobytes()
    else:
        assert a == b


def address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


@pytest.fixture
def copied() -> Any:
    """A function: how many tensors were copied since the test began, for each reason."""
    before = collections.Counter(tensors.copies().reasons)
    return lambda: dict(collections.Counter(tensors.copies().reasons) - before)


# ------------------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("dtype", PLAIN_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_every_dtype_travels_without_a_copy(
    dtype: str, shape: tuple[int, ...], copied: Any
) -> None:
    source = np.arange(math.prod(shape)).astype("u1").astype(dtype).reshape(shape)
    segments = tensors.dumps(source)
    result = tensors.loads(segments)
    assert_same(result, source)
    assert len(segments) == 2
    if source.size:
        assert address(result) == address(source)
    assert copied() == {}


@pytest.mark.parametrize("name", ML_DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_ml_dtypes_travel_without_a_copy(name: str, shape: tuple[int, ...], copied: Any) -> None:
    source = np.ones(shape, getattr(ml_dtypes, name))
    result = tensors.loads(tensors.dumps(source))
    assert_same(result, source)
    if source.size:
        assert address(result) == address(source)
    assert_same(roundtrip([source])[0], source)
    assert copied() == {}


def test_one_segment_for_each_tensor_over_its_own_memory() -> None:
    large, small = np.zeros(1 << 20, np.uint8), np.zeros(3, np.float32)
    segments = tensors.dumps({"a": large, "b": [small]})
    header, *rest = segments
    assert isinstance(header, bytes)
    assert sorted(memoryview(s).nbytes for s in rest) == [12, 1 << 20]
    large[7] = 42
    assert tensors.loads(segments)["a"][7] == 42


def test_received_arrays_are_read_only() -> None:
    for source in (np.zeros(3), np.zeros((2, 2), order="F")):
        for message in (tensors.dumps(source), bytearray(tensors.join(tensors.dumps(source)))):
            result = tensors.loads(message)
            with pytest.raises(ValueError, match="read-only"):
                result[0] = 1
            with pytest.raises(ValueError, match="WRITEABLE"):
                result.flags.writeable = True


def test_writable_arrays() -> None:
    sent = [np.arange(3.0), np.arange(3).astype(">i4"), np.empty((0, 2))]
    segments = [bytearray(segment) for segment in tensors.dumps(sent)]
    over = tensors.loads(segments, writable=True)
    over[0][0] = 5
    assert np.frombuffer(segments[1])[0] == 5
    assert over[1].dtype == ">i4"
    joined = b"".join(tensors.dumps(sent))
    before = bytes(bytearray(joined))
    of_bytes = tensors.loads(joined, writable=True)
    of_bytes[0][0] = 5
    of_bytes[1] += 1
    assert of_bytes[1].tolist() == [1, 2, 3]
    assert of_bytes[2].shape == (0, 2)
    assert joined == before


def test_read_only_source() -> None:
    source = np.arange(3)
    source.flags.writeable = False
    assert_same(roundtrip(source), source)


def test_memory_cannot_be_resized_under_an_array() -> None:
    for order in ("C", "F"):
        message = bytearray(tensors.join(tensors.dumps(np.ones((2, 2), order=order))))
        result = tensors.loads(message)
        with pytest.raises(BufferError):
            message.clear()
        assert (result == 1).all()


def test_views_keep_the_memory_alive() -> None:
    segments = tensors.dumps(np.full(1000, 7.0))
    result = tensors.loads(segments)
    del segments
    assert (result == 7).all()


@pytest.mark.parametrize("axes", [(2, 1, 0), (0, 2, 1), (1, 2, 0), (1, 0, 2)])
def test_any_dense_order_is_kept_without_a_copy(axes: tuple[int, ...], copied: Any) -> None:
    source = np.arange(24.0).reshape(2, 3, 4).transpose(axes)
    result = tensors.loads(tensors.dumps(source))
    assert address(result) == address(source)
    assert result.strides == source.strides
    assert_same(roundtrip(source), source)
    assert copied() == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[::2],
        lambda x: x[:, ::-1],
        lambda x: x[:, 1:],
        lambda x: np.broadcast_to(x[0], (5, 4)),
    ],
)
def test_non_contiguous_is_copied_once_and_said_so(make: Any, copied: Any) -> None:
    source = make(np.arange(24.0).reshape(6, 4))
    assert [t.copied for t in tensors.describe([source])] == ["non-contiguous"]
    assert copied() == {}
    segments = tensors.dumps(source)
    assert copied() == {"non-contiguous": 1}
    result = tensors.loads(segments)
    assert_same(result, np.ascontiguousarray(source))
    assert copied() == {"non-contiguous": 1}


def test_tensors_of_a_joined_message_are_aligned() -> None:
    source = [np.ones(3, d) for d in ("u1", "f8", "f2", "c16", "?", "i4", "f4", "i8")]
    joined = tensors.join(tensors.dumps(source))
    aligned: Any = np.zeros(len(joined) + 64, np.uint8)
    start = -address(aligned) % 64
    aligned[start : start + len(joined)] = np.frombuffer(joined, np.uint8)
    result = tensors.loads(memoryview(aligned)[start : start + len(joined)])
    assert all(x.flags.aligned for x in result)
    assert_same(result, source)


def test_more_than_2_gb(copied: Any) -> None:
    # Untouched pages of an anonymous mapping cost no memory.
    nbytes = (2 << 30) + 8
    source: Any = np.frombuffer(mmap.mmap(-1, nbytes), np.float64)
    segments = tensors.dumps({"x": source})
    result = tensors.loads(segments)["x"]
    assert result.nbytes == nbytes
    assert address(result) == address(source)
    assert copied() == {}


def test_other_exporters_of_memory() -> None:
    matrix: Any = np.arange(6, dtype="u2").reshape(2, 3)
    for source, dtype in (
        (array.array("d", [1, 2, 3]), "f8"),
        (bytearray(b"abc"), "u1"),
        (memoryview(b"abc"), "u1"),
        ((ctypes.c_int32 * 3)(1, 2, 3), "i4"),
        (memoryview(matrix), "u2"),
    ):
        result = roundtrip(source)
        assert result.dtype == dtype
        assert_same(result, np.array(source))


def test_dlpack_exporter() -> None:
    class Exporter:
        def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int]) -> None:
            self.array, self.device = array, device

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.device

    source = np.arange(3.0)
    result = tensors.loads(tensors.dumps(Exporter(source, (1, 0))))
    assert address(result) == address(source)
    with pytest.raises(TypeError, match=r"^obj\['w'\]: .*Exporter on an accelerator .*2:1.*host"):
        tensors.dumps({"w": Exporter(source, (2, 1))})


def test_subclasses_of_arrays(tmp_path: Any) -> None:
    source: Any = np.memmap(tmp_path / "m", np.float32, "w+", shape=(3,))
    assert_same(roundtrip(source), np.zeros(3, np.float32))
    assert_same(roundtrip(np.zeros(2).view(Tagged)), np.zeros(2))


# ---------------------------------------------------------------------------------- plain values


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 3**500),
        *(1.5, -0.0, math.inf, math.nan, 1 + 2j, complex(-0.0, math.inf)),
        *("", "text", "häß", "\U0001f600", b"", b"\x00\xff"),
        *([], (), {}, [[]], [()], ({},), {"a": {"b": [1, (2, [3])]}}),
        {1: "a", "1": "b", b"1": "c", 1.5: "d", None: "e", (2**64 - 1): "f"},
        *(np.float32(1.5), np.int8(-3), np.bool_(True), np.complex64(1j), np.float64(2.5)),
        *(np.datetime64("2020-01-01"), np.datetime64("NaT", "D"), ml_dtypes.bfloat16(1.5)),
    ],
)
def test_plain_values(value: Any) -> None:
    assert_same(roundtrip(value), value)
    assert_same(roundtrip({"x": [value, (value,)]}), {"x": [value, (value,)]})
    assert len(tensors.dumps(value)) == 1


def test_subclasses_become_their_plain_types() -> None:
    assert_same(roundtrip([Colour.RED, np.str_("a"), np.bytes_(b"b")]), [1, "a", b"b"])
    assert_same(roundtrip({Colour.RED: 1, np.str_("k"): 2}), {1: 1, "k": 2})
    assert_same(roundtrip(Point(1, [2])), (1, [2]))
    assert_same(roundtrip(collections.OrderedDict(b=1, a=2)), {"b": 1, "a": 2})
    assert_same(roundtrip(collections.ChainMap({"a": 1})), {"a": 1})


def test_a_mapping_or_list_that_changes_on_the_way_gives_a_sound_message() -> None:
    class Growing(list[Any]):
        def __iter__(self) -> Any:
            yield from [1, 2, 3]

    class Lying(collections.UserDict[str, int]):
        def __len__(self) -> int:
            return 99

    assert_same(roundtrip([Growing(), Lying(a=1)]), [[1, 2, 3], {"a": 1}])


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
)
keys = (
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
)
dtypes = st.sampled_from([np.dtype(d) for d in PLAIN_DTYPES])
arrays = st_np.arrays(dtypes, st_np.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


def permuted(array: np.ndarray[Any, Any]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    return st.permutations(range(array.ndim)).map(array.transpose)


trees = st.recursive(
    plain | arrays.flatmap(permuted) | st_np.from_dtype(np.dtype("f4")),
    lambda t: st.lists(t) | st.lists(t).map(tuple) | st.dictionaries(keys | st.binary(), t),
    max_leaves=12,
)


@given(trees)
def test_any_tree_comes_back(tree: Any) -> None:
    assert_same(roundtrip(tree), tree)


# ------------------------------------------------------------------------------------- refusals


class Opaque:
    pass


class Arrayish:
    def __array__(self) -> Any:
        return np.zeros(3)


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"a": [1, 2, 3, {4}]}, r"obj\['a'\]\[3\]: a builtins.set is neither a tensor nor a plain"),
        ((1, Opaque()), r"obj\[1\]: a .*Opaque is neither"),
        ({"k": Arrayish()}, r"obj\['k'\]: .*np\.asarray"),
        (np.array([object()]), r"^obj: elements are Python objects"),
        ([np.zeros(2, "f4,i4")], r"obj\[0\]: structured dtype .*dict of arrays"),
        ([np.array(["a"])], r"obj\[0\]: elements are text"),
        ([np.zeros(2, "S3")], r"obj\[0\]: elements are text"),
        ([np.zeros(2, "V3")], r"obj\[0\]: dtype \|V3 cannot travel"),
        ([np.zeros(2, "g")], r"obj\[0\]: dtype .* differs between machines"),
        (
            [np.zeros(2, "M8")],
            r"obj\[0\]: dtype datetime64 has no unit: convert to datetime64\[ns\]",
        ),
        ([np.longdouble(1)], r"obj\[0\]: dtype .* differs between machines"),
        ([np.ma.masked_array([1.0], [True])], r"obj\[0\]: a masked array: send its \.data and"),
        ({"a": "\ud800"}, r"obj\['a'\]: a str that is no valid Unicode"),
        ({(1, 2): 3}, r"obj\[\(1, 2\)\]: a tuple cannot be a key"),
        ({2**64: 3}, r"obj\[18446744073709551616\]: an int of more than 64 bits cannot be a key"),
        ({np.float64(1): 3}, r"a float64 cannot be a key"),
        ([iter([])], r"obj\[0\]: a builtins.list_iterator is neither"),
    ],
)
def test_what_cannot_travel_is_named_with_its_place(obj: Any, message: str) -> None:
    for function in (tensors.dumps, tensors.describe):
        with pytest.raises(TypeError, match=message):
            function(obj)


def test_released_memory_is_named() -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(
        TypeError, match=r"obj\[0\]: a memoryview without usable memory: .*released"
    ):
        tensors.dumps([view])


def nested(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth - 1):
        tree = [tree]
    return tree


def test_depth_is_limited_and_cycles_end() -> None:
    assert_same(roundtrip(nested(tensors.MAX_DEPTH)), nested(tensors.MAX_DEPTH))
    with pytest.raises(TypeError, match="nested deeper than 64 levels, or holding itself"):
        tensors.dumps(nested(tensors.MAX_DEPTH + 1))
    cycle: dict[str, Any] = {}
    cycle["me"] = cycle
    with pytest.raises(TypeError, match=r"obj\['me'\]\['me'\].*holding itself"):
        tensors.dumps(cycle)


def test_rank_is_limited() -> None:
    source = np.zeros((1,) * tensors.MAX_RANK)
    assert_same(roundtrip(source), source)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(TypeError, match=r"obj\[0\]: rank 33: at most 32"):
            tensors.dumps([np.zeros((1,) * 33)])


def test_number_of_tensors_and_size_of_header_are_limited() -> None:
    x = np.zeros(0, np.uint8)
    with pytest.raises(ValueError, match="65537 tensors in one message: at most 65536"):
        tensors.dumps([x] * (tensors.MAX_TENSORS + 1))
    with pytest.raises(ValueError, match=r"at most 16777216 can travel.*np\.frombuffer"):
        tensors.dumps(bytes(tensors.MAX_HEADER_BYTES))


# ------------------------------------------------------------------------------ like, describe


def test_like_accepts_what_it_describes_and_restores_named_tuples() -> None:
    obj = {"p": Point(np.zeros((2, 3), "f4"), [1, 2.5]), "s": np.float32(1), "n": None}
    like = {"p": Point(TensorSpec((None, 3), "float32"), [0, 0.0]), "s": np.float32(0), "n": None}
    result = roundtrip(obj, like=like)
    assert type(result["p"]) is Point
    assert_same(result["p"].x, obj["p"].x)  # type: ignore[attr-defined]
    assert type(roundtrip(obj, like=obj)["p"]) is Point
    assert_same(roundtrip([1], like=[1.0]), [1])
    assert_same(roundtrip(np.float32(1), like=TensorSpec((), "float32")), np.float32(1))


@pytest.mark.parametrize(
    ("obj", "like", "message"),
    [
        (np.zeros((2, 4), "f4"), TensorSpec((None, 3), "float32"),
         r"^obj: expected a tensor float32\[\*, 3\], got float32\[2, 4\]$"),
        ({"a": [np.zeros(3)]}, {"a": [np.zeros(3, "f4")]},
         r"^obj\['a'\]\[0\]: expected a tensor float32\[3\], got float64\[3\]$"),
        ([1], np.zeros(1), r"expected a tensor float64\[1\], got a list of 1"),
        ([np.zeros(1)], [1], r"obj\[0\]: expected a value of type int, got a tensor float64\[1\]"),
        ([1, 2], [1], r"expected a list of 1, got a list of 2"),
        ((1,), [1], r"expected a list of 1, got a tuple of 1"),
        ({"a": 1}, [1], r"expected a list of 1, got a dict of 1"),
        ({"a": 1}, {"a": 1, "b": 2}, r"^obj\['b'\]: missing$"),
        ({"a": 1, "b": 2}, {"a": 1}, r"^obj\['b'\]: a key that was not expected$"),
        ({"a": "x"}, {"a": 1}, r"^obj\['a'\]: expected a value of type int, got 'x'$"),
        (1.5, 1, r"expected a value of type int, got 1.5"),
        ({"step": 10**5000}, {"step": "x"}, r"\['step'\]: .* got an int of 16610 bits$"),
        (np.float32(1), np.float64(1), r"expected a tensor float64\[\], got float32\[\]"),
        ("x", TensorSpec(), r"expected a tensor any dtype \[\.\.\.\], got 'x'"),
    ],
)  # fmt: skip
def test_like_refuses_anything_else(obj: Any, like: Any, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        tensors.loads(tensors.dumps(obj), like=like)


def test_tensor_spec() -> None:
    spec = TensorSpec((None, 3), "bfloat16")
    assert spec.check(np.zeros((5, 3), ml_dtypes.bfloat16)) == ""
    assert "got float32[5, 3]" in spec.check(np.zeros((5, 3), "f4"))
    assert spec.check([1]) == "expected a tensor bfloat16[*, 3], got a list"
    assert "one that cannot travel: elements are Python" in spec.check(np.array([object()]))
    assert spec == TensorSpec([None, 3], ml_dtypes.bfloat16)
    assert hash(spec) == hash(TensorSpec([None, 3], "bfloat16"))
    assert spec != TensorSpec(None, "bfloat16")
    assert repr(spec) == "TensorSpec(shape=(None, 3), dtype='bfloat16')"
    for shape in ((-1,), ("a",), (1.5,)):
        with pytest.raises(ValueError, match="an extent is None or a non-negative int"):
            TensorSpec(shape)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Python objects"):
        TensorSpec(dtype=object)


def test_describe_names_every_tensor() -> None:
    infos = tensors.describe(
        {"a": [1 + 1j, np.float32(1), np.zeros((2, 3), "f4")], b"b": (2**70, np.zeros(0, ">i2"))}
    )
    assert infos == [
        tensors.TensorInfo("obj['a'][2]", "numpy", "float32", (2, 3), 24, ""),
        tensors.TensorInfo("obj[b'b'][1]", "numpy", ">int16", (0,), 0, ""),
    ]


def test_serializer_and_deserializer_fit_an_rpc_layer() -> None:
    obj = {"x": np.arange(3)}
    assert tensors.deserializer.__tensorwire_segments__ is True
    assert_same(tensors.deserializer(tensors.serializer(obj)), obj)
    checked = tensors.Deserializer(like={"x": TensorSpec((4,))})
    with pytest.raises(DecodeError, match=r"obj\['x'\]: expected a tensor any dtype \[4\]"):
        checked(tensors.serializer(obj))


def test_unknown_framework() -> None:
    with pytest.raises(ValueError, match=r"framework is one of numpy, torch, .*not 'cupy'"):
        tensors.loads(tensors.dumps(1), framework="cupy")  # type: ignore[arg-type]


def test_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = tensors.dumps([np.zeros(2, ml_dtypes.bfloat16)])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(DecodeError, match=r"obj\[0\]: dtype bfloat16 needs the package ml_dtypes"):
        tensors.loads(segments)


def test_a_dtype_of_ones_own_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    source = np.zeros(2, ml_dtypes.bfloat16)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for use in (
        lambda: tensorwire.empty(2, "bfloat16"),
        lambda: TensorSpec((None,), "bfloat16"),
        lambda: tensorwire.empty_like(source),
        lambda: tensorwire.publish(source),
    ):
        with pytest.raises(TypeError, match=r"dtype bfloat16 .* pip install ml_dtypes"):
            use()
    with pytest.raises(TypeError, match=r"tensor\['w'\]: dtype bfloat16 .* pip install ml_dtypes"):
        tensorwire.publish({"w": source})


def test_importing_and_using_tensors_loads_no_framework() -> None:
    script = (
        "import sys, numpy as np; from tensorwire import tensors;"
        "tensors.loads(tensors.dumps({'x': np.zeros(3), 'y': bytearray(2)}), framework='same');"
        "print([m for m in ('torch', 'tensorflow', 'jax', 'ml_dtypes') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


class Shade(enum.Enum):
    DARK = 1


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (dataclasses.make_dataclass("D", ["x"])(1), "send its fields as a dict"),
        (Shade.DARK, "send its name or its value"),
        (datetime.datetime(2026, 1, 1), r"send its isoformat\(\)"),
        (datetime.timedelta(1), r"send its total_seconds\(\)"),
        ({1}, "send a list"),
        (object(), "tensors, None, bool, .* may be sent"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_be_sent_instead(value: object, hint: str) -> None:
    with pytest.raises(TypeError, match=f"neither a tensor nor a plain value: {hint}"):
        tensors.dumps(value)


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["uint8", ">f4", "datetime64[ns]", "complex64"])
def test_a_lone_array_travels_as_any_tensor_does(shape: tuple[int, ...], dtype: str) -> None:
    class Subclass(np.ndarray[Any, Any]):
        """Which takes the long way."""

    array = np.zeros(shape, dtype)
    message = tensors.dumps(array)
    assert [*map(bytes, message)] == [*map(bytes, tensors.dumps(array.view(Subclass)))]
    for _ in range(2):  # the second time, its header is known
        found = tensors.loads(message)
        assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, shape, False)
    message[1] = bytes(len(message[1]) + 1)
    with pytest.raises(DecodeError, match="announced as"):
        tensors.loads(message)


def test_headers_are_known_for_a_while_only() -> None:
    for n in range(600):
        assert tensors.loads(tensors.dumps(np.zeros(n, np.uint8))).size == n
    assert len(wire._before) <= wire._MOST_BEFORE


def test_times_in_units_that_cannot_travel() -> None:
    most = np.zeros(2, "M8[999999999s]")
    assert_same(roundtrip(most), most)
    with pytest.raises(TypeError, match="more units than can travel"):
        tensors.dumps({"at": np.zeros(2, "M8[1000000000s]")})
