# SPDX-License-Identifier: Apache-2.0
"""Items as tensors of other frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.queue.conftest import LIMIT


def test_frameworks(serve: Any) -> None:
    torch = pytest.importorskip("torch")
    served = serve(framework="torch")
    with served.connect(framework="same") as client:
        client.put([torch.arange(5), np.ones(2)])
        found = served.own.get(LIMIT)
        assert [type(part) for part in found] == [torch.Tensor, torch.Tensor]
        served.own.put([torch.arange(5), np.ones(2)])
        found = client.get(LIMIT)
        assert [type(part) for part in found] == [torch.Tensor, np.ndarray]
