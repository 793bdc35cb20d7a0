# SPDX-License-Identifier: Apache-2.0
"""Memory of one host that could be mapped, and is not: it works, and says why."""

from __future__ import annotations

import logging
from contextlib import suppress
from queue import SimpleQueue

import numpy as np
from tests import forked
from tests.remote.pairs import PATIENCE, Pair, pair

from tensorwire import _core, audit, remote
from tensorwire.remote import Add, Rights
from tensorwire.remote.shared import shared as memory

_MOST = 4096
"""That a link maps, in pieces."""
_AT_ONCE = 50
"""Fewer than may be on their way to a peer."""


class _Lines(logging.Handler):
    """Of the log, as other threads write it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: SimpleQueue[str] = SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put(record.getMessage())


def test_a_tensor_beyond_what_a_link_maps_says_so() -> None:
    log, logger = _Lines(), logging.getLogger("tensorwire")
    with pair("shm") as there:
        logger.addHandler(log)
        try:
            told = audit.counts()["budget", "mapping"]
            _, first = there.opened(4, "uint64")
            assert first.path() == there.device.path()
            fillers = _filled(there)
            exposed, tensor = there.opened((2, 3), "uint64")
            _, another = there.opened((2, 3), "uint64")
            while "budget, mapping" not in (line := log.lines.get(timeout=PATIENCE)):
                pass
            assert f"{_MOST} pieces" in line
            assert audit.counts()["budget", "mapping"] == told + 1  # once for a link
        finally:
            logger.removeHandler(log)
        assert first.mapped
        assert there.device.path().way == "mapped"
        for each in (tensor, another, tensor[1]):
            assert not each.mapped
            path = each.path()
            assert (path.way, path.transport) == ("frames", "shm")
            assert f"{_MOST} pieces" in path.reasons["mapped"]
            assert str(path).startswith("frames by shm to ")
        link = there.device.stats()["link"]
        assert isinstance(link, dict)
        assert link["remote_regions_unmapped"] == 4
        assert link["unmapped_reason"] == tensor.path().reasons["mapped"]
        assert link["regions_unmapped"] == 0

        tensor.write(np.arange(6, dtype=np.uint64).reshape(2, 3), signal=Add())
        assert exposed.signal.wait(1, PATIENCE) == 1
        assert exposed.array.tolist() == tensor.read().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert tensor[0].fetch_add(2, 5) == 2
        assert tensor[0].compare_swap(2, 7, 9) == 7
        assert tensor.gather([1, 0]).tolist() == [[3, 4, 5], [0, 1, 9]]

        for region in fillers:
            region.conceal(PATIENCE)
        _, later = there.opened(4)
        assert later.mapped
        assert later.path().way == "mapped"
        assert not tensor.mapped  # as it was opened


def test_a_tensor_whose_signal_alone_is_not_mapped_says_so() -> None:
    with pair("shm") as there:
        fillers = _filled(there, but=1)
        readable = there.opened(4, rights=Rights.READ)[1]
        assert readable.mapped
        readable.close()
        _, tensor = there.opened(4)
        assert not tensor.mapped
        assert "its signal is not" in tensor.path().reasons["mapped"]
        fillers.clear()  # which conceals them


def _filled(there: Pair, but: int = 0) -> list[_core.Region]:
    """As many pieces are mapped as a link maps, but so many."""
    (native,) = there.host._peers
    filler = memory(8)
    regions: list[_core.Region] = []
    before = _mapped(there)
    while (left := _MOST - but - before - len(regions)) > 0:
        regions += [native.expose(filler, _core.MAY_READ) for _ in range(min(left, _AT_ONCE))]
        with suppress(remote.NotFoundError):  # once it answers, the device has mapped them
            there.device.open("nothing has this name")
    assert _mapped(there) == _MOST - but
    return regions


def _mapped(there: Pair) -> int:
    link = there.device.stats()["link"]
    assert isinstance(link, dict)
    found: int = link["remote_regions_mapped"]
    return found


def test_memory_that_was_not_made_for_it_says_so() -> None:
    values = np.arange(3)
    with pair("shm") as there, there.host.expose(values) as exposed:
        tensor = there.device.open(exposed.handle)
        assert tensor.path().way == "frames"
        assert "made to be accessed" in tensor.path().reasons["mapped"]
        link = there.device.stats()["link"]
        assert isinstance(link, dict)
        assert link["remote_regions_unmapped"] == 0
        assert "unmapped_reason" not in link
        empty = there.opened((0, 3))[1]
        assert empty.path().reasons == {"mapped": "it has no bytes"}
    with pair("tcp") as there, there.host.expose(values) as exposed:
        tensor = there.device.open(exposed.handle)
        assert tensor.path() == there.device.path()
    assert isinstance(there.device.path(), remote.Path)


def test_a_burst_is_mapped_where_few_descriptors_may_be_on_their_way() -> None:
    child = forked.start("tests.remote.crowded", 1000, {})
    try:
        assert [child.stdout.readline() for _ in range(2)] == ["1000\n", "0\n"]
    finally:
        child.kill()
