# SPDX-License-Identifier: Apache-2.0
"""A channel's way to its server: opens the data plane, holds the link, and opens it anew.

States: a link is alive, or an attempt to open one is under way, or the next attempt waits for the
back-off to pass, or the channel is settled on gRPC. A server that refuses the metadata of one call
may open a link for another one. Attempts run in a thread of their own, one at a time. Calls wait
for the first attempt, and for the first one after a link was lost, at most ``PATIENCE`` seconds;
while later attempts run, calls go by gRPC where that is permitted.

Where links by RDMA keep failing, calls take the next best way, and the channel returns to it later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final
from weakref import ref

import grpc

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.observe.trace import LinkTrace, link_trace
from tensorwire.rpc import backoff, bootstrap, instrumentation, lifetime, registry, status
from tensorwire.rpc import metadata as meta
from tensorwire.rpc.choice import DATA_PLANE, Path, Policy, crowded
from tensorwire.rpc.client import idle
from tensorwire.rpc.client.breaker import Breaker
from tensorwire.rpc.client.opening import Found, Opening, reasons
from tensorwire.rpc.options import OWN_CONNECTIONS, Limits, Options
from tensorwire.rpc.refusals import Offer, Refusal, Refusals
from tensorwire.rpc.waiting import wait

PATIENCE: Final = 1.0
_OPEN_SECONDS: Final = 5.0
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 30.0
# Where calls have no other way meanwhile, the server's return is noticed within 3 s: by the next
# attempt, once grpcio has connected again.
_LONGEST_WITHOUT: Final = 1.0
_RECONNECT: Final = tuple(
    (f"grpc.{name}_reconnect_backoff_ms", int(_LONGEST_WITHOUT * 1000))
    for name in ("initial", "max")
)
_STEADY_SECONDS: Final = 5.0  # a link that lived so long starts the back-off from the beginning
_FRAGILE: Final = "verbs"  # depends on more than the peer
_LESSER: Final = (*DATA_PLANE[DATA_PLANE.index(_FRAGILE) + 1 :], "grpc")


class _Attempt:
    """``offer``: metadata of the call that began it. ``patience_ends``: until when calls wait for
    it that could go by gRPC. ``refusal``: what the server said to the offer, once it is done."""

    __slots__ = ("done", "offer", "patience_ends", "refusal")

    def __init__(self, offer: Offer, patience: float) -> None:
        self.done = threading.Event()
        self.offer = offer
        self.patience_ends = monotonic() + patience
        self.refusal: Refusal | None = None


class Uplink:
    """``link`` is what calls take while it is alive; everything else goes through ``route``."""

    def __init__(
        self,
        target: str,
        options: Options,
        compression: grpc.Compression | None,
        policy: Policy,
        limits: Limits,
        settled: str | None,
    ) -> None:
        """``settled``: why calls stay on gRPC from the start."""
        self.link: _core.Link | None = None
        self.target = target
        self.policy = policy
        self._options = options
        self._compression = compression
        self._key = (target, policy, tuple(options), compression)
        self.limits = limits
        self._lock = threading.Lock()  # guards what follows
        self._stock: grpc.Channel | None = None
        self._generation = lifetime.generation()
        self._used = False
        self._closing = threading.Event()
        self._attempt: _Attempt | None = None
        self._settled = False
        self._failures = 0
        self._next_attempt = 0.0
        self._longest = _LONGEST_PAUSE if policy.permits("grpc") else _LONGEST_WITHOUT
        self._refusals = Refusals(_FIRST_PAUSE, self._longest)
        self._offer: Offer = ()  # with which the present link was asked for
        self._link_since = 0.0
        self._opened = 0
        self._lost_links = 0
        self._breaker = Breaker() if any(map(policy.permits, _LESSER)) else None
        self._returning: threading.Thread | None = None
        self._path: Path | None = None
        if settled is not None:
            self._settle(dict.fromkeys(DATA_PLANE, settled))
        elif not policy.data_plane:
            self._settle({name: policy.refusal(name) or "" for name in DATA_PLANE})

    @classmethod
    def over(cls, stock: grpc.Channel, target: str, policy: Policy, settled: str) -> Uplink:
        """For a channel of another kind, which calls never leave."""
        uplink = cls(target, (), None, policy, Limits(), settled)
        uplink._stock = stock
        uplink._used = True
        return uplink

    # ------------------------------------------------------------------------------------ gRPC

    @property
    def stock(self) -> grpc.Channel:
        """The gRPC channel, made at first use. CallError in a child that may not use it."""
        self._check_process()
        stock = self._stock
        if stock is None:
            self.make_stock()
            assert self._stock is not None
            stock = self._stock
        return stock

    def make_stock(self) -> grpc.Channel | None:
        """The gRPC channel with what tools have put around it; None when there was one before. The
        bare one carries Open, and the calls of the channel that the tools' interceptors see."""
        self._check_process()
        with self._lock:
            if self._closing.is_set():
                raise _closed(self.target)
            if self._stock is not None:
                return None
            options = self._options
            if not self.policy.permits("grpc"):
                options = (*_RECONNECT, *options)
            if lifetime.heir():
                options = (OWN_CONNECTIONS, *options)
            made = grpc.insecure_channel(self.target, options, self._compression)
            self._stock = instrumentation.bare(made)
            return made

    def _check_process(self) -> None:
        if lifetime.generation() != self._generation:
            if self._used:
                raise status.CallError(
                    status.FAILED_PRECONDITION,
                    f"the channel to {self.target} was used before fork(), and pid {os.getpid()} "
                    "is a child: make a new channel in the child",
                )
            self._generation = lifetime.generation()
            self._lock = threading.Lock()
        why_not = lifetime.using_grpc()
        if why_not is not None:
            raise status.CallError(status.FAILED_PRECONDITION, why_not)
        self._used = True

    # ------------------------------------------------------------------------------- for calls

    def route(
        self,
        timeout: float | None,
        wait_for_ready: bool | None,
        metadata: Iterable[tuple[str | bytes, str | bytes]] | None = None,
    ) -> tuple[_core.Link | None, float | None]:
        """The link that a call takes (None: gRPC), and how much of its timeout is left.

        metadata: the call's, by which the server's interceptors see who asks for a link.

        Raises CallError where a required transport is missing, with the server's own status if it
        opens none for these metadata.
        """
        link = self.link
        if link is not None and link.alive:
            return link, timeout
        started = monotonic()
        offer = () if self._settled else meta.fitting(status.call_metadata(metadata) or ())
        while True:
            attempt = self._find_or_begin(wait_for_ready, offer)
            link = self.link
            left = None if timeout is None else timeout - (monotonic() - started)
            if attempt is None and link is not None:
                return link, left
            grpc_may = self.policy.permits("grpc")
            if attempt is None:
                if grpc_may:
                    return None, left
                if not wait_for_ready or self._settled:
                    raise status.CallError(status.UNAVAILABLE, self._missing())
                self._wait_for_next(left)
            elif grpc_may:
                patience = min(attempt.patience_ends, started + PATIENCE) - monotonic()
                if left is not None:
                    # A short timeout has to suffice for the attempt and for the call by gRPC.
                    patience = min(patience, left / 2)
                ended = patience > 0 and wait(attempt.done, patience)
                if not ended or (attempt.refusal is not None and attempt.offer == offer):
                    return None, None if timeout is None else timeout - (monotonic() - started)
            elif not wait(attempt.done, left):
                raise status.CallError(status.DEADLINE_EXCEEDED, self._missing())
            elif attempt.refusal is not None:
                if attempt.offer == offer:
                    raise attempt.refusal.error()
            elif not wait_for_ready and self.link is None:
                raise status.CallError(status.UNAVAILABLE, self._missing())

    def path(self) -> Path:
        """How calls travel; waits for the choice if none was made so far."""
        if not self._closing.is_set():
            if not self._settled:
                self._check_process()
            with contextlib.suppress(status.CallError):  # the path tells the reasons
                self.route(None, None)
        with self._lock:
            link = self.link
            path = self._path or self._no_link(reasons(self.policy, "the channel was not used"))
        return path if link is None else dataclasses.replace(path, crowded=crowded(link.stats()))

    def stats(self) -> dict[str, object]:
        """``target``: the channel's; ``transport`` and ``peer`` as in the path; ``opened``: links
        so far; ``lost``: those that have ended; ``failures``: attempts that failed in a row;
        ``link``: counters of the link, None where gRPC is used."""
        with self._lock:
            link, path = self.link, self._path
            return {
                "target": self.target,
                "transport": path.transport if path else None,
                "peer": path.peer if path else None,
                "opened": self._opened,
                "lost": self._lost_links,
                "failures": self._failures + self._refusals.in_a_row,
                "link": link.stats() if link is not None else None,
            }

    def trace(self) -> LinkTrace | None:
        """What the live link has noted; None where gRPC is used."""
        with self._lock:
            link = self.link
        return None if link is None else link_trace(link.transport, link.peer, *link.trace())

    def close(self, *, leave_link: bool = True) -> None:
        """leave_link: to the next channel with the same arguments."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
            link, self.link = self.link, None
            stock, path = self._stock, self._path
        if lifetime.generation() != self._generation:
            return  # the parent's
        if link is not None and not leave_link:
            link.close()
        elif link is not None:
            idle.keep(self._key, idle.Left(link, path.reasons if path is not None else {}))
        if stock is not None:
            stock.close()

    def close_at_exit(self) -> None:
        """Also waits for the threads."""
        attempt, returning = self._attempt, self._returning
        self.close(leave_link=False)
        if attempt is not None:
            attempt.done.wait(lifetime.JOIN_SECONDS)
        if returning is not None:
            returning.join(lifetime.JOIN_SECONDS)

    # -------------------------------------------------------------------------------- attempts

    def _find_or_begin(self, wait_for_ready: bool | None, offer: Offer) -> _Attempt | None:
        """The attempt under way, if any; begins one where there is no link and it is time.
        CallError: the offer was refused, and calls have no other way."""
        if self._settled:
            return None
        self._check_process()
        with self._lock:
            link = self.link
            if link is not None:
                if link.alive:
                    return None
                self._lost(link)
            if self._closing.is_set():
                raise _closed(self.target)
            if self._attempt is not None:
                return self._attempt
            left = idle.take(self._key)
            if left is not None:
                self._take(left.link, left.reasons, offer)
                return None
            if monotonic() < self._next_attempt or self._refused(offer):
                return None
            attempt = self._attempt = _Attempt(offer, 0.0 if self._failures else PATIENCE)
        errand = [functools.partial(self._run, attempt, wait_for_ready)]
        thread = threading.Thread(
            target=_attempt, args=(errand,), name="tensorwire-open", daemon=True
        )
        lifetime.close_at_exit(self)
        try:
            lifetime.start(thread)
        except BaseException:  # Ctrl-C, or no thread is to be had
            with self._lock:
                self._attempt = None
            attempt.done.set()
            raise
        return attempt

    def _refused(self, offer: Offer) -> bool:
        """Lock held. Whether the server has refused the offer, or so many others lately that this
        one has to wait. CallError instead where gRPC is no way; there no offer has to wait."""
        refusal = self._refusals.find(offer)
        if self.policy.permits("grpc"):
            return refusal is not None or self._refusals.full
        if refusal is not None:
            raise refusal.error()
        return False

    def _wait_for_next(self, left: float | None) -> None:
        pause = max(0.0, self._next_attempt - monotonic())
        if left is not None and left <= pause:
            raise status.CallError(status.DEADLINE_EXCEEDED, self._missing())
        wait(self._closing, pause)

    def _run(self, attempt: _Attempt, wait_for_ready: bool | None) -> bool:
        """Whether the channel has got a link."""
        found = self._open(wait_for_ready, attempt.offer)
        with self._lock:
            self._attempt = None
            if self._closing.is_set():
                if found.link is not None:
                    found.link.close()
            elif found.link is not None:
                self._take(found.link, found.reasons, attempt.offer)
            elif found.final:
                self._settle(found.reasons)
            elif found.refusal is not None:
                self._failures = 0
                self._refusals.add(attempt.offer, found.refusal)
                attempt.refusal = found.refusal
                self._choose(self._no_link(found.reasons))
            else:
                self._pause()
                self._choose(self._no_link(found.reasons))
            taken = self.link is not None
        attempt.done.set()
        return taken

    def _open(
        self, wait_for_ready: bool | None, offer: Offer, better_than: str | None = None
    ) -> Found:
        with self._lock:
            passed_over = {}
            if self._breaker is not None and self._breaker.left():
                why = f"passed over for a while, because its links fail: {self._breaker.why}"
                passed_over[_FRAGILE] = why
        opening = Opening(
            self.target,
            self.policy,
            self.limits.receive,
            lambda: bootstrap.ask(self.stock, _OPEN_SECONDS, wait_for_ready, offer),
            better_than,
            passed_over,
        )
        try:
            found = opening.run()
        except Exception as error:
            # A channel that is closed has grpcio raise, wherever the attempt has got to.
            if not self._closing.is_set():
                LOGGER.exception("%s: exception while opening the data plane", self.target)
            why = f"opening the data plane failed: {error!r}"
            return Found(None, reasons(self.policy, why))
        for name in found.unreached:
            registry.FAILED.count(name)
        if self._breaker is not None and _FRAGILE in found.unreached:
            with self._lock:
                self._breaker.unreached(found.unreached[_FRAGILE])
        return found

    def _lost(self, link: _core.Link) -> None:
        """Lock held. The link has gone; attempts begin anew."""
        LOGGER.info("%s: the %s link has ended: %s", self.target, link.transport, link.death)
        self.link = None
        self._lost_links += 1
        registry.LOST.count(link.transport)
        lived = monotonic() - self._link_since
        breaker = self._breaker if link.transport == _FRAGILE else None
        if (breaker is not None and breaker.died(lived, link.death)) or lived >= _STEADY_SECONDS:
            self._failures = 0
            self._next_attempt = 0.0
        elif self._opened > 1:
            self._pause()  # it keeps dying young: not to be repeated at full speed

    # ------------------------------------------------------------------- the way back to verbs

    def _take(self, link: _core.Link, reasons: Mapping[str, str], offer: Offer) -> None:
        """Lock held. Calls go by ``link`` from now on; those on the one before it end there."""
        self._link_since = monotonic()
        self._offer = offer
        self._refusals.clear()
        self._opened += 1
        self.link = link
        self._choose(Path(link.transport, link.peer, reasons))
        pause = self._breaker.left() if self._breaker is not None else 0.0
        if pause and self._returning is None and link.transport in _LESSER:
            lifetime.close_at_exit(self)
            thread = threading.Thread(
                target=_return,
                args=(ref(self), self._closing, pause),
                name="tensorwire-return",
                daemon=True,
            )
            with contextlib.suppress(RuntimeError):  # without a thread, calls go by this link
                lifetime.start(thread)
                self._returning = thread

    def _try_better(self) -> float | None:
        """Takes a better link than the present one if there is one now. When to try again, in
        seconds; None: not any more."""
        with self._lock:
            before = self.link
            lesser = before is not None and before.alive and before.transport in _LESSER
            if before is None or not lesser or self._closing.is_set():
                self._returning = None  # who opens the next link decides anew
                return None
            offer = self._offer
        found = self._open(None, offer, before.transport)
        with self._lock:
            if found.link is None and self.link is before and not found.final:
                left = self._breaker.left() if self._breaker is not None else 0.0
                return max(left, _LONGEST_PAUSE)
            self._returning = None
            if found.link is not None:
                if self.link is before and not self._closing.is_set():
                    self._take(found.link, found.reasons, offer)
                else:
                    found.link.close()
            return None

    # ---------------------------------------------------------------------------------- pauses

    def _pause(self) -> None:
        """Lock held. The next attempt comes later than the last one did."""
        self._failures += 1
        pause = backoff.pause(self._failures, _FIRST_PAUSE, self._longest)
        self._next_attempt = monotonic() + pause

    # --------------------------------------------------------------------------------- choices

    def _no_link(self, reasons: dict[str, str]) -> Path:
        return Path("grpc" if self.policy.permits("grpc") else "none", self.target, reasons)

    def _settle(self, reasons: dict[str, str]) -> None:
        self._settled = True
        self._choose(self._no_link(reasons))

    def _choose(self, path: Path) -> None:
        """Lock held (or nobody else knows this object). One log line for each change."""
        if self._breaker is not None and self._breaker.news():
            LOGGER.warning(
                "%s: %s is passed over for %.0f s and then tried again, because its links fail: %s",
                self.target,
                _FRAGILE,
                self._breaker.left(),
                self._breaker.why,
            )
        if path != self._path:
            self._path = path
            if path.transport == "none":
                LOGGER.info("%s: %s", self.target, self._missing())
            else:
                LOGGER.info("%s: calls go by %s", self.target, path)

    def _missing(self) -> str:
        """Why a required transport is missing, for the calls that it would have carried."""
        reasons = self._path.reasons if self._path else {}
        wanted = [name for name in DATA_PLANE if self.policy.permits(name)]
        told = "; ".join(f"{name}: {reasons.get(name, 'not opened yet')}" for name in wanted)
        ways = "gRPC is forbidden" if self.policy.required is None else self.policy.origin
        return f"no permitted transport reaches {self.target} ({ways}): {told}"

    def __del__(self) -> None:
        link = getattr(self, "link", None)
        if hasattr(self, "_closing"):
            self._closing.set()
        if link is not None and lifetime.generation() == self._generation:
            link.close()


def _closed(target: str) -> ValueError:
    return ValueError(f"Cannot invoke RPC on closed channel! ({target})")


def _attempt(errand: list[Callable[[], bool]]) -> None:
    """Body of a thread that keeps nothing alive while it stands by."""
    if errand.pop()():
        idle.stand_by()


def _return(uplink: ref[Uplink], closing: threading.Event, pause: float | None) -> None:
    """Body of a thread that keeps nothing alive while it waits."""
    while pause is not None and not closing.wait(pause):
        found = uplink()
        if found is None:
            return
        pause = found._try_better()
        del found
