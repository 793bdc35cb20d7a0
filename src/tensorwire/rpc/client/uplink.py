# SPDX-License-Identifier: Apache-2.0
"""A channel's way to its server: opens the data plane, holds the link, and opens it anew.

The core's route (core/route/route.h) decides when an attempt is made and by which transports. Here
attempts run in a thread of their own, one at a time, calls wait for those that are worth waiting
for at most ``PATIENCE`` seconds, and the channel settles on gRPC where no attempt is worth making.
A server that refuses the metadata of one call may open a link for another one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Final
from weakref import ref

import grpc

from tensorwire import _core, transports
from tensorwire.log import LOGGER
from tensorwire.observe.trace import LinkTrace, link_trace
from tensorwire.rpc import bootstrap, instrumentation, lifetime, registry, status
from tensorwire.rpc import metadata as meta
from tensorwire.rpc.choice import Path, Policy
from tensorwire.rpc.client import idle
from tensorwire.rpc.client.attempt import AttemptResult, LinkAttempt, reasons
from tensorwire.rpc.options import OWN_CONNECTIONS, Limits, Options
from tensorwire.rpc.refusals import Offer, Refusal, Refusals
from tensorwire.rpc.waiting import wait

PATIENCE: Final = 1.0
_OPEN_SECONDS: Final = 5.0
# Where calls have no other way meanwhile, the server's return is noticed by the next attempt, once
# grpcio has connected again.
_RECONNECT: Final = tuple(
    (f"grpc.{name}_reconnect_backoff_ms", 1000) for name in ("initial", "max")
)


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
        serves: _core.Server | None = None,
        *,
        connect: Callable[..., _core.Peer] = _core.connect,
        pauses: Sequence[float] | None = None,
    ) -> None:
        """``settled``: why calls stay on gRPC from the start. ``serves``: calls that the
        server begins. ``connect``: makes links. ``pauses``: seconds between attempts, as
        ``_core.Route`` takes them; None: the usual ones."""
        self.link: _core.Peer | None = None
        self.target = target
        self.policy = policy
        self._options = options
        self._compression = compression
        self._serves = serves
        self._connect = connect
        self._pauses = pauses
        self._key = (target, policy, tuple(options), compression, serves)
        self.limits = limits
        self._lock = threading.Lock()  # guards what follows
        self._stock: grpc.Channel | None = None
        self._generation = lifetime.generation()
        self._used = False
        self._closing = threading.Event()
        self._attempt: _Attempt | None = None
        self._settled = False
        self._route: _core.Route | None = None  # made with the first attempt
        self._retry_at = 0.0  # when the next attempt may begin
        self._refusals = Refusals()
        self._offer: Offer = ()  # with which the present link was asked for
        self._opened = 0
        self._lost_links = 0
        self._returning: threading.Thread | None = None
        self._path: Path | None = None
        if settled is not None:
            self._settle(dict.fromkeys(transports.names(), settled))
        elif not policy.data_plane:
            self._settle(reasons(policy, ""))

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
            self._adopt()
        why_not = lifetime.using_grpc()
        if why_not is not None:
            raise status.CallError(status.FAILED_PRECONDITION, why_not)
        self._used = True

    def _adopt(self) -> None:
        """In a forked child, where a thread of the parent's may have left the lock taken. Whoever
        sees the new generation finds the new lock."""
        with lifetime.adopting():
            if lifetime.generation() == self._generation:  # another thread was quicker
                return
            if self._used:
                raise status.CallError(
                    status.FAILED_PRECONDITION,
                    f"the channel to {self.target} was used before fork(), and pid {os.getpid()} "
                    "is a child: make a new channel in the child",
                )
            self._lock = threading.Lock()
            self._generation = lifetime.generation()

    # ------------------------------------------------------------------------------- for calls

    def route(
        self,
        timeout: float | None,
        wait_for_ready: bool | None,
        metadata: Iterable[tuple[str | bytes, str | bytes]] | None = None,
    ) -> tuple[_core.Peer | None, float | None]:
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

    def connected(self) -> _core.Peer | None:
        """The link that calls take; waits for the choice if none was made so far."""
        if not self._closing.is_set():
            if not self._settled:
                self._check_process()
            with contextlib.suppress(status.CallError):  # the path tells the reasons
                self.route(None, None)
        return self.link

    def path(self) -> Path:
        """How calls travel; waits for the choice as ``connected`` does."""
        self.connected()
        with self._lock:
            link = self.link
            path = self._path or self._no_link(reasons(self.policy, "the channel was not used"))
        return path if link is None else path.with_statistics(link.stats())

    def stats(self) -> dict[str, object]:
        """``target``: the channel's; ``transport`` and ``peer`` as in the path; ``opened``: links
        so far; ``lost``: those that have ended; ``failures``: attempts that failed in a row;
        ``link``: counters of the link, None where gRPC is used."""
        with self._lock:
            self._look()
            link, path, route = self.link, self._path, self._route
            return {
                "target": self.target,
                "transport": path.transport if path else None,
                "peer": path.peer if path else None,
                "opened": self._opened,
                "lost": self._lost_links,
                "failures": (route.failures if route else 0) + self._refusals.in_a_row,
                "link": link.stats() if link is not None else None,
            }

    def trace(self) -> LinkTrace | None:
        """What the live link has noted; None where gRPC is used."""
        with self._lock:
            link = self.link
        return None if link is None else link_trace(link.transport, link.address, *link.trace())

    def close(self, *, leave_link: bool = True) -> None:
        """leave_link: to the next channel with the same arguments."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
            self._look()
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
            attempt = self._begin(offer)
            if attempt is None:
                return None
        task = [functools.partial(self._run, attempt, wait_for_ready)]
        thread = threading.Thread(
            target=_attempt, args=(task,), name="tensorwire-open", daemon=True
        )
        lifetime.close_at_exit(self)
        try:
            lifetime.start(thread)
        except BaseException:  # Ctrl-C, or no thread is to be had
            with self._lock:
                self._attempt = None
                self._ways().failed(_core.ATTEMPT_WITHDRAWN)
            attempt.done.set()
            raise
        return attempt

    def _ways(self) -> _core.Route:
        """Lock held."""
        if self._route is None:
            policy = self.policy
            self._route = _core.Route(
                policy.required, [*policy.forbidden], policy.origin, self._pauses
            )
        return self._route

    def _begin(self, offer: Offer) -> _Attempt | None:
        """Lock held. The attempt that the caller makes, if it is time for one. CallError: the offer
        was refused, and calls have no other way."""
        try:
            route = self._ways()
        except _core.StatusError as error:
            why = f"opening the data plane failed: {error.details}"
            self._choose(self._no_link(reasons(self.policy, why)))
            return None
        use, begin, retry = route.consult()
        if not begin:
            self._retry_at = monotonic() + retry
            return None
        try:
            refused = self.link is None and self._refused(offer)
        except status.CallError:
            route.failed(_core.ATTEMPT_WITHDRAWN)
            raise
        if refused:
            route.failed(_core.ATTEMPT_WITHDRAWN)
            return None
        self._attempt = _Attempt(offer, PATIENCE if use == _core.USE_ATTEMPT else 0.0)
        return self._attempt

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
        pause = max(0.0, self._retry_at - monotonic())
        if left is not None and left <= pause:
            raise status.CallError(status.DEADLINE_EXCEEDED, self._missing())
        wait(self._closing, pause)

    def _run(self, attempt: _Attempt, wait_for_ready: bool | None) -> bool:
        """Whether the channel has got a link."""
        found = self._open(wait_for_ready, attempt.offer)
        with self._lock:
            self._attempt = None
            if self.link is not None and not self.link.alive:
                self._lost(self.link)
            if self._closing.is_set():
                if found.link is not None:
                    found.link.close()
            elif found.link is not None:
                self._take(found.link, found.reasons, attempt.offer)
            else:
                self._ways().failed(found.failure)
                if self.link is None:
                    self._go_without(found, attempt)
            taken = found.link is not None and self.link is found.link
        attempt.done.set()
        return taken

    def _go_without(self, found: AttemptResult, attempt: _Attempt) -> None:
        """Lock held. The attempt has come to nothing."""
        if found.final:
            self._settle(found.reasons)
            return
        if found.refusal is not None:
            pause = self._ways().pause(self._refusals.in_a_row + 1)
            self._refusals.add(attempt.offer, found.refusal, pause)
            attempt.refusal = found.refusal
        self._choose(self._no_link(found.reasons))

    def _open(self, wait_for_ready: bool | None, offer: Offer) -> AttemptResult:
        try:
            found = LinkAttempt(
                self.target,
                self.policy,
                self.limits,
                lambda: bootstrap.ask(self.stock, _OPEN_SECONDS, wait_for_ready, offer),
                self._serves,
                self._connect,
            ).run(self._ways())
        except Exception as error:
            # A channel that is closed has grpcio raise, wherever the attempt has got to.
            if not self._closing.is_set():
                LOGGER.exception("%s: exception while opening the data plane", self.target)
            why = f"opening the data plane failed: {error!r}"
            return AttemptResult(None, reasons(self.policy, why))
        for name in found.unreached:
            registry.FAILED.get().count(name)
        return found

    def _look(self) -> None:
        """Lock held. Notes the end of a link that no call has met."""
        link = self.link
        if link is not None and not link.alive and lifetime.generation() == self._generation:
            self._lost(link)

    def _lost(self, link: _core.Peer) -> None:
        """Lock held. The link has gone; attempts begin anew."""
        LOGGER.info("%s: the %s link has ended: %s", self.target, link.transport, link.death)
        self.link = None
        self._lost_links += 1
        registry.LOST.get().count(link.transport)
        self._ways().lost(link.death)

    # ---------------------------------------------------------------------- better transports

    def _take(self, link: _core.Peer, reasons: Mapping[str, str], offer: Offer) -> None:
        """Lock held. Calls go by ``link`` from now on; those on the one before it end there."""
        route = self._ways()
        route.linked(link.transport)
        self._offer = offer
        self._refusals.clear()
        self._opened += 1
        self.link = link
        self._choose(Path(link.transport, link.address, reasons))
        pause = route.better_in
        if pause < inf and self._returning is None:
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
            link = self.link
            attempt = None
            if link is not None and link.alive and not self._closing.is_set():
                attempt = self._begin(self._offer)
        if attempt is not None:
            self._run(attempt, None)
        with self._lock:
            link = self.link
            pause = self._ways().better_in
            if link is None or not link.alive or self._closing.is_set() or pause == inf:
                self._returning = None  # who opens the next link decides anew
                return None
            return pause

    # --------------------------------------------------------------------------------- choices

    def _no_link(self, reasons: dict[str, str]) -> Path:
        return Path("grpc" if self.policy.permits("grpc") else "none", self.target, reasons)

    def _settle(self, reasons: dict[str, str]) -> None:
        self._settled = True
        self._choose(self._no_link(reasons))

    def _choose(self, path: Path) -> None:
        """Lock held (or nobody else knows this object). One log line for each change."""
        news = self._route.news() if self._route is not None else None
        if news is not None:
            transport, why, left = news
            LOGGER.warning(
                "%s: %s is passed over for %.0f s and then tried again, because its links fail: %s",
                self.target,
                transport,
                left,
                why,
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
        told = "; ".join(
            f"{name}: {reasons.get(name, 'not opened yet')}" for name in self.policy.data_plane
        )
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


def _attempt(task: list[Callable[[], bool]]) -> None:
    """Body of a thread that keeps nothing alive while it stands by."""
    if task.pop()():
        idle.stand_by()


def _return(uplink: ref[Uplink], closing: threading.Event, pause: float | None) -> None:
    """Body of a thread that keeps nothing alive while it waits."""
    while pause is not None and not closing.wait(pause):
        found = uplink()
        if found is None:
            return
        pause = found._try_better()
        del found
