# SPDX-License-Identifier: Apache-2.0
"""What protoc makes of the .proto files here."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.rpc import generated

HERE = Path(__file__).parent


class Generated(NamedTuple):
    everything: Any
    everything_grpc: Any
    inference: Any
    inference_grpc: Any
    old: Any


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    sources = sorted(HERE.glob("*.proto"))
    generated.generate(tmp_path_factory.mktemp("generated"), *sources)
    names = ("everything_pb2", "everything_pb2_grpc", "inference_pb2", "inference_pb2_grpc")
    return Generated(*map(importlib.import_module, (*names, "old_pb2")))
