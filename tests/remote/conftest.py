# SPDX-License-Identifier: Apache-2.0
"""What tests of remote memory share: a host and a device, for each transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.remote.pairs import Pair, pair
from tests.transports import HERE


@pytest.fixture(scope="module", params=HERE)
def shared(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair(request.param, may_allocate=True, budget=1 << 24) as found:
        yield found
