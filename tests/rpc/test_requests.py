# SPDX-License-Identifier: Apache-2.0
"""The thread that sends a stream of requests."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from tensorwire import _core
from tensorwire.rpc.client import requests


class Call:
    def __init__(self) -> None:
        self.cancelled = False

    def send(self, message: Any) -> bool:
        return True

    def end_send(self) -> None:
        pass

    def cancel(self) -> bool:
        self.cancelled = True
        return True


def test_an_interrupt_while_it_starts_cancels_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    call = Call()
    with pytest.raises(KeyboardInterrupt):
        requests.send_all([b"request"], cast(_core.Call, call), None)
    assert call.cancelled
