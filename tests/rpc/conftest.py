# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a pairing, and a channel to a server in another process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rpc import generated
from tests.rpc.pairings import PAIRINGS, Pairing, process


@pytest.fixture(params=PAIRINGS, ids=str)
def pairing(request: pytest.FixtureRequest) -> Pairing:
    pairing: Pairing = request.param
    return pairing


@pytest.fixture(scope="session")
def generated_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what protoc makes of ``service.proto``; importable from then on."""
    return generated.generate(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="session")
def processes(generated_code: Path) -> Iterator[dict[str, str]]:
    """Targets of servers that live as long as the session, by kind."""
    with contextlib.ExitStack() as stack:
        yield {
            kind: stack.enter_context(process(kind=kind, generated=[str(generated_code)]))[0]
            for kind in ("stock", "tensorwire")
        }


@pytest.fixture
def channel(pairing: Pairing, processes: dict[str, str]) -> Iterator[Any]:
    with pairing.channel(processes[pairing.server]) as channel:
        yield channel


_keys = itertools.count()


@pytest.fixture
def key() -> str:
    """A name that no other test uses, for diary entries and gates."""
    return f"key{next(_keys)}"
