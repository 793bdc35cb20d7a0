"""The service of ``service.proto`` with the stubs and servicers that protoc generates for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc


def generate(folder: Path) -> Path:
    from grpc_tools import protoc  # type: ignore[import-untyped]

    here = Path(__file__).parent
    well_known = Path(protoc.__file__).parent / "_proto"
    arguments = [f"-I{here}", f"-I{well_known}", f"--python_out={folder}"]
    assert protoc.main(["", *arguments, f"--grpc_python_out={folder}", "service.proto"]) == 0
    sys.path.insert(0, str(folder))
    return folder


def modules() -> tuple[Any, Any]:
    """Messages, and stubs with servicers; ``generate`` has to come first."""
    return importlib.import_module("service_pb2"), importlib.import_module("service_pb2_grpc")


def add_to_server(server: grpc.Server) -> None:
    messages, grpc_code = modules()
    number = messages.Number

    servicer: Any = grpc_code.ArithmeticServicer

    class Arithmetic(servicer):  # type: ignore[misc]
        def Double(self, request: Any, context: grpc.ServicerContext) -> Any:
            return number(value=2 * request.value)

        def Count(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            return (number(value=value) for value in range(request.value))

        def Sum(self, requests: Iterable[Any], context: grpc.ServicerContext) -> Any:
            return number(value=sum(request.value for request in requests))

        def RunningSum(
            self, requests: Iterable[Any], context: grpc.ServicerContext
        ) -> Iterator[Any]:
            total = 0
            for request in requests:
                total += request.value
                yield number(value=total)

    grpc_code.add_ArithmeticServicer_to_server(Arithmetic(), server)
