# SPDX-License-Identifier: Apache-2.0
"""The table at the end of a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorwire.tensorflow import Engine
from tensorwire.tensorflow.report import table
from tensorwire.tensorflow.settings import why_stock

ENGINE = Engine("grpc+tensorwire", "2.21.0", Path("/plugin.so"))
HEAD = f"tensorwire in process {os.getpid()}, TensorFlow 2.21.0:"


def test_the_table() -> None:
    counted = [
        ("received_in_place", "received: in place", 1200),
        ("received_in_place_bytes", None, 5 << 29),
        ("received_tcp", "received: over tcp", 0),
        ("received_tcp_bytes", None, 0),
        ("received_grpc", "  by stock gRPC", 3),
        ("received_grpc_bytes", None, 12),
        ("links", "links to other servers", 2),
        ("peers", None, 2),
        ("arena_slabs", None, 4),
        ("arena_capacity", None, 1 << 30),
        ("arena_high_water", None, 3 << 19),
    ]
    assert table(ENGINE, counted).splitlines() == [
        HEAD,
        "  received: in place                  1200  2.5 GiB",
        "    by stock gRPC                        3  12 bytes",
        "  links to other servers                 2",
        "  memory: the arena has held at most        1.5 MiB",
        "    and may hold (TF_RDMA_BUF_SIZE)         1.0 GiB",
    ]


def test_nothing_to_show() -> None:
    assert (
        table(ENGINE, [("links", "links to other servers", 0)])
        == f"{HEAD} no tensor came or went\n"
    )


def test_the_stock_engine() -> None:
    stock = Engine("grpc", "2.21.0", None)
    said = table(stock, [], "TF_RDMA_ENABLED=false")
    assert said == f"{HEAD} stock gRPC, because TF_RDMA_ENABLED=false\n"


def test_what_is_not_counted_is_not_shown_as_nothing() -> None:
    said = table(ENGINE, [("served_grpc", "sent: by stock gRPC", 2)], "TENSORWIRE_TRANSPORT=grpc")
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
