# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when ranks are lost, and when others come: what it begins again from."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from tensorwire.collective import GroupError
from tensorwire.horovod import asking, negotiation, process
from tensorwire.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt

R = TypeVar("R")

log = logging.getLogger("tensorwire")

_FRUITLESS: Final = 10
"""Failures without a commit in between: more of them are the program's."""


class State:
    """What all ranks have in common. Others override ``save``, ``restore`` and ``sync``.

    ``bcast_object`` and ``get_rank``: of the framework's module."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._callbacks: list[Callable[[], None]] = []
        self._failures = 0

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """To be called when the ranks are others, before the state is synchronized."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Keeps the state, to be restored when ranks are lost; then ``check_host_updates()``."""
        self.save()
        self._failures = 0
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """HostsUpdatedInterrupt, on all ranks, when processes ask to come in. All ranks call it
        at the same place."""
        asking_to_come = np.array([process.newcomers() if process.rank() == 0 else 0], np.int64)
        (found,) = asking.begin(
            negotiation.BROADCAST, asking.named("elastic", "newcomers"), [asking_to_come]
        ).result()
        if found[0]:
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """What has to be done when the ranks are others."""

    def failed(self, why: HorovodInternalError) -> None:
        """Counts failures; one too many is raised."""
        self._failures += 1
        if self._failures > _FRUITLESS:
            raise why


class ObjectState(State):
    """Attributes, of what ``broadcast_object`` takes: ``ObjectState(..., epoch=0, batch=0)``."""

    if TYPE_CHECKING:  # what the attributes are is said by whoever makes one

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = tuple(kwargs)
        self._saved: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._save_attributes()

    def save(self) -> None:
        self._save_attributes()

    def restore(self) -> None:
        self._set(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """The attributes of rank 0, which has been there longest."""
        if self._names:
            mine = {name: getattr(self, name) for name in self._names}
            found = self._bcast_object(mine, name="elastic.attributes")
            if self._rank() != 0:
                self._set(found)
        self._save_attributes()

    def _save_attributes(self) -> None:
        self._saved = copy.deepcopy({name: getattr(self, name) for name in self._names})

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def run_fn(function: Callable[..., R], reset: Callable[[], None]) -> Callable[..., R]:
    """As :func:`run`; ``reset`` makes the job anew."""

    @functools.wraps(function)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> R:
        others, skip_sync = False, False
        while True:
            try:
                if others:
                    reset()
                    state.on_reset()
                if not skip_sync:
                    state.sync()
                return function(state, *args, **kwargs)
            except HorovodInternalError as error:
                log.warning("tensorwire.horovod begins again from the last commit: %s", error)
                state.failed(error)
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            others = True

    return wrapper


def reset() -> None:
    process.regroup()


def run(function: Callable[..., R]) -> Callable[..., R]:
    """Decorates what trains, with a :class:`State` as its first argument. It is called again, with
    the state of the last commit, when a rank is lost, and with that of now when others come: after
    the job has been made anew and rank 0's state has gone to all.

    :class:`~tensorwire.collective.ExcludedError` ends it for a rank that came too late, and an
    error that comes back again and again without a commit is raised."""
    return run_fn(function, reset)


__all__ = [
    "GroupError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "run",
    "run_fn",
]
