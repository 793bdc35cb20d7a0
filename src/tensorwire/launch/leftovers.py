# SPDX-License-Identifier: Apache-2.0
"""What ended processes have left on this host."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def remove() -> None:
    """Removes the sockets for shared memory that ended processes of this user have left: those that
    were killed, and those whose servers TensorFlow never stops."""
    from tensorwire import _core

    if not any(Path(str(_core.host()["runtime_folder"])).glob("tensorwire-link-*")):
        return
    # Whoever makes a socket removes those that nobody holds any more.
    with suppress(_core.StatusError):
        server = _core.Server()
        try:
            server.listen_local()
        finally:
            server.close()
