# SPDX-License-Identifier: Apache-2.0
"""Why a process cannot be reached: what its server says to gRPC itself."""

from __future__ import annotations

from typing import Any, Final

import grpc

from tensorwire.remote.errors import FAILED_PRECONDITION, RemoteError, error, of_call
from tensorwire.rpc import bootstrap

_SECONDS: Final = 0.5
"""For an answer; a connection that is refused is told at once."""
_LATE: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def of_first_call(raised: grpc.RpcError, target: str) -> RemoteError:
    """What the first call to ``target`` has ended with, where there is no link."""
    first: Any = raised
    if first.code() not in (*_LATE, grpc.StatusCode.UNIMPLEMENTED):
        return of_call(raised, target)
    said = _ask(target)
    if said.code() is grpc.StatusCode.UNIMPLEMENTED:
        return RemoteError(
            f"{target} is no tensorwire server ({said.details()}): remote memory needs "
            "tensorwire.server and remote.host(server) there",
            FAILED_PRECONDITION,
        )
    if said.code() in _LATE and first.code() in _LATE:
        cause = (said.details() or said.code().name).rpartition(": ")[2]
        return error(
            first.code().value[0],
            f"{target} does not answer ({cause}): see whether the server runs there",
        )
    return of_call(raised, target)


def _ask(target: str) -> Any:
    """How a call of Open ends that asks for nothing, and so leaves nothing."""
    with grpc.insecure_channel(target) as channel:
        method: Any = channel.unary_unary(bootstrap.METHOD)
        call = method.future(b"", timeout=_SECONDS)
        call.exception()
        return call
