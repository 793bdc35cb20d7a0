# SPDX-License-Identifier: Apache-2.0
"""Memory that messages and one-sided operations need for longer than who began them."""

import threading
import weakref

import numpy as np
import pytest
from tests.linked import ALL, PATIENCE, known, linked

from tensorwire import _core
from tensorwire.rpc import kept


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_nobody_has_to_ask_for_memory_to_be_let_go_of(transport: str) -> None:
    kept.free_in_background()
    with linked(transport) as ends:
        region = ends.there.expose(bytearray(1 << 20), ALL)
        known(ends.here, region.id)
        freed = threading.Event()
        array = np.ones(1 << 20, np.uint8)
        weakref.finalize(array, freed.set)
        access = ends.here.access(_core.WRITE, region.id, 0, array.data)
        del array, access
        assert freed.wait(PATIENCE)
