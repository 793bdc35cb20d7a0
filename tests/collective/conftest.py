# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a test move data by."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["shared memory", "messages", "shared memory and messages"])
def fabric(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the ranks of a test move data by: ``ranks.on_a_host`` makes the last of them."""
    name: str = request.param
    if name == "messages":
        monkeypatch.setenv("TENSORWIRE_TRANSPORT", "tcp")
    return name
