# SPDX-License-Identifier: Apache-2.0
"""What `service.define` can be told, and what annotations admit."""

from __future__ import annotations

import collections.abc
import typing
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Annotated, Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import tensorwire
from tensorwire import service
from tensorwire.service import checks
from tensorwire.tensors import TensorSpec
from tensorwire.tensors.errors import PartError

Points = Annotated[np.ndarray, TensorSpec(shape=(None, 3), dtype="float32")]


def points(*rows: Any) -> np.ndarray[Any, Any]:
    return np.array(rows, np.float32).reshape(-1, 3)


def test_checks_that_an_annotation_asks_for() -> None:
    good, bad = points(), np.zeros(1)

    def verdict(hint: Any, value: Any) -> str:
        check = checks.checker(hint)
        assert check is not None
        try:
            check(value)
        except Exception as error:
            return str(error)
        return ""

    for hint, fitting, wrong in (
        (Sequence[Points], [good], [bad]),
        (Mapping[int, Points], {1: good}, {1: bad}),
        (tuple[Points, ...], (good, good), (good, bad)),
        (tuple[Points, Any], (good, bad), (bad, good)),
        (Points | Annotated[np.ndarray, TensorSpec((2,))], good, bad),
        (Annotated[list[Points], "note"], [good], [bad]),
        (Iterator[Points], good, bad),
        (list[Points] | None, None, [bad]),
    ):
        assert verdict(hint, fitting) == ""
        assert "expected a tensor" in verdict(hint, wrong)
    unchecked: tuple[Any, ...] = (int, Any, None, list[int], Points | int, Annotated[int, "x"], "x")
    assert [checks.checker(hint) for hint in unchecked] == [None] * len(unchecked)


Floats = NDArray[np.float32]


@service.define(strict=True)
class Strict:
    def scale(self, x: Floats, by: float, names: list[str] | None = None) -> np.ndarray:
        return x * np.float32(by)

    def wrong(self) -> int:
        return "no number"  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text", 1), "argument x: expected a tensor float32"),
        ((np.zeros(2), 1), r"argument x: expected a tensor float32.*, got float64\[2\]"),
        ((points(), "2"), "argument by: expected a value of type float, got a str"),
        ((points(), True), "argument by: expected a value of type float, got a bool"),
        ((points(), 1, "abc"), "argument names: expected a list or tuple, got a str"),
        ((points(), 1, ["a", 2]), r"argument names\[1\]: expected a value of type str, got a int"),
    ],
)
def test_strict_annotations(arguments: tuple[Any, ...], message: str) -> None:
    with grpc.insecure_channel("127.0.0.1:1") as nowhere:
        client = service.client(Strict, nowhere)
        with pytest.raises(ValueError, match=f"^/Strict/scale: {message}"):
            client.scale(*arguments)


@pytest.mark.parametrize(
    ("hint", "dtype"),
    [
        (np.ndarray, None),
        (NDArray[Any], None),
        (NDArray[np.floating[Any]], None),
        (NDArray[np.float32 | np.float64], None),
        (NDArray[np.float64], "float64"),
        (NDArray[ml_dtypes.bfloat16], "bfloat16"),
    ],
    ids=str,
)
def test_strict_arrays(hint: Any, dtype: str | None) -> None:
    check = checks.checker(hint, strict=True)
    assert check is not None
    for name in ("float64", "bfloat16", "int8"):
        array = np.zeros(2, getattr(ml_dtypes, name, name))
        if dtype in (None, name):
            check(array)
        else:
            with pytest.raises(PartError, match=f"expected a tensor {dtype}"):
                check(array)
    with pytest.raises(PartError, match="expected a tensor"):
        check([1.0])


def test_strict_services_serve() -> None:
    server = tensorwire.server(futures.ThreadPoolExecutor(1))
    service.add_to_server(Strict(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with tensorwire.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = service.client(Strict, channel, timeout=20)
        kinds: tuple[Any, ...] = (2, 2.0, np.float64(2), np.int8(2))
        for by in kinds:
            assert client.scale(points([1, 1, 1]), by, None).tolist() == [[2, 2, 2]]
        assert client.scale(points([1, 1, 1]), 1, ["a"]).tolist() == [[1, 1, 1]]
        with pytest.raises(grpc.RpcError) as caught:
            client.wrong()
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.INTERNAL
        details = error.details()
        assert details == "result of /Strict/wrong: reply: expected a value of type int, got a str"
    server.stop(None).wait()


@service.define
class Loose:
    def listed(
        self,
        values: Iterator[int] = (1, 2),  # type: ignore[assignment]
        *more: int,
        by: int = 1,
    ) -> list[int]:
        return [value * by for value in values]

    def perhaps(
        self,
        values: Iterator[int] = None,  # type: ignore[assignment]  # noqa: RUF013
    ) -> list[int]:
        return list(values or ())

    def bare(self, values: typing.Iterator) -> typing.Iterator:  # type: ignore[type-arg]
        return values


@pytest.fixture(scope="module")
def loose() -> Iterator[Loose]:
    server = tensorwire.server(futures.ThreadPoolExecutor(1))
    service.add_to_server(Loose(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with tensorwire.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield service.client(Loose, channel, timeout=20)
    server.stop(None).wait()


def test_a_streamed_parameter_that_is_omitted_has_the_items_of_its_default(loose: Loose) -> None:
    assert loose.listed() == [1, 2]
    assert loose.listed(by=3) == [3, 6]
    assert loose.listed(iter([5])) == [5]
    assert loose.perhaps() == []
    assert loose.perhaps(None) == []  # type: ignore[arg-type]
    assert loose.perhaps(iter([5])) == [5]
    with pytest.raises(TypeError, match="not iterable"):
        loose.listed(None)  # type: ignore[arg-type]


def test_an_iterator_of_anything(loose: Loose) -> None:
    assert list(loose.bare(iter([1, "a"]))) == [1, "a"]


def test_a_service_can_ask_for_a_framework() -> None:
    torch: Any = pytest.importorskip("torch", exc_type=ImportError)

    @service.define(framework="torch")
    class Torch:
        def double(self, x: Any) -> Any:
            return x.mul_(2)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    service.add_to_server(Torch(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    source = torch.ones(3)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = service.client(Torch, channel, timeout=20, framework="same")
        result = client.double(source)
        assert type(result) is torch.Tensor
        assert (result.tolist(), source.tolist()) == ([2, 2, 2], [1, 1, 1])
        assert type(service.with_options(client, framework="numpy").double(source)) is np.ndarray
    server.stop(None).wait()


def test_define_refuses_what_it_cannot_serve() -> None:
    class Async:
        async def f(self) -> None: ...

    class AsyncGenerator:
        async def f(self) -> Any:
            yield 1

    class AsyncStream:
        def f(self, x: collections.abc.AsyncIterator[int]) -> None: ...

    class TwoStreams:
        def f(self, x: Iterator[int], y: Iterator[int]) -> None: ...

    class ManyStreams:
        def f(self, *x: Iterator[int]) -> None: ...

    class NamedStreams:
        def f(self, **x: Iterator[int]) -> None: ...

    class Unresolved:
        def f(self, x: NoSuchName) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    class Empty:
        x = 1

    class Base:
        def f(self) -> None: ...

    for cls, message in (
        (Async, r"Async\.f is async"),
        (AsyncGenerator, r"AsyncGenerator\.f is async"),
        (AsyncStream, r"AsyncStream\.f has an async iterator"),
        (TwoStreams, r"TwoStreams\.f streams x and y: at most one"),
        (ManyStreams, r"ManyStreams\.f streams \*x: only one"),
        (NamedStreams, r"NamedStreams\.f streams \*\*x: only one"),
        (Unresolved, r"an annotation of .*Unresolved\.f cannot be evaluated .*NoSuchName"),
        (Empty, "Empty has no public methods"),
    ):
        with pytest.raises(TypeError, match=message):
            service.define(cls)
    with pytest.raises(ValueError, match="dotted identifiers"):
        service.define(name="a/b")(Base)
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(TypeError, match="Base is no service"):
            service.client(Base, channel)
        with pytest.raises(TypeError, match="Empty is no service"):
            service.add_to_server(Empty(), grpc.server(futures.ThreadPoolExecutor(1)))
        with pytest.raises(
            TypeError, match=r"Empty is a class: give an object of it, as Empty\(\)"
        ):
            service.add_to_server(Empty, grpc.server(futures.ThreadPoolExecutor(1)))
