# SPDX-License-Identifier: Apache-2.0
"""The contenders by name. Each module is imported only when its contender runs."""

from __future__ import annotations

from importlib import import_module

from tensorwire.bench.peers.base import Peer

NAMES = ("tensorwire", "grpcio", "sockets", "memcpy", "zmq", "flight", "mpi", "nixl")


def peer(name: str) -> Peer:
    """The peer of that name; ``sockets-<control>`` is ``sockets`` under that congestion control.

    Raises ValueError for a name that nobody has.
    """
    module, _, variant = name.partition("-")
    if module not in NAMES or (variant and module != "sockets"):
        raise ValueError(f"no contender is called {name!r}; there are {', '.join(NAMES)}")
    make = import_module(f"tensorwire.bench.peers.{module}").make
    result: Peer = make(variant) if variant else make()
    return result
