# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a group. Each of these ends it, for all ranks."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from tensorwire import _core

INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
UNIMPLEMENTED: Final = 12
UNAVAILABLE: Final = 14


class GroupError(RuntimeError):
    """The group has come to its end; the text says why. ``code`` is a gRPC status code."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(details)
        self.code = code


class RankLostError(GroupError, ConnectionError):
    """A rank is gone, or another rank found it gone."""


class DisagreementError(GroupError):
    """Ranks called different operations."""


class GroupTimeoutError(GroupError, TimeoutError):
    """A rank has not come in time."""


class ExcludedError(GroupError):
    """The other ranks have made a group anew without this one."""


class FinishedError(GroupError):
    """The ranks of the group are done: nobody is left to let this process in."""


_KINDS: Final[dict[int, type[GroupError]]] = {
    DEADLINE_EXCEEDED: GroupTimeoutError,
    ABORTED: DisagreementError,
    UNAVAILABLE: RankLostError,
}


class _Translated:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if not isinstance(error, _core.StatusError):
            return
        code, details = error.args
        if code == INVALID_ARGUMENT:
            raise ValueError(details) from None
        raise _KINDS.get(code, GroupError)(code, details) from None


TRANSLATED: Final = _Translated()
"""Raises errors of the core as those of this module; INVALID_ARGUMENT as ValueError."""
