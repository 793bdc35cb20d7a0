# SPDX-License-Identifier: Apache-2.0
"""Pulls versions of parameters from one or more publishers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import grpc

from tensorwire import arrays
from tensorwire.collective.arrays import Array
from tensorwire.rpc import lifetime
from tensorwire.rpc.turn import Turn
from tensorwire.rpc.waiting import ends_at
from tensorwire.tensors import frameworks
from tensorwire.tensors.frameworks import Framework
from tensorwire.weights import planning
from tensorwire.weights.errors import PullTimeoutError, WeightsError
from tensorwire.weights.parameters import Parameters
from tensorwire.weights.planning import Part, PlanError, Shard
from tensorwire.weights.publisher import Publisher
from tensorwire.weights.source import Landed, NotThereError, RenewedError, Source, TornError
from tensorwire.weights.versions import number_of

T = TypeVar("T")
Target = str | grpc.Channel
Mode = Literal["copy", "in_place"]
Left = Callable[[], float | None]
"""Seconds that are left of a pull; None: without a limit. Raises what ends it."""

_SHORTEST_PAUSE: Final = 0.0002
_LONGEST_PAUSE: Final = 0.05
_GROUP_BYTES: Final = 64 << 20
"""Parameters are filled in groups of this size or more, each as one copy."""
_WRITING: Final = frozenset(("torch", "tensorflow"))
"""Frameworks whose tensors may be written, whatever memory they were made over."""


@dataclass(frozen=True)
class Version:
    """What a pull has brought. changed: names of the tensors of which something moved; nbytes: how
    much."""

    number: int
    changed: tuple[str, ...]
    nbytes: int


class Subscriber:
    """Pulls versions of parameters that ``tensorwire.weights.Publisher`` publishes.

    targets: the address of one publisher's server (or a ``grpc.Channel`` to it), or those of
    several, which hold different boxes of the same tensors. params: a tree of arrays with the
    names, dtypes and global shapes of what is published, in host memory: what each pull fills in
    place, and of how it is cut among processes (DTensor, JAX's NamedSharding, or ``shards``, boxes
    by name) follows what moves: exactly the elements that this process holds. A target may publish
    more tensors than these. Arrays of JAX and TensorFlow cannot be written: ``subscriber.params``
    has new ones after each pull.

    mode: ``"copy"``: nothing is written before all of a version is here, so that after an error
    the parameters are what they were. ``"in_place"``: over TCP what comes is received straight
    into the parameters, without the memory and the copy that this takes; after an error in the
    middle they hold parts of two versions, which ``version`` 0 and the error tell, and the next
    pull moves everything.

    name: of the publication. turn: where publishers hold copies of a box, subscribers with
    different numbers read different copies. relay: a server, not yet started, that publishes each
    version again, under the same name and number, so that the others of this host pull from here.
    A trainer that began anew, with smaller numbers, is relayed under larger ones.

    Thread-safe: pulls take turns. Raises ``TypeError`` and ``ValueError`` for parameters that
    cannot be filled. Nothing is connected before the first pull.
    """

    def __init__(
        self,
        targets: Target | Sequence[Target],
        params: Any,
        *,
        mode: Mode = "copy",
        name: str = "weights",
        shards: Mapping[str, Shard] | None = None,
        turn: int = 0,
        relay: grpc.Server | None = None,
    ) -> None:
        if mode not in ("copy", "in_place"):
            raise ValueError(f"mode is 'copy' or 'in_place', not {mode!r}")
        each = [targets] if isinstance(targets, str | grpc.Channel) else list(targets)
        if not each:
            raise ValueError("there are no targets")
        self._shards = dict(shards or {})
        self._parameters: Parameters[Any] = Parameters(params, self._shards)
        for _, parameter in self._parameters:
            parameter.check_writable()
        self._generation = lifetime.generation()
        self._turn = turn
        self._turns = Turn()
        self._number = 0
        self._in_place = mode == "in_place"
        self._touched = False
        """Parts of the version that is being pulled may have been written."""
        self._parts: list[list[Part]] = []
        self._whole = False  # each of them is all of a parameter
        self._empty = [
            name
            for name, shards in self._parameters.layout.items()
            if any(0 in shard.shape for shard in shards)
        ]
        self._closed = threading.Event()
        self._relay: Publisher | None = None
        self._sources = [Source(target, name) for target in each]
        self._threads = ThreadPoolExecutor(len(each), "tensorwire-weights") if each[1:] else None
        self._begun: list[Future[Landed]] = []
        """Calls by these threads that may still write the parameters, where it is in place."""
        if relay is not None:
            try:
                self._relay = Publisher(params, relay, name=name, shards=shards)
            except BaseException:
                self.close()
                raise

    @property
    def params(self) -> Any:
        """The tree of parameters, as the last pull left it."""
        return self._parameters.tree

    @property
    def version(self) -> int:
        """What the parameters hold; 0: what they held before the first pull, or, after a pull that
        was interrupted while it wrote, or failed in place, parts of two versions: then the next one
        moves everything."""
        return self._number

    def pull(self, at_least: int | None = None, timeout: float | None = None) -> Version:
        """Fills the parameters with the newest version, all of it or nothing.

        It waits for a version from ``at_least`` on (by default for any that is published),
        ``timeout`` seconds at most, None: as long as the publishers live. Of several publishers it
        takes the newest version that all of them have. What has not changed since the version that
        the parameters hold does not move. Nothing is written before everything is here, so after
        an error the parameters are as they were, unless the subscriber is in place.

        Raises ``PublisherLostError``, ``PullTimeoutError``, ``ChecksumError``,
        ``DisagreementError`` (a plan that a publisher refuses), ``PlanError`` (no publisher has
        what the parameters need), ``WeightsError``.
        """
        return self._pull(at_least, timeout, _Wanted())

    async def pull_async(
        self, at_least: int | None = None, timeout: float | None = None
    ) -> Version:
        """``pull`` in a coroutine. When that is cancelled the pull ends with its next call of a
        publisher, and the parameters are not written any more; in place, the call that is under way
        still writes them. The next pull waits until that is over. A pull that has everything, and
        writes, does so to its end before the coroutine is cancelled."""
        wanted = _Wanted()
        pulling = asyncio.ensure_future(asyncio.to_thread(self._pull, at_least, timeout, wanted))
        pulling.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(pulling)
        except asyncio.CancelledError:
            if not wanted.give_up():
                while not pulling.done():
                    with contextlib.suppress(asyncio.CancelledError):  # another one
                        await asyncio.wait([pulling])
            raise

    @contextlib.contextmanager
    def view(
        self,
        at_least: int | None = None,
        timeout: float | None = None,
        *,
        framework: Framework = "numpy",
    ) -> Iterator[View]:
        """A version where the publisher has it, without a copy on one host: a mapping of read-only
        NumPy arrays by the names of the parameters, which are not written themselves.

        framework: of the tensors, in place of NumPy. JAX takes memory as it is, and lets go of it
        some time after its arrays are gone. PyTorch and TensorFlow, which know no read-only memory,
        get it mapped privately: what is written to one of their tensors stays in this view, and
        goes with it; each page of it takes memory of this process. TensorFlow copies what does not
        begin at a multiple of 64 bytes or is not in C order, and float8 and smaller types; JAX the
        first two.

        The memory is leased until the exit, or for as long as somebody else refers to one of the
        arrays. It stays good when the publisher publishes, or dies. From another host the arrays
        are what was received.

        Raises what ``pull`` does, and ``PlanError`` where a parameter is put together from several
        publishers' boxes: that takes a copy, which ``pull`` makes; ``ValueError`` and
        ``ImportError`` for a framework that lacks a dtype, or is not there.
        """
        with self._view(at_least, timeout, framework, _Wanted()) as view:
            yield view

    @contextlib.asynccontextmanager
    async def view_async(
        self,
        at_least: int | None = None,
        timeout: float | None = None,
        *,
        framework: Framework = "numpy",
    ) -> AsyncIterator[View]:
        """``view`` for ``async with``. When that is cancelled while it waits, nothing is leased."""
        wanted = _Wanted()
        viewing = self._view(at_least, timeout, framework, wanted)
        try:
            view = await asyncio.to_thread(viewing.__enter__)
        except asyncio.CancelledError:
            wanted.give_up()
            raise
        with contextlib.ExitStack() as leaving:
            leaving.push(viewing)
            yield view

    @contextlib.contextmanager
    def _view(
        self,
        at_least: int | None,
        timeout: float | None,
        framework: Framework,
        wanted: _Wanted,
    ) -> Iterator[View]:
        self._check_process()
        waiting = _Waiting(at_least, timeout, wanted, self._closed)
        with waiting.turn(self._turns):
            number, landed = self._fetched(waiting, view=framework)
        arrays: dict[str, Any] = {}
        for each in landed:
            for part, array in zip(each.parts, each.arrays, strict=True):
                arrays[part.name] = array
        for name in self._empty:  # nothing of it has come
            arrays[name] = self._parameters[name].pieces[0]
        del landed
        if framework != "numpy":
            for name, array in arrays.items():
                arrays[name] = frameworks.of_array(array, framework)
                del array
        view = View(number, arrays)
        del arrays
        try:
            yield view
        finally:
            view._arrays.clear()

    def close(self) -> None:
        """Closes what it has opened. The parameters stay as they are, and a pull that is under way
        ends with ``WeightsError``, unless it is about to fill them: a call of a publisher over a
        channel that was given is waited for. In a forked child it does nothing."""
        if lifetime.inherited(self._generation):
            return
        self._closed.set()
        for source in self._sources:
            source.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._relay is not None:
            self._relay.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------ one pull

    def _pull(self, at_least: int | None, timeout: float | None, wanted: _Wanted) -> Version:
        self._check_process()
        waiting = _Waiting(at_least, timeout, wanted, self._closed)
        with waiting.turn(self._turns):
            self._touched = False
            try:
                number, landed = self._fetched(waiting)
                waiting.may_write()
            except WeightsError as error:
                if not self._touched:
                    raise
                raise type(error)(error.code, f"{error}; {_TORN}") from error
            version = self._written(number, landed)
            self._relayed(version)
            return version

    def _check_process(self) -> None:
        if why := lifetime.inherited(self._generation):
            raise WeightsError(
                grpc.StatusCode.FAILED_PRECONDITION, f"the subscriber cannot pull here: {why}"
            )

    def _relayed(self, version: Version) -> None:
        """Under its own number, unless the trainer has begun anew, with smaller ones."""
        relay = self._relay
        if relay is None or not (version.changed or version.number > relay.version):
            return
        number = max(version.number, relay.version + 1)
        try:
            relay.publish(number, params=self._parameters.tree)
        except RuntimeError:  # the parameters are filled, whoever has closed the relay
            if not self._closed.is_set():
                raise

    def _fetched(
        self, waiting: _Waiting, view: Framework | None = None
    ) -> tuple[int, list[Landed]]:
        """A version, and what of it has to be written. view: all of it, for tensors of that
        framework."""
        try:
            while (found := self._attempt(waiting, view)) is None:
                pass
        except Exception:
            if self._closed.is_set():  # which closes channels and threads at any moment
                raise _was_closed() from None
            raise
        return found

    def _attempt(
        self, waiting: _Waiting, view: Framework | None
    ) -> tuple[int, list[Landed]] | None:
        """None, after a pause: try again."""
        newest = 0
        try:
            self._prepare(waiting.left, whole=view is not None)
            return self._landed(waiting, view)
        except RenewedError:
            for source in self._sources:
                source.forget()
            self._parts = []
        except NotThereError as error:
            newest = error.newest
        except TornError:
            pass
        except PullTimeoutError:
            waiting.left()  # which says more, if it was the pull's time that was over
            raise
        waiting.pause(newest)
        return None

    def _prepare(self, left: Callable[[], float | None], *, whole: bool) -> None:
        if not self._parts:
            layouts = [source.describe(left).layout for source in self._sources]
            made = planning.plan(layouts, self._parameters.layout, turn=self._turn)
            self._parts = [made.of(number) for number in range(len(layouts))]
            self._whole = False
        if whole and not self._whole:
            self._check_whole()
            self._whole = True
        for source, parts in zip(self._sources, self._parts, strict=True):
            source.agree(parts, left)

    def _check_whole(self) -> None:
        for parts in self._parts:
            for part in parts:
                shards = self._parameters.layout[part.name]
                if len(shards) > 1 or part.shape != shards[part.to_piece].shape:
                    raise PlanError(
                        f"{part.name}: is put together from several boxes, which takes a copy: pull"
                    )

    def _landed(self, waiting: _Waiting, view: Framework | None) -> tuple[int, list[Landed]]:
        sources = [s for s, parts in zip(self._sources, self._parts, strict=True) if parts]
        if self._threads is None or len(sources) < 2:
            exactly = 0
        else:
            states = self._threads.map(lambda source: source.newest(waiting.left), sources)
            exactly = min(states)
            if exactly < waiting.at_least:
                raise NotThereError(exactly)
        held = self._number if view is None else 0

        room = self._room if self._in_place and view is None else None
        writable = view in _WRITING

        def pull(source: Source, left: Left) -> Landed:
            have = min(held, source.held)
            return source.pull(waiting.at_least, exactly, have, left, room, writable)

        if self._threads is None or len(sources) < 2:
            landed = [pull(source, waiting.left) for source in sources]
        elif room is None:
            landed = self._together(self._threads, pull, sources, waiting.left, [])
        else:
            self._await_begun(waiting.left)  # what a second Ctrl-C has left
            try:
                landed = self._together(self._threads, pull, sources, waiting.left, self._begun)
            finally:
                self._await_begun(None)
        return max((each.version for each in landed), default=0), landed

    @staticmethod
    def _together(
        threads: ThreadPoolExecutor,
        pull: Callable[[Source, Left], Landed],
        sources: Sequence[Source],
        left: Left,
        begun: list[Future[Landed]],
    ) -> list[Landed]:
        """What each source brings. After an error, or Ctrl-C, each ends with its next call. begun:
        gets what was begun, which may still be under way then."""
        over = threading.Event()

        def left_of_all() -> float | None:
            if over.is_set():
                raise PullTimeoutError(grpc.StatusCode.CANCELLED, "another publisher's call failed")
            return left()

        try:
            begun.extend(threads.submit(pull, source, left_of_all) for source in sources)
            return [future.result() for future in begun]
        finally:
            over.set()

    def _await_begun(self, left: Left | None) -> None:
        """Until nobody writes the parameters any more. PullTimeoutError by ``left``."""
        while self._begun:
            seconds = None if left is None else left()
            # Not by futures.wait(), which waits on for what close() has cancelled.
            with contextlib.suppress(CancelledError, NotYetError):
                self._begun[-1].exception(seconds)
            if self._begun[-1].done():
                self._begun.pop()

    def _room(self, part: Part) -> memoryview | None:
        found = self._parameters[part.name].memory(part.to_piece, part.to_box())
        if found is not None:
            self._touched, self._number = True, 0
        return found

    def _written(self, number: int, landed: list[Landed]) -> Version:
        """Nothing can fail from here on but for want of memory, or by an interrupt."""
        parts: dict[str, list[tuple[Part, Array]]] = {}
        nbytes = 0
        for each in landed:
            for part, array in zip(each.parts, each.arrays, strict=True):
                parts.setdefault(part.name, []).append((part, array))
                nbytes += part.nbytes
        if parts:
            self._number = 0
        if not all(self._parameters[name].in_place for name in parts):
            self._parameters = Parameters(self._parameters.tree, self._shards)
        changed: dict[str, Any] = {}
        names = list(parts)
        while len(changed) < len(names):
            changed |= self._filled(parts, names[len(changed) :])
        if any(tensor is not self._parameters[name].tensor for name, tensor in changed.items()):
            self._parameters = Parameters(self._parameters.after(changed), self._shards)
        for source in self._sources:
            source.held = number
        self._number = number
        return Version(number, tuple(changed), nbytes)

    def _filled(
        self, parts: Mapping[str, list[tuple[Part, Array]]], names: Sequence[str]
    ) -> dict[str, Any]:
        """The first tensors of these, with what has come: one group. A tensor of a framework
        without writing in place takes its memory twice until its group is over."""
        rooms: dict[str, list[Array]] = {}
        pairs: list[tuple[Array, Array]] = []
        nbytes = 0
        for name in names:
            rooms[name] = self._parameters[name].rooms()
            for part, array in parts[name]:
                pairs.append((rooms[name][part.to_piece][part.to_box()], array))
                nbytes += part.nbytes
            if nbytes >= _GROUP_BYTES:
                break
        arrays.copy_all(pairs)
        return {name: self._parameters[name].changed(found) for name, found in rooms.items()}


class View(Mapping[str, Any]):
    """The arrays of one version, by name. ``version``: its number."""

    def __init__(self, version: int, arrays: dict[str, Any]) -> None:
        self.version = version
        self._arrays = arrays

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class _Wanted:
    """Whether somebody waits for a pull. One that writes goes on to its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._writes = False
        self.given_up: Final = threading.Event()

    def write(self) -> None:
        """From now on, unless it was given up."""
        with self._lock:
            self._writes = not self.given_up.is_set()

    def give_up(self) -> bool:
        """False: it writes."""
        with self._lock:
            if not self._writes:
                self.given_up.set()
            return not self._writes


class _Waiting:
    """For a version, by asking again and again: a publisher holds nothing, and no thread, for who
    waits. The pauses are a twentieth of what has been waited so far, at most 50 ms."""

    def __init__(
        self,
        at_least: int | None,
        timeout: float | None,
        wanted: _Wanted,
        closed: threading.Event,
    ) -> None:
        """TypeError, ValueError."""
        self.at_least = 1 if at_least is None else number_of(at_least) or 1
        self._timeout = timeout
        self._begun = time.monotonic()
        self._ends = ends_at(timeout)
        self._wanted = wanted
        self._closed = closed
        self._newest = 0

    def check(self) -> None:
        """WeightsError: the pull was given up, or the subscriber closed."""
        if self._wanted.given_up.is_set():
            raise PullTimeoutError(grpc.StatusCode.CANCELLED, "the pull was given up")
        if self._closed.is_set():
            raise _was_closed()

    def may_write(self) -> None:
        """What ``check`` raises. From now on the pull is not given up any more."""
        self._wanted.write()
        self.check()

    @contextlib.contextmanager
    def turn(self, turns: Turn) -> Iterator[None]:
        """Has the turn, which another pull may have for as long as that waits."""
        left = None if self._ends is None else max(0.0, self._ends - time.monotonic())
        claim = object()
        try:
            if not turns.acquire(claim, left):
                raise PullTimeoutError(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"another pull by this subscriber was under way for all of {self._timeout} s",
                )
            yield
            turns.release(claim)
        except BaseException:
            turns.release(claim)
            raise

    def left(self) -> float | None:
        """Seconds. PullTimeoutError when there are none, and what ``check`` raises."""
        self.check()
        if self._ends is None:
            return None
        left = self._ends - time.monotonic()
        if left <= 0:
            raise PullTimeoutError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"no version from {self.at_least} on within {self._timeout} s: "
                + (f"the newest is {self._newest}" if self._newest else "none could be read"),
            )
        return left

    def pause(self, newest: int = 0) -> None:
        self._newest = max(self._newest, newest)
        waited = time.monotonic() - self._begun
        pause = min(max(waited / 20, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        left = self.left()
        self._wanted.given_up.wait(pause if left is None else min(pause, left))


_TORN: Final = "the parameters hold parts of two versions now: pull again"


def _was_closed() -> WeightsError:
    return WeightsError(grpc.StatusCode.CANCELLED, "the subscriber was closed")
