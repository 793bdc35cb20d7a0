# SPDX-License-Identifier: Apache-2.0
"""Tokens that both ends of a bench have, and servers that do nothing for who does not show one."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

_KEY: Final = "authorization"
_LEAST: Final = 16
"""Characters."""


@dataclass(frozen=True)
class Token:
    """file: where it is."""

    text: str
    file: Path

    @classmethod
    def of(cls, file: Path | None) -> Token:
        """Raises ValueError where there is none, or one that anybody could guess."""
        if file is None:
            raise ValueError(
                "serving and connecting need a secret that both ends have: "
                "head -c 32 /dev/urandom | base64 > token; --token-file token"
            )
        try:
            text = file.read_text().strip()
        except OSError as error:
            raise ValueError(f"cannot read {file} ({error.strerror})") from None
        except UnicodeDecodeError:
            raise ValueError(f"{file} has no secret: it is no text") from None
        if len(text) < _LEAST or not text.isascii() or len(text.split()) > 1:
            raise ValueError(
                f"{file} has no secret: one word of at least {_LEAST} ASCII characters"
            )
        return cls(text, file.absolute())


Metadata = tuple[tuple[str, str], ...]


def proof(token: str | None) -> Metadata | None:
    """The metadata of a call that shows the token."""
    return None if token is None else ((_KEY, f"Bearer {token}"),)


class _Shown:
    """Whether calls show the token."""

    def __init__(self, token: str) -> None:
        ((_, self._shown),) = proof(token) or ()

    def __call__(self, call: grpc.HandlerCallDetails) -> bool:
        shown = dict(call.invocation_metadata).get(_KEY, "")
        return isinstance(shown, str) and hmac.compare_digest(shown.encode(), self._shown.encode())


class Guard(grpc.ServerInterceptor):
    """Refuses calls that do not show the token."""

    def __init__(self, token: str) -> None:
        self._shows = _Shown(token)
        self._refusal: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            _refuse
        )

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        if self._shows(handler_call_details):
            return continuation(handler_call_details)
        return self._refusal


class _AsyncGuard(grpc.aio.ServerInterceptor):
    """The same for servers of grpc.aio."""

    def __init__(self, token: str) -> None:
        self._shows = _Shown(token)
        refusal: Any = grpc.unary_unary_rpc_method_handler
        self._refusal = refusal(_refuse_async)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        if self._shows(handler_call_details):
            return await continuation(handler_call_details)
        return self._refusal


def guards(token: str | None) -> list[grpc.ServerInterceptor]:
    return [] if token is None else [Guard(token)]


def async_guards(token: str | None) -> list[grpc.aio.ServerInterceptor]:
    return [] if token is None else [_AsyncGuard(token)]


_REFUSAL: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    "not the server's token: give the same --token-file",
)


def _refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(*_REFUSAL)


async def _refuse_async(request: bytes, context: Any) -> None:
    await context.abort(*_REFUSAL)
