# SPDX-License-Identifier: Apache-2.0
"""What protoc generates, and the service of ``service.proto`` with it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc

SOURCE = Path(__file__).with_name("service.proto")


def generate(folder: Path, *sources: Path) -> Path:
    """``sources``: of one folder; ``service.proto`` if there are none."""
    files = sources or (SOURCE,)
    # In a process of its own: in one that has loaded TensorFlow, protoc crashes.
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{files[0].parent}"]
    outputs = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([*protoc, *outputs, *map(str, files)], check=True, timeout=60)
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
