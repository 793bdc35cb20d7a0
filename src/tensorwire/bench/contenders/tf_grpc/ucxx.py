# SPDX-License-Identifier: Apache-2.0
"""UCX by its own Python package: tagged messages, all buffers of a payload under way at once, on an
endpoint for each caller and server. Who waits sleeps. No status and no metadata; UCX takes anybody
who comes, and its TCP is that of loopback only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorwire.bench.contenders.rpc import ucxx as calls
from tensorwire.bench.harness.control import Control
from tensorwire.bench.suites.tf_grpc.contender import Client, Contender, Procedure, Request
from tensorwire.bench.suites.tf_grpc.ranks import (
    Attending,
    Peer,
    RankClient,
    connected,
    listening,
)


class _End(Peer):
    def __init__(self, transport: str, sends: int, receives: int) -> None:
        self._ucx = calls.Ucx(transport, polls=False)
        self._sends, self._receives = sends, receives

    def meet(self, control: Control) -> None:
        """The other end, which does the same."""
        control.send({"address": self._ucx.about().hex()})
        self._ucx.meet(bytes.fromhex(control.receive()["address"]))

    def wrapped(self, array: Any) -> Any:
        return self._ucx.wrapped(array)

    def send(self, arrays: Sequence[Any]) -> None:
        ucx, tag = self._ucx, self._sends
        for request in [ucx.sending(each, tag) for each in arrays]:
            ucx.wait(request)

    def receiving(self, arrays: Sequence[Any]) -> Callable[[], object]:
        ucx, tag = self._ucx, self._receives
        under_way = [ucx.receiving(each, tag) for each in arrays]

        def end() -> None:
            for request in under_way:
                ucx.wait(request)

        return end


class Ucxx(Contender):
    transports = calls.Ucxx.transports
    packages = calls.Ucxx.packages
    modes = frozenset({"non-serialized"})
    pipelines: frozenset[Procedure] = frozenset({"acknowledge"})
    """Of the same payload only one echo at a time has a place to come to."""
    near = True

    def viable(self, transport: str) -> str | None:
        return calls.Ucxx().viable(transport)

    @contextmanager
    def serve(self, transport: str, host: str, port: int, token: str | None) -> Iterator[str]:
        def attend(control: Control) -> None:
            end = _End(transport, calls.TO_CLIENT, calls.TO_SERVER)
            end.meet(control)
            while message := control.receive():
                visit = Attending(end, Request.from_json(message["request"]))
                control.send({"ready": True})
                while visit.call():
                    pass

        with listening(host, port, attend) as address:
            yield address

    @contextmanager
    def connect(self, transport: str, address: str, token: str | None) -> Iterator[Client]:
        with connected(address) as control:
            end = _End(transport, calls.TO_SERVER, calls.TO_CLIENT)
            end.meet(control)
            yield RankClient(end, control, transport, f"UCX_TLS={calls.SETTINGS[transport]['TLS']}")
