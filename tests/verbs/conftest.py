# SPDX-License-Identifier: Apache-2.0
"""These tests need RDMA devices: ``make test-verbs`` runs them in a machine that has some."""

from __future__ import annotations

from pathlib import Path

import pytest

INSIDE = Path("/run/verbs-vm").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="needs RDMA devices: `make test-verbs` has them")
    slow = pytest.mark.timeout(200)  # emulation
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if not INSIDE:
            item.add_marker(skip)
        elif item.get_closest_marker("timeout") is None:
            item.add_marker(slow)
