# SPDX-License-Identifier: Apache-2.0
"""A server on another host for links to be measured to: who comes has proved the secret of both
ends to a ``Listener``, before anything it says is read, and has a server of its own while it
stays."""

from __future__ import annotations

import secrets
import select
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Final

import msgspec

from tensorwire import progress
from tensorwire.bench.harness.control import AgentError, Control
from tensorwire.bench.harness.listener import Hello, Listener, StrangerError, connect
from tensorwire.bench.harness.processes import expect
from tensorwire.bench.suites.links.service import Server, serving

_TUNER: Final = Hello(1, 0, {})
_SECONDS: Final = 30.0
"""For a server to begin."""
_LOOK_SECONDS: Final = 600.0


class _Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """port: of the server; token: that it asks for, of this conversation only."""

    port: int
    token: str


def parsed(text: str) -> tuple[str, int]:
    """Host and port; ValueError where it is not that."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is no HOST:PORT")
    return host, int(port)


@contextmanager
def reached(where: tuple[str, int], secret: bytes) -> Iterator[Server]:
    """The server that ``serve`` begins there for us. AgentError."""
    host, port = where
    try:
        control = connect(host, port, secret, _TUNER)
    except (OSError, StrangerError) as error:
        raise AgentError(
            f"{host}:{port}: {error}: is tensorwire tune links --serve running there, with this "
            "token?"
        ) from None
    with closing(control):
        try:
            opened = msgspec.convert(expect(control, _SECONDS), _Opened)
        except (AgentError, msgspec.ValidationError) as error:
            raise AgentError(
                f"{host}:{port} begins no server ({error}): does it serve somebody else?"
            ) from None
        yield Server(f"{host}:{opened.port}", opened.token)


def serve(where: tuple[str, int], secret: bytes) -> int:
    """For one at a time, until Ctrl-C, at the port behind this one; returns the command's exit
    code."""
    host, port = where
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(Listener(host, port, secret))
        except OSError as error:
            progress.say(f"tensorwire tune links: cannot listen at {host}:{port}: {error}")
            return 1
        progress.say(f"tensorwire tune links: serving at {host}:{listener.port}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            while True:
                come = listener.take(_TUNER.rank, _TUNER.number, _LOOK_SECONDS, lambda: None)
                if come is not None:
                    with closing(come[0]), suppress(OSError):  # who is lost is served no more
                        _attend(come[0], host, port and port + 1)
    return 0


def _attend(control: Control, host: str, port: int) -> None:
    """Until the other end hangs up. OSError: it is lost."""
    token = secrets.token_hex()
    try:
        with serving(f"{host}:{port}", token) as address:
            opened = _Opened(int(address.rpartition(":")[2]), token)
            control.send(msgspec.to_builtins(opened))
            select.select([control], [], [])  # it has nothing to say
    except RuntimeError as error:
        control.send({"error": f"cannot listen at {host}:{port}: {error}"})
