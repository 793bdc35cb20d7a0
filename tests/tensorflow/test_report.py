# SPDX-License-Identifier: Apache-2.0
"""The table at the end of a process."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tensorwire.tensorflow import Engine
from tensorwire.tensorflow.build import SOURCES
from tensorwire.tensorflow.report import labels, table
from tensorwire.tensorflow.settings import why_stock
from tensorwire.transports import names

ENGINE = Engine("grpc+tensorwire", "2.21.0", Path("/plugin.so"))
HEAD = f"tensorwire in process {os.getpid()}, TensorFlow 2.21.0:"


def test_every_counter_of_the_plugin_has_a_label() -> None:
    counted = re.findall(r"X\((\w+), \"", (SOURCES / "statistics.h").read_text())
    assert len(counted) > 10
    by_transport = {f"{what}_{name}" for what in ("received", "failed") for name in names()}
    assert {name for name in counted if not name.endswith("_bytes")} | by_transport == set(labels())


def test_the_table() -> None:
    found: dict[str, int] = {
        "links": 2,
        "received_tcp": 0,
        "received_tcp_bytes": 0,
        "received_in_place": 1200,
        "received_in_place_bytes": 5 << 29,
        "received_grpc": 3,
        "received_grpc_bytes": 12,
        "news": 7,
        "peers": 2,
        "arena_slabs": 4,
        "arena_capacity": 1 << 30,
        "arena_high_water": 3 << 19,
    }
    assert table(ENGINE, found).splitlines() == [
        HEAD,
        "  received: read where the sender has them, in shared memory  1200  2.5 GiB",
        "  received: by stock gRPC                                        3  12 bytes",
        "  links to other servers                                         2",
        "  news                                                           7",
        "  memory: the arena has held at most                                1.5 MiB",
        "    and may hold (TF_RDMA_BUF_SIZE)                                 1.0 GiB",
    ]


def test_nothing_to_show() -> None:
    assert table(ENGINE, {"links": 0}) == f"{HEAD} no tensor came or went\n"


def test_the_stock_engine() -> None:
    stock = Engine("grpc", "2.21.0", None)
    said = table(stock, {}, "TF_RDMA_ENABLED=false")
    assert said == f"{HEAD} stock gRPC, because TF_RDMA_ENABLED=false\n"


def test_what_is_not_counted_is_not_shown_as_nothing() -> None:
    said = table(ENGINE, {"served_grpc": 2}, "TENSORWIRE_TRANSPORT=grpc")
    assert said == f"{HEAD} stock gRPC, because TENSORWIRE_TRANSPORT=grpc\n"


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("TF_RDMA_ENABLED", "False", "TF_RDMA_ENABLED=false"),
        ("TF_RDMA_ENABLED", "1", None),
        ("TENSORWIRE_TRANSPORT", "grpc", "TENSORWIRE_TRANSPORT=grpc"),
        ("TENSORWIRE_TRANSPORT", "tcp", None),
        ("TENSORWIRE_FORBID", "tcp, shm,verbs", "TENSORWIRE_FORBID=tcp, shm,verbs"),
        ("TENSORWIRE_FORBID", "shm,verbs", None),
        ("TENSORWIRE_FORBID", "", None),
    ],
)
def test_which_setting_is_to_blame(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str | None
) -> None:
    for name in ("TF_RDMA_ENABLED", "TENSORWIRE_TRANSPORT", "TENSORWIRE_FORBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert why_stock() == why
