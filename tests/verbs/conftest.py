"""These tests need RDMA devices: ``make test-verbs`` runs them in a machine that has some."""

from __future__ import annotations

from pathlib import Path

import pytest

INSIDE = Path("/run/verbs-vm").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if INSIDE:
        return
    skip = pytest.mark.skip(reason="needs RDMA devices: `make test-verbs` has them")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)
