# SPDX-License-Identifier: Apache-2.0
"""Errors by Horovod's names."""


class HorovodInternalError(RuntimeError):
    """An operation failed: ranks disagree, or one of them is gone."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """Processes ask to come in: all ranks get it at the same place."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("processes ask to come in")
        self.skip_sync = skip_sync


class NotInitializedError(ValueError):
    """``init()`` has not been called, or ``shutdown()`` has."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized: call hvd.init() first")
