# SPDX-License-Identifier: Apache-2.0
"""Servers: ``grpc.Server`` that serves the same handlers on a gRPC port and on a data plane."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from time import monotonic
from typing import Final

import grpc

from tensorwire import _core
from tensorwire.log import LOGGER
from tensorwire.observe import audit
from tensorwire.observe.trace import LinkTrace, link_trace
from tensorwire.rpc import bootstrap, instrumentation, lifetime, probe, registry, status, target
from tensorwire.rpc.choice import Path, Transport, policy, tell_tuning
from tensorwire.rpc.client.peer import Peer
from tensorwire.rpc.options import Options, limits, tell_what_has_no_effect
from tensorwire.rpc.serving.dispatch import Dispatcher
from tensorwire.rpc.serving.gateway import Gateway
from tensorwire.rpc.serving.limit import CountingPool, Limit
from tensorwire.rpc.serving.methods import Handler, Methods
from tensorwire.rpc.serving.peer_watcher import PeerWatcher
from tensorwire.rpc.waiting import wait

_DRAIN_SECONDS: Final = 0.01  # how often a stopping server looks whether its last call has ended


class Server(grpc.Server):
    """Thread-safe. See ``server``."""

    def __init__(
        self,
        pool: futures.Executor,
        handlers: Sequence[grpc.GenericRpcHandler],
        interceptors: Sequence[grpc.ServerInterceptor],
        options: Options,
        maximum_concurrent_rpcs: int | None,
        compression: grpc.Compression | None,
        xds: bool,
        transport: str | None,
        forbid: str | Iterable[str],
        data_port: int,
        advertise_host: str | None,
    ) -> None:
        self._generation = lifetime.generation()
        self._policy = policy(transport, forbid)
        self._advertised = None if advertise_host is None else target.one_host(advertise_host)
        why_not = lifetime.using_grpc()
        if why_not is not None:
            raise status.CallError(status.FAILED_PRECONDITION, why_not)
        handlers = (*handlers, probe.handler())
        self._pool = pool
        self._limit = None if maximum_concurrent_rpcs is None else Limit(maximum_concurrent_rpcs)
        self._gateway = Gateway(self._limit)
        self._stock, interceptors = instrumentation.stock_server(
            pool if self._limit is None else CountingPool(pool, self._limit),
            self._gateway,
            interceptors,
            handlers=[self._gateway.handler(), *handlers],
            options=options,
            compression=compression,
            xds=xds,
        )
        self._options = options
        self._limits = limits(options)
        self._methods = Methods(interceptors, self._limits)
        self._methods.add_generic(handlers)
        self._data_port = data_port
        # The data plane, from the first insecure port on.
        self._core: _core.Server | None = None
        self._listeners: bootstrap.Listeners | None = None
        self._dispatcher: Dispatcher | None = None

        self._stopped = threading.Event()
        self._lock = threading.RLock()  # guards what follows
        self._changed = threading.Condition(self._lock)
        self._started = False
        self._stop_at: float | None = None
        self._stopper: threading.Thread | None = None
        registry.SERVERS.get().add(self)

    # -------------------------------------------------------------------------------- handlers

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        generic_rpc_handlers = tuple(generic_rpc_handlers)
        self._stock.add_generic_rpc_handlers(generic_rpc_handlers)
        self._methods.add_generic(generic_rpc_handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, Handler]
    ) -> None:
        self._stock.add_registered_method_handlers(service_name, method_handlers)
        if not self._started:
            self._methods.add_registered(service_name, method_handlers)

    # ----------------------------------------------------------------------------------- ports

    def add_insecure_port(self, address: str) -> int:
        """Also opens the data plane. Raises RuntimeError when a port is taken, or the transport
        that is required cannot be had, with the reason."""
        port = self._stock.add_insecure_port(address)
        if self._policy.data_plane:
            if self._listeners is None:
                tell_what_has_no_effect(self._options, server=True)
                with lifetime.starting_threads():
                    audit.follow()
                    tell_tuning()
                with self._lock:
                    core = self._open()
                self._listeners = bootstrap.Listeners(
                    core, self._policy, self._data_port, self._advertised
                )
                self._gateway.serve_open(self._listeners.answer)
            self._listeners.listen(address)
        return port

    def _open(self) -> _core.Server:
        """Lock held."""
        if self._core is None:
            self._core = _core.Server(self._limits.receive)
            self._dispatcher = Dispatcher(self._core, self._pool, self._methods, self._limit)
            if self._started:
                self._dispatcher.start()
        return self._core

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """Calls on it stay on gRPC: the data plane does not encrypt."""
        port = self._stock.add_secure_port(address, server_credentials)
        LOGGER.info("%s: calls stay on gRPC, because the port is secure", address)
        return port

    def __repr__(self) -> str:
        links = Counter(path.transport for path in self.paths())
        ways = ", ".join(f"{count} by {name}" for name, count in sorted(links.items()))
        return f"<tensorwire.Server: links {ways or 'none'}>"

    def paths(self) -> list[Path]:
        """How calls come in over each link that is alive. Calls over gRPC are not listed."""
        return [
            Path(str(link["transport"]), str(link["peer"])).with_statistics(link)
            for link in self.stats()
        ]

    def peers(self) -> list[Peer]:
        """The processes that calls come from, or may, over links that are alive."""
        if self._core is None:
            return []
        return [Peer(native, self._limits) for native in self._core.peers()]

    def on_peer(self, callback: Callable[[Peer], object]) -> None:
        """Has ``callback(peer)`` called for each peer there is and each that comes, by a thread of
        tensorwire's that others wait for, too. Its exceptions are logged. ``Peer.on_gone`` tells
        when it goes."""
        with lifetime.starting_threads(), self._lock:
            core = self._open()
        bounds = self._limits  # not self: nothing here keeps the server
        PeerWatcher(core, lambda native: callback(Peer(native, bounds))).follow()

    def data_plane(self) -> _core.Server:
        """What serves a channel's link. ValueError: the server does not run."""
        with lifetime.starting_threads(), self._lock:
            if not self._started or self._stop_at is not None:
                raise ValueError(
                    "serves: the server has to be started before a channel gives it calls, and not "
                    "be stopped"
                )
            return self._open()

    def stats(self) -> list[dict[str, object]]:
        """The counters of each link."""
        return [] if self._core is None else self._core.stats()

    def traces(self) -> list[LinkTrace]:
        """The protocol steps of each link that is alive, as in ``Channel.trace``."""
        return [] if self._core is None else [link_trace(*link) for link in self._core.traces()]

    # ---------------------------------------------------------------------------- start and stop

    def start(self) -> None:
        with lifetime.starting_threads(), self._lock:
            self._stock.start()
            if self._dispatcher is not None:
                self._dispatcher.start()
            self._started = True
        lifetime.close_at_exit(self, server=True)

    def stop(self, grace: float | None) -> threading.Event:
        """Refuses new calls at once. Calls in progress may go on for ``grace`` seconds, then they
        are cancelled. With None they are cancelled at once, and this returns when that is done.

        The event is set when the last call has ended. Another ``stop`` may come with a shorter
        grace."""
        with self._lock:
            if not self._started:
                self._close()
                never_ran = threading.Event()
                never_ran.set()
                return never_ran
            stop_at = monotonic() + (grace or 0.0)
            if self._stop_at is None or stop_at < self._stop_at:
                self._stop_at = stop_at
            if self._stopper is None:
                if self._core is not None:
                    self._core.refuse()
                # No daemon: a program that ends after stop() still lets its calls have their grace.
                stopper = threading.Thread(target=self._drain, name="tensorwire-stop")
                lifetime.start(stopper)  # and waits for the lock
                self._stopper = stopper
            self._changed.notify_all()
        if grace is None:
            if self._core is not None:
                self._core.close()
            self._stock.stop(None)
            wait(self._stopped)
        else:
            with lifetime.starting_threads():
                self._stock.stop(grace)
        return self._stopped

    def _drain(self) -> None:
        with self._lock:
            while self._core is not None and self._core.active:
                assert self._stop_at is not None
                left = self._stop_at - monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _DRAIN_SECONDS))
        self._close()
        self._stock.wait_for_termination()
        # Not before: a call that reaches a pool which is shut down ends the stock server's thread.
        self._gateway.close()
        self._stopped.set()

    def _close(self) -> None:
        if self._core is not None:
            self._core.close()
        if self._dispatcher is not None:
            self._dispatcher.join()

    def close_at_exit(self) -> None:
        """The pools take no more work once the main thread has ended, and a call that comes after
        that ends the stock server's thread with a traceback: it is stopped first. Calls by gRPC
        get the grace, because cutting them off has grpcio's clients write a line about it."""
        if self._core is not None:
            self._core.close()
        # Python 3.12.0 and 3.12.1 start no thread here, which grpcio ends the grace by.
        with contextlib.suppress(RuntimeError):
            self._stock.stop(lifetime.JOIN_SECONDS)
        if self._dispatcher is not None:
            self._dispatcher.join(lifetime.JOIN_SECONDS)
        self._stock.wait_for_termination(lifetime.JOIN_SECONDS)

    def wait_for_termination(self, timeout: float | None = None) -> bool:
        return not wait(self._stopped, timeout)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and self._generation == lifetime.generation():
            core.close()
        if hasattr(self, "_stopped"):
            self._stopped.set()


def server(
    thread_pool: futures.Executor,
    handlers: Sequence[grpc.GenericRpcHandler] | None = None,
    interceptors: Sequence[grpc.ServerInterceptor] | None = None,
    options: Options | None = None,
    maximum_concurrent_rpcs: int | None = None,
    compression: grpc.Compression | None = None,
    xds: bool = False,
    *,
    transport: Transport | None = None,
    forbid: str | Iterable[str] = (),
    data_port: int = 0,
    advertise_host: str | None = None,
) -> Server:
    """``grpc.server`` whose tensorwire clients get shared memory, RDMA or TCP beside gRPC.

    Each insecure port stays an ordinary gRPC port for every client. A tensorwire client asks there
    for the data plane, which listens on the same host and serves the same handlers in the same
    thread pool, behind the same interceptors, which see the request for the data plane as well and
    can refuse it. Clients on this host that run as this user get shared memory; RDMA is for clients
    that have a device where this host has one, too. Secure ports have gRPC only.

    transport, forbid: which transports clients are offered, as for ``insecure_channel``; gRPC is
    always served. data_port: the TCP port of the data plane, 0 for any; links by
    RDMA are set up there, too. advertise_host: the name or address, without a port, under which
    clients of other hosts are told to reach that port; without it they are told the address that
    the server is bound to, or, where it is bound to all of them, the host that they dialled. A
    client follows it if it is the host that it dialled, or if its TENSORWIRE_DATA_HOSTS permits it.

    options: as for gRPC. Limits of messages and metadata hold on every transport; what has no
    effect on the data plane is named in a warning. By gRPC, messages of 4 MB are accepted unless
    ``grpc.max_receive_message_length`` is set.
    maximum_concurrent_rpcs: counts the calls of all transports together. compression, xds: for
    gRPC only.

    Raises ValueError for unknown transports, when none is left, or for an ``advertise_host`` that
    is no host.
    """
    return Server(
        thread_pool,
        handlers or (),
        interceptors or (),
        options or (),
        maximum_concurrent_rpcs,
        compression,
        xds,
        transport,
        forbid,
        data_port,
        advertise_host,
    )
