# SPDX-License-Identifier: Apache-2.0
"""A host and a device that reaches it, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

import tensorwire as tw
from tensorwire import remote
from tensorwire.remote import Rights

PATIENCE = 60.0
ALL = Rights.READ | Rights.WRITE | Rights.UPDATE


@dataclass
class Pair:
    server: tw.Server
    target: str
    host: remote.Host
    device: remote.Device

    def opened(
        self, shape: Any, dtype: object = "float32", rights: Rights = ALL
    ) -> tuple[remote.Exposed, remote.RemoteTensor]:
        """Both ends of a new tensor."""
        exposed = self.host.empty(shape, dtype, rights=rights)
        return exposed, self.device.open(exposed.handle)

    def hear(self) -> None:
        """The device hears of what was concealed, for the news of it comes before replies. Where a
        device of a transport serves the memory, an access before that would end the link."""
        if self.device.path().way == "device":
            with suppress(remote.NotFoundError):
                self.device.open("nothing has this name")


@contextmanager
def served(**options: Any) -> Iterator[tuple[tw.Server, str]]:
    with futures.ThreadPoolExecutor(4) as pool:
        server = tw.server(pool, **options)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield server, f"127.0.0.1:{port}"
        finally:
            server.stop(None)


@contextmanager
def ending(interrupt: bool) -> Iterator[None]:
    """A question to the host ends without an answer: by its deadline, or an interrupt."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        if interrupt:
            patch.setattr("tensorwire.remote.device.Bell.wait", interrupted)
        with pytest.raises(KeyboardInterrupt if interrupt else remote.DeadlineExceededError):
            yield


@contextmanager
def pair(transport: Any, **options: Any) -> Iterator[Pair]:
    with (
        served() as (server, target),
        remote.host(server, **options) as host,
        remote.connect(target, transport=transport, timeout=PATIENCE) as device,
    ):
        yield Pair(server, target, host, device)
