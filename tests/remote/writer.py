# SPDX-License-Identifier: Apache-2.0
"""A peer that overwrites memory of the tests' process with one version after the other. Started by
``tests.forked``; it ends when it is killed, or its link is lost."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np

from tensorwire import remote


def guarded(device: remote.Device) -> None:
    """A row whose last word says that a version was begun, and its first one that it has ended. It
    lets the reader run between two versions, and amid each other one. Where a device serves the
    row, a reader needs about as long as the writer: it gets up to four times as long between two
    versions."""
    row = device.open("row")
    half = len(row) // 2
    end, early, late, begun = row[:1], row[1:half], row[half:-1], row[-1:]
    values = np.zeros(row.shape, np.uint64)
    by_device = device.path().way == "device"
    for version in itertools.count(1):
        began = time.monotonic()
        values.fill(version)
        begun.write(values[-1:])
        device.fence()
        early.write(values[1:half])
        if version % 2:
            os.sched_yield()
        late.write(values[half:-1])
        device.fence()
        end.write(values[:1])
        os.sched_yield()
        if by_device:
            time.sleep((time.monotonic() - began) * (version % 5))


def channel(device: remote.Device) -> None:
    """Tensors as they come in a channel; the shape varies if it may."""
    sender = remote.sender(device, "versions")
    shape = sender.spec.shape
    assert shape is not None
    (extent,) = shape
    largest = np.zeros(4096 if extent is None else extent, np.uint32)
    for version in itertools.count(1):
        value = largest if extent is not None else largest[version % 7 :]
        value.fill(version)
        sender.put(value)


def main(order: list[Any]) -> None:
    name, target, transport = order
    write = {"guarded": guarded, "channel": channel}[name]
    with remote.connect(target, transport=transport) as device:
        write(device)
