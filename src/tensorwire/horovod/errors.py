# SPDX-License-Identifier: Apache-2.0
"""Errors by Horovod's names."""


class HorovodInternalError(RuntimeError):
    """An operation failed: ranks disagree, or one of them is gone."""


class NotInitializedError(ValueError):
    """``init()`` has not been called, or ``shutdown()`` has."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized: call hvd.init() first")
