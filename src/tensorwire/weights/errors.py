# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between a publisher and a subscriber."""

from __future__ import annotations

from typing import Final, NoReturn

import grpc


class WeightsError(RuntimeError):
    """A pull has failed; the parameters are as they were, unless the text says that a subscriber in
    place had begun to write them. ``code`` is a ``grpc.StatusCode``."""

    code: Final[grpc.StatusCode]

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class PublisherLostError(WeightsError, ConnectionError):
    """A publisher is gone, or cannot be reached: pull again once it, or another one, is there."""


class PullTimeoutError(WeightsError, TimeoutError):
    """No version that was asked for came in time."""


class DisagreementError(WeightsError):
    """A publisher refuses a plan, before a byte has moved: it holds something else."""


class ChecksumError(WeightsError):
    """What arrived is not what was published."""


REFUSED: Final = "the plan is refused"
"""With this begins what a publisher says then; FAILED_PRECONDITION has other reasons, too."""
_KINDS: Final = {
    grpc.StatusCode.UNAVAILABLE: PublisherLostError,
    grpc.StatusCode.CANCELLED: PublisherLostError,
    grpc.StatusCode.DEADLINE_EXCEEDED: PullTimeoutError,
}


def raise_of(error: grpc.RpcError, target: str, name: str) -> NoReturn:
    """What a call of a publisher has ended with, as an error of this module. name: of the
    publication."""
    call: grpc.Call = error  # type: ignore[assignment]  # what both libraries raise is one
    code = call.code()
    text = f"{target}: {call.details()}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        text = (
            f"{target}: no publication {name!r} is there: see that a Publisher with name={name!r} "
            "uses that server"
        )
    refused = code is grpc.StatusCode.FAILED_PRECONDITION and REFUSED in text
    kind = DisagreementError if refused else _KINDS.get(code, WeightsError)
    raise kind(code, text) from None
