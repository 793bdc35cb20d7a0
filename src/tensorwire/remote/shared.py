# SPDX-License-Identifier: Apache-2.0
"""Memory that is made to be accessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwire import _core
from tensorwire.remote.errors import error


def shared(nbytes: int) -> _core.SharedMemory:
    """Zeroed. ResourceExhaustedError."""
    try:
        return _core.SharedMemory(nbytes)
    except _core.StatusError as raised:
        raise error(raised.code, raised.details) from None


def over(memory: _core.SharedMemory, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """An array over memory that was made for it."""
    buffer: Any = memory
    count = int(np.prod(shape, dtype=np.int64))
    # Through bytes: extended types know no buffers.
    raw = np.frombuffer(buffer, np.uint8, count * dtype.itemsize)
    return raw.view(dtype).reshape(shape) if count else np.empty(shape, dtype)
