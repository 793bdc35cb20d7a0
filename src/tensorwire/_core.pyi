# SPDX-License-Identifier: Apache-2.0
"""The native runtime as Python sees it: a thin binding over ``core/tensorwire.h``.

Conventions of the whole module
-------------------------------
* ``Message`` to send: one bytes-like object or a list/tuple of them; each element becomes one
  segment. The memory must be C-contiguous (``BufferError`` otherwise) and stays exported, hence
  cannot be resized, until the runtime no longer needs it. Every send returns only after the
  ordinary memory it was given has been copied or has left for the kernel, so the caller may write
  to it again.
* ``Message`` received: ``bytes`` (segments joined) when ``raw`` is false, else a list of
  :class:`Buffer`, one for each segment, without any copy.
* ``Metadata``: a list of ``(key, value)`` with value ``str``, or ``bytes`` for keys that end in
  ``-bin``; ``None`` stands for the empty list.
* ``timeout``: seconds from now, ``None`` for no limit. A timed-out call ends with
  DEADLINE_EXCEEDED (4).
* ``code``: a gRPC status code as an int. Errors of the runtime are :class:`StatusError`.
* Blocking functions release the GIL and return to Python for signals: Ctrl-C raises
  ``KeyboardInterrupt`` at once and cancels the operation.
* Objects that were made before a ``fork()`` raise ``StatusError`` (FAILED_PRECONDITION) in the
  child.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict

import numpy as np
from typing_extensions import Buffer as BytesLike

Message = BytesLike | Sequence[BytesLike]
Received = bytes | list["Buffer"]
# NumPy says that its arrays have the buffer protocol only for Python 3.12 and newer.
Memory = BytesLike | np.ndarray[Any, Any]
Metadata = Sequence[tuple[str, str | bytes]] | None

__version__: Final[str]

class StatusError(Exception):
    """``args == (code, details)``: a gRPC status code and a sentence for people."""

    code: int
    details: str

class Buffer:
    """A run of bytes owned by the runtime: received, or born in this process's arena.

    Supports the buffer protocol (1-D, unsigned bytes). Received buffers and published ones are
    read-only there. A received buffer may lie in the sender's memory on a lease, which ends with
    the last view of this object. Memory behind a received buffer is private to this process: code
    that writes to it in spite of the read-only flag never reaches the sender.
    """

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def leased(self) -> bool:
        """True while the bytes lie in another process's arena."""

    def separate(self) -> None:
        """For code that will write to the (private) memory: afterwards no other Buffer shows its
        writes. Call it before anything else has been given the memory; StatusError
        (FAILED_PRECONDITION) after that."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

# ---------------------------------------------------------------------------------------- memory

class Quota:
    """What readers of a publication may have on lease, in bytes of the arena. What was allocated
    within it counts in nothing else, and is copied for a reader once the quota is used up."""

    def __init__(self, bytes: int, /) -> None: ...
    @property
    def leased(self) -> int: ...
    @property
    def copied(self) -> int:
        """Blocks that were copied for a reader so far, because the quota was used up."""

def allocate(nbytes: int, timeout: float | None = 0.0, quota: Quota | None = None) -> Buffer:
    """Writable, 64-byte aligned (4096 from one page up) memory in this process's arena.

    Waits up to ``timeout`` seconds for leases to come home when the arena is full, then raises
    StatusError(RESOURCE_EXHAUSTED) that names TENSORWIRE_BUFFER_BYTES. Contents are undefined.
    """

def publish(data: BytesLike, /) -> bool:
    """Marks the arena block that holds ``data`` as published: read-only from now on by its owner's
    promise, and free to travel without a copy. False when ``data`` does not lie in the arena."""

def is_published(data: BytesLike, /) -> bool: ...
def copy_all(pairs: Sequence[tuple[BytesLike, BytesLike]]) -> None:
    """Copies to the first of each pair what the second holds: contiguous memory of as many bytes,
    or the same memory, which is left as it is. Others may have the GIL meanwhile. Raises ValueError
    for sizes that differ."""

def trim() -> None:
    """Gives memory that lies idle back to the system: of the arena, and of what was received.
    Without it that takes a minute."""

def arena_stats() -> dict[str, int]:
    """The numbers of ``memory_counters``, by their names."""

class Counter(TypedDict):
    """What a number means.

    name: in statistics. metric: in Prometheus, after ``tensorwire_``; several share one that differ
    in their labels. help: of the metric. by_size: the metric has one for each entry of
    ``stats()["classes"]``, of which this is the sum.
    """

    name: str
    metric: str
    unit: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: dict[str, str]
    by_size: bool

def link_counters() -> list[Counter]: ...
def memory_counters() -> list[Counter]: ...

Step: TypeAlias = tuple[int, str, str, int, int, int, int, int]
"""time (ns), ``sent`` or ``received``, name, stream, message, segment, bytes, id."""

def trace(events: int) -> None:
    """All links, those of now and those to come, forget what they noted and keep their last
    ``events`` protocol steps from now on; 0: none."""

def when_kept(hook: Callable[[], object], /) -> None:
    """Has ``hook`` called once an object is kept, because a message needs its memory for longer
    than the call that sent it; it starts a thread that calls ``free_kept`` again and again."""

def free_kept() -> bool:
    """Waits until kept objects are no longer needed, and frees them. False: ``close_kept``."""

def close_kept() -> None: ...
def reset_kept() -> None:
    """In a forked child, which frees nothing of its parent's."""

def function_table() -> int:
    """Address of the runtime's ``tw_table`` (core/tensorwire.h), for plugins that are built on the
    user's machine. It stays good as long as the process lives."""

def settings() -> dict[str, int | str]:
    """The settings in force, by their names."""

class Setting(TypedDict):
    """variable: of the environment. name: among ``settings()``; empty: it is read whenever it is
    needed. alias_of: the variable that this one is another name of. default: without the variable.
    permitted, help: for people."""

    variable: str
    name: str
    alias_of: str | None
    default: str
    permitted: str
    help: str

def each_setting() -> list[Setting]:
    """All that there are."""

def link_tuning() -> None:
    """StatusError (INVALID_ARGUMENT): why links do not use the table that they should."""

def threshold_ranges() -> list[tuple[int, int]]:
    """What the thresholds of a link may be: those that share a send, those that are copied along,
    and chunks; in bytes, the least and the most."""

def read_setting(variable: str) -> str:
    """What a variable of the environment holds now, as it is meant; empty: it is not set, or it is
    another name of one that is, and has no effect. StatusError: INVALID_ARGUMENT when it is wrong,
    NOT_FOUND when it is no setting."""

def choose_policy(transport: str, forbid: str) -> tuple[str | None, list[str], str, dict[str, str]]:
    """What the user permits: the way of calls that is required, those that are forbidden, what the
    user wrote to require one, and for each way that is not permitted the reason. forbid: names with
    commas between. Where one is empty, the environment decides, as it is now. StatusError:
    INVALID_ARGUMENT for an unknown name, or when none is left; FAILED_PRECONDITION when the
    environment has part in that."""

def host() -> dict[str, Any]:
    """Facts for ``tensorwire doctor``: pagemap_scan, cpus, boot_id, congestion_available (space
    separated), memlock_bytes, nofile, ... ``transports``: by the name of each a record with what
    this host offers to it."""

def transports() -> list[tuple[str, bool, bool]]:
    """Those that a link's is chosen among, best first: the name, whether it is for processes of one
    user on one host, and whether large segments stay in the sender's arena until they are read."""

def transport_why_not(name: str) -> str | None:
    """Why this process cannot have links by the transport, and what to do about it; None when it
    can."""

# ----------------------------------------------------------------------------------------- audit

def incidents() -> dict[tuple[str, str], int]:
    """What peers did wrong in this process: counts by (kind, reason), zeroes among them."""

def audit_next() -> tuple[str, str, str, str, int] | None:
    """Waits for the next line of the audit trail, for one thread: kind, reason, peer, details, and
    how many of that reason were not told of since the last line. None once closed."""

def audit_close() -> None: ...

# ----------------------------------------------------------------------------------- bootstrap

def hello() -> bytes:
    """This process's Hello: what a client sends in Bootstrap/Open."""

class Hello:
    """A parsed one."""

    @property
    def version(self) -> int: ...
    @property
    def same_host(self) -> bool:
        """Same kernel boot: shm can work, whatever namespaces the two live in."""
    @property
    def same_user(self) -> bool: ...
    @property
    def pid(self) -> int: ...

def parse_hello(hello: bytes, /) -> Hello:
    """Raises StatusError: INVALID_ARGUMENT (no Hello), FAILED_PRECONDITION (no common version, or a
    required feature that this build does not know, by name)."""

# -------------------------------------------------------------------------------------- routes

USE_LINK: Final[int]
USE_ATTEMPT: Final[int]
USE_FALLBACK: Final[int]
USE_NOTHING: Final[int]
ATTEMPT_WITHDRAWN: Final[int]
ATTEMPT_REFUSED: Final[int]
ATTEMPT_UNANSWERED: Final[int]
ATTEMPT_FINAL: Final[int]
ATTEMPT_UNREACHED: Final[int]

class Route:
    """The way to one peer: whether a call takes a link, waits for one or takes gRPC, and when the
    next attempt to make a link begins (core/route/route.h). Thread-safe."""

    def __init__(
        self,
        required: str | None,
        forbidden: Sequence[str],
        origin: str,
        pauses: Sequence[float] | None = None,
    ) -> None:
        """required: the only permitted way, as ``origin`` says. pauses: seconds, as in
        ``tw_pauses``; None: the usual ones. Raises StatusError: a setting is wrong."""
    def consult(self) -> tuple[int, bool, float]:
        """What to take (``USE_...``), whether the caller begins an attempt, which it then tells the
        end of, and the seconds until the next one may begin (inf: never)."""
    def attempt(
        self,
        same_host: bool,
        same_user: bool,
        addresses: Sequence[str],
        lacks: Callable[[str], str | None],
        connect: Callable[[str, str], object],
    ) -> tuple[bool, bool, list[tuple[str, str, bool]]]:
        """Goes through what the peer offers, best first; while there is a link, only through what
        is better. lacks: what a transport lacks on this host. connect: makes a link by a transport
        to an address, or raises StatusError; what else it raises ends the attempt.

        Returns whether a link was made; if not, whether another attempt would come to the same; and
        for each better transport its name, why it is not the one, and whether it was tried."""
    def linked(self, transport: str) -> None: ...
    def failed(self, failure: int) -> None:
        """failure: ``ATTEMPT_...``. Raises ValueError for any other number."""
    def lost(self, why: str) -> None:
        """The link has ended."""
    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row that the caller counts."""
    @property
    def failures(self) -> int:
        """Attempts that have failed in a row."""
    @property
    def better_in(self) -> float:
        """Seconds until a better transport than the link's may be had; then ``consult`` says so.
        inf: there is none."""
    def news(self) -> tuple[str, str, float] | None:
        """A transport that is passed over from now on, why, and for how many seconds."""

# -------------------------------------------------------------------------------------- client

def connect(
    address: str,
    session: bytes,
    secret: bytes,
    instance: bytes,
    peer_hello: bytes,
    timeout: float,
    max_message: int = -1,
    serves: Server | None = None,
    thresholds: Sequence[int] = [-1, -1, -1],
) -> Peer:
    """Connects to ``<transport>:<where>``, as the server announced it, and proves the secret.

    session: 16 bytes; secret: 32 bytes; instance: the 16-byte id the server announced;
    peer_hello: the server's own Hello from the answer to Open. max_message: receive limit in bytes,
    -1 for the setting. thresholds: as of ``threshold_ranges``, -1 for the setting or the table.
    serves: serves the calls that the peer begins, looks after the link, and
    closes it when it is closed itself. The link closes when the object that this returns goes, and
    the calls under way have ended. Raises StatusError: UNAVAILABLE, DEADLINE_EXCEEDED,
    UNAUTHENTICATED (either proof failed, another instance), PERMISSION_DENIED (another user on a
    unix socket).
    """

ON_END: Final[int]
ON_CUT: Final[int]
ON_MESSAGE: Final[int]
ON_ROOM: Final[int]
ON_INITIAL: Final[int]

class EventQueue:
    """Where what happens to calls and accesses is announced; one thread waits on it, or an event
    loop watches ``fileno()``, which is readable while there are tokens and once it is closed."""

    def __init__(self) -> None: ...
    def wait(self, timeout: float | None = None) -> list[int] | None:
        """Tokens of what has happened, [] on timeout, None once closed."""
    def fileno(self) -> int:
        """Raises StatusError (RESOURCE_EXHAUSTED)."""
    def close(self) -> None: ...

class Peer:
    """The process at the other end of a link, whichever of the two has made it. Thread-safe. Keeps
    no link open, but for the one that ``connect`` returned. Equal to another that stands for the
    same end of the same link.

    One-sided operations see what this process's writes and atomics before them have done. A write
    may overtake reads and atomics that have not ended: wait for these first.
    """

    @property
    def transport(self) -> str: ...
    @property
    def address(self) -> str:
        """gRPC-style: ``ipv4:127.0.0.1:4242`` or ``unix:``."""
    @property
    def caller(self) -> str:
        """Of a client, where it came from as the bootstrap saw it; empty if unknown."""
    @property
    def agent(self) -> str:
        """Of a client, the user agent of its channel; empty if unknown."""
    @property
    def pid(self) -> int:
        """0 unless it runs on this host, in a pid namespace that this process knows."""
    @property
    def alive(self) -> bool:
        """False once the link is lost, closed, or the peer said that it goes away."""
    @property
    def death(self) -> str:
        """Why the peer is not alive; empty while it is."""
    def unary(
        self,
        method: str,
        request: Message,
        timeout: float | None,
        metadata: Metadata,
        raw: bool,
        into: Sequence[BytesLike | None] | None = None,
    ) -> tuple[int, str, Received | None, Metadata, Metadata]:
        """A whole unary-unary call: (code, details, reply, initial metadata, trailing metadata).

        into: memory (C-contiguous, writable) that the segments of the reply are wanted in, by their
        places in it; None: anywhere. Those of exactly that size that come over the link in chunks
        are received there, and stand as these very objects in the reply, which is raw. Nobody
        writes there once this returns, or raises."""
    def start(
        self,
        method: str,
        timeout: float | None,
        metadata: Metadata,
        request: Message | None = None,
        end: bool = False,
        until_read: bool = False,
    ) -> Call:
        """Starts a call; ``request`` is its first message and ``end`` half-closes it. With
        ``until_read`` it lasts, however the server ends it, until its messages have been received;
        it has to be read to its end or cancelled."""
    def stats(self) -> dict[str, object]: ...
    def trace(self) -> tuple[int, list[Step]]:
        """How many steps were noted, and the last of them, oldest first."""
    def notify(self, queue: EventQueue, token: int) -> None:
        """Puts ``token`` into ``queue`` once the peer is gone, at once if it is."""
    def share(self) -> Peer:
        """Another object for it, which keeps no link open."""
    def close(self) -> None:
        """Ends all calls with CANCELLED. Buffers that were received stay readable; buffers that
        were lent come home as the peer releases them or dies."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def expose(self, data: BytesLike, rights: int) -> Region:
        """Lets the peer at ``data`` (C-contiguous; writable, if ``rights`` go beyond MAY_READ; at a
        multiple of 8 bytes for MAY_UPDATE). The peer knows of it before any message that is sent
        afterwards. ``data`` stays exported until the region is concealed.

        Raises StatusError: INVALID_ARGUMENT, UNIMPLEMENTED (the peer's version), UNAVAILABLE.
        """
    def region(self, region: int) -> tuple[int, int] | None:
        """(bytes, rights) of a region that the peer has exposed; None when there is none."""
    def access(
        self,
        kind: int,
        region: int,
        offset: int,
        local: BytesLike,
        operand: int = 0,
        expected: int = 0,
        immediate: int = 0,
        queue: EventQueue | None = None,
        token: int = 0,
    ) -> Access:
        """Begins an operation on the peer's ``region`` at ``offset``: WRITE and WRITE_IMMEDIATE
        move all of ``local`` there, READ fills ``local`` from there. FETCH_ADD and COMPARE_SWAP
        work on 8 bytes at a multiple of 8, in the byte order of the peer's machine, and store the
        value before in ``local`` (8 bytes). ``local`` stays exported until the end, when ``queue``
        gets the token.

        Raises StatusError: NOT_FOUND (no such region), PERMISSION_DENIED, OUT_OF_RANGE,
        INVALID_ARGUMENT, UNIMPLEMENTED, UNAVAILABLE: nothing has begun.
        """
    def mapped(self, region: int) -> bool:
        """Whether operations on the peer's region are loads and stores of this process. Reads of
        its arena are not while writes on this link go by frames, which they must not overtake."""
    def why_not_mapped(self, region: int) -> str | None:
        """None: they are."""
    def read(self, region: int, offset: int, out: BytesLike, timeout: float | None = None) -> None:
        """Fills ``out`` from the peer's region and returns once that is done, as do the methods
        that follow. On a mapped region they need nothing of the peer's process.

        Raises StatusError: as ``access``, nothing was done; DEADLINE_EXCEEDED: it goes on, and the
        memory stays exported until its end; UNAVAILABLE, CANCELLED: the link is gone, and it may
        have been done or not."""
    def write(
        self, region: int, offset: int, data: BytesLike, timeout: float | None = None
    ) -> None: ...
    def write_signal(
        self,
        region: int,
        offset: int,
        data: BytesLike,
        signal_region: int,
        signal_offset: int,
        value: int,
        add: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Writes, and once all bytes of ``data`` are visible there, sets the word at
        ``signal_offset``, a multiple of 8, to ``value``, or adds it: see ``Region.wait``. ``data``
        may be empty."""
    def fetch_add(self, region: int, offset: int, value: int, timeout: float | None = None) -> int:
        """The value before; it is lost if the wait ends early."""
    def compare_swap(
        self, region: int, offset: int, expected: int, value: int, timeout: float | None = None
    ) -> int:
        """The value before, which is ``expected`` if it was swapped."""
    def prepare(
        self,
        local: BytesLike | list[BytesLike] | tuple[BytesLike, ...],
        rows: BytesLike,
        signal: tuple[int, int, int, bool] | None = None,
    ) -> Batch:
        """Checks reads and writes once, to be begun together again and again. ``rows``: an array of
        uint64 with 8 columns and at most 2^24 rows: READ or WRITE, region, offset, local offset,
        length, stride, local stride, count. Each row moves ``count`` runs of ``length`` bytes,
        which lie ``stride`` bytes apart there and ``local stride`` in ``local``. Of several
        memories, offsets count as if they lay end to end, and a row is in one of them. ``signal``:
        region, offset, value and whether it is added, as ``write_signal`` has it; after writes
        only. ``local`` stays exported for as long as the batch lives, or is under way.

        Raises StatusError as ``access``; ValueError: a row of another shape, or outside of
        ``local``; BufferError: a row reads into memory that is read-only."""
    def fence(self) -> None:
        """What this process begins later on this link happens after all it has begun before, reads
        too."""
    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all that was begun before has been done at the peer, or has failed. False on
        timeout. StatusError once the link is gone."""
    def start_flush(self) -> Access:
        """What ``flush`` waits for."""
    def immediate(self, timeout: float | None = None) -> int | None:
        """The next value of the peer's writes with immediate, in order; None on timeout.
        StatusError once the link is gone."""
    def send(self, tag: int, message: Message, timeout: float | None = None) -> None:
        """Sends a message with a tag, 0 to MAX_TAG, once the peer has credit for it. Raises
        StatusError: INVALID_ARGUMENT, UNIMPLEMENTED (the peer's version), DEADLINE_EXCEEDED,
        RESOURCE_EXHAUSTED: the peer will not see it; UNAVAILABLE: it may have seen it."""
    def receive(
        self,
        tag: int,
        into: BytesLike | None = None,
        queue: EventQueue | None = None,
        token: int = 0,
    ) -> Receive:
        """Asks for the next message of a tag. ``into``, which is exported until then, gets its
        segments one after the other; without it they stay where they come to lie. Once it has ended
        ``queue`` gets the token. StatusError: INVALID_ARGUMENT, UNIMPLEMENTED."""

class Receive:
    """A tagged message that was asked for. It goes on when the object goes."""

    @property
    def ended(self) -> bool: ...
    def wait(self, timeout: float | None = None, raw: bool = True) -> Received | int | None:
        """The message, once, or how many bytes of it went to ``into``; None on timeout. Raises
        StatusError: OUT_OF_RANGE (larger than ``into``, and dropped), CANCELLED, UNAVAILABLE;
        FAILED_PRECONDITION when it was taken before."""
    def cancel(self) -> bool:
        """Ends it with CANCELLED: nobody writes to ``into`` any more. False: it had ended."""

class Messages:
    """``receive`` of a call as an iterator at C speed."""

    def __iter__(self, /) -> Messages: ...
    def __next__(self, /) -> Received: ...

class Call:
    """A call at the client. Thread-safe; ends exactly once."""

    def send(self, message: Message, end: bool = False, timeout: float | None = None) -> bool:
        """Waits for the stream's credit, then sends. False when the call has already ended.
        StatusError(DEADLINE_EXCEEDED) after ``timeout`` seconds: the peer will not see it."""
    def end_send(self) -> None: ...
    def receive(self, raw: bool, timeout: float | None = None) -> Received | None:
        """The next message, or None after the last one (then ask ``status``).
        StatusError(DEADLINE_EXCEEDED) after ``timeout`` seconds: it can still be received."""
    def messages(self, raw: bool) -> Messages: ...
    def initial_metadata(self) -> list[tuple[str, str | bytes]]:
        """Waits for it; empty when the call ended without any."""
    def status(
        self, timeout: float | None = None
    ) -> tuple[int, str, list[tuple[str, str | bytes]]] | None:
        """Waits for the end of the call: (code, details, trailing metadata), None on timeout."""
    @property
    def ended(self) -> bool: ...
    @property
    def time_remaining(self) -> float | None: ...
    def cancel(self, code: int = 1, details: str = "Locally cancelled by application!") -> bool:
        """False when the call had already ended."""
    def notify(self, queue: EventQueue, token: int, on: int = 0) -> None:
        """Puts ``token`` into ``queue`` once that has happened (at once if it has): the call has
        ended (ON_END), or was not ended by its server (ON_CUT); there is a message, or will be none
        (ON_MESSAGE); there is room to send one (ON_ROOM); initial metadata has come, or will not
        (ON_INITIAL)."""

# ----------------------------------------------------------------------------------- one-sided

MAY_READ: Final[int]
MAY_WRITE: Final[int]
MAY_UPDATE: Final[int]

READ: Final[int]
WRITE: Final[int]
WRITE_IMMEDIATE: Final[int]
FETCH_ADD: Final[int]
COMPARE_SWAP: Final[int]

MAX_TAG: Final[int]

class Region:
    """Memory of this process that one peer may access; concealed when the object goes."""

    @property
    def id(self) -> int:
        """By which the peer names it, on that link only; 0 once concealed."""
    def conceal(self, timeout: float | None = None) -> bool:
        """From the return on the peer neither reads nor writes there. False: it was concealed
        before, or the link is gone. Nothing begins there any more, whatever becomes of the wait for
        a peer that is amid an access of memory that it has mapped. StatusError
        (DEADLINE_EXCEEDED): it still is; another call waits again."""
    def wait(self, offset: int, at_least: int, timeout: float | None = None) -> int | None:
        """Waits until the word at ``offset``, 8 bytes at a multiple of 8, is at least so much, and
        returns it; None on timeout. It polls for a while, then sleeps until a peer, or ``set`` or
        ``add`` of this process, has changed memory that is exposed. StatusError: NOT_FOUND, or as
        the link ended: this peer cannot raise it any more; OUT_OF_RANGE, INVALID_ARGUMENT."""
    def set(self, offset: int, value: int) -> None:
        """Stores a word, as a whole, and wakes who waits for it."""
    def add(self, offset: int, value: int) -> int:
        """Adds to a word, atomically towards all peers, and wakes who waits; the value before."""

class Batch:
    """Reads and writes that are begun together and end as one: ``Peer.prepare``."""

    @property
    def nbytes(self) -> int: ...
    @property
    def pieces(self) -> int:
        """Runs of adjacent bytes, after those that touch were joined."""
    def start(
        self, queue: EventQueue | None = None, token: int = 0, value: int | None = None
    ) -> Access:
        """Begins all of it; ``value`` takes the place of the signal's. It may be under way more
        than once. StatusError as ``Peer.access``."""

class SharedMemory:
    """Memory made to be accessed by peers (``Peer.expose``, also of parts of it): zeroed, a
    writable buffer of ``nbytes`` bytes. Peers over shared memory map it, and may write anything
    there at any time. It lives as long as its buffers and regions. StatusError
    (RESOURCE_EXHAUSTED): above TENSORWIRE_SHARED_MEMORY_BYTES."""

    def __init__(self, nbytes: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def nudges(self) -> int:
        """How often ``nudge`` was called."""
    def nudge(self) -> None:
        """Ends each ``wait_any`` for a word of it."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

def wait_any(
    words: Sequence[tuple[SharedMemory, int, int, int]], timeout: float | None = None
) -> bool:
    """Waits until one of the words at least, each given by its memory and the offset in that, 8
    bytes at a multiple of 8, has the value beside it at least, or the memory was nudged more often
    than the last number says. False on timeout. It polls for a while, then sleeps until a peer,
    ``Region.set``, ``Region.add`` or ``SharedMemory.nudge`` changes one; for more than 128 words,
    before Linux 5.16, or where an RDMA device stores, it looks each millisecond. StatusError:
    OUT_OF_RANGE, INVALID_ARGUMENT."""

class Access:
    """An operation under way. It cannot be called back: one whose object goes is completed all the
    same, and its memory kept until then."""

    @property
    def ended(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool:
        """False on timeout. Raises StatusError if it failed: as ``Peer.access``, or UNAVAILABLE
        when the link was lost."""

# -------------------------------------------------------------------------------------- server

class Server:
    """Data-plane listener: links, and the calls that arrive on them."""

    def __init__(self, max_message: int = -1) -> None: ...
    @property
    def instance(self) -> bytes: ...
    def listen_tcp(self, host: str, port: int) -> int:
        """The bound port. StatusError(UNAVAILABLE) when the address is taken or invalid."""
    def listen_local(self) -> str:
        """Path of a socket in a fresh 0700 folder, removed by ``close``."""
    def admit(
        self, peer_hello: bytes, connections: int, ttl: float, source: str = ""
    ) -> tuple[bytes, bytes]:
        """(session, secret) that admit ``connections`` connections within ``ttl`` seconds, of the
        process that sent ``peer_hello``. A full table gives up the oldest invitation of the
        ``source`` that has the most."""
    def introduce(self, session: bytes, caller: str, agent: str) -> None:
        """What ``peer`` and ``agent`` of the calls on the session's links are; to be said before
        the client knows the session."""
    def next(self, timeout: float | None = None) -> list[ServerCall] | None:
        """New calls ([] on timeout, None once closed). Also drives all links that nobody else
        drives, so one thread should always be in here."""
    def refuse(self) -> None:
        """From now on new calls get UNAVAILABLE and peers are told that this server goes away."""
    @property
    def active(self) -> int:
        """Calls that have not ended."""
    def close(self) -> None:
        """Ends everything: calls in flight get CANCELLED at both ends."""
    def peers(self) -> list[Peer]:
        """Those that are alive, whichever end has made their links."""
    def notify_peers(self, queue: EventQueue, token: int) -> None:
        """Puts ``token`` into ``queue`` when a peer next comes or goes, or the server is closed.
        Raises StatusError (UNAVAILABLE) if it is."""
    def stats(self) -> list[dict[str, object]]: ...
    def traces(self) -> list[tuple[str, str, int, list[Step]]]:
        """Of each link that is alive: transport, peer, how many steps were noted, the last."""

class ServerCall:
    """A call at the server. Thread-safe; ends exactly once."""

    @property
    def method(self) -> str: ...
    @property
    def peer(self) -> str: ...
    @property
    def agent(self) -> str:
        """The user agent of the client's channel; empty if unknown."""
    @property
    def transport(self) -> str: ...
    @property
    def metadata(self) -> list[tuple[str, str | bytes]]: ...
    @property
    def time_remaining(self) -> float | None: ...
    @property
    def active(self) -> bool:
        """False once finished, cancelled, past its deadline, or its link is lost."""
    def receive(self, raw: bool) -> Received | None:
        """The next request message, None after the last. StatusError(CANCELLED) when the call is no
        longer active."""
    def messages(self, raw: bool) -> Messages: ...
    def send_initial_metadata(self, metadata: Metadata) -> None: ...
    def send(self, message: Message) -> None:
        """A reply message of a stream; waits for credit. StatusError when no longer active."""
    def finish(
        self, code: int, details: str, trailing: Metadata, message: Message | None = None
    ) -> bool:
        """Sends the last message (if any) and the status. False when the call had ended."""
    def drop_if_over(self) -> bool:
        """True when nobody waits for the call any more: it is over then, and counted in the
        ``calls_dropped`` of its link."""
    def finish_and_next(
        self, code: int, details: str, trailing: Metadata, message: Message | None = None
    ) -> ServerCall | None:
        """``finish``, then polls this call's link for at most the spin budget: the next new call on
        it, or None. So a worker thread serves a busy peer without any hand-off."""
    def notify(self, queue: EventQueue, token: int, on: int = 0) -> None: ...
    def process(self) -> Peer:
        """Who has made the call."""

def algorithms() -> list[str]:
    """What all-reduces by messages can go by (TENSORWIRE_ALLREDUCE)."""

def group_statistics() -> list[tuple[str, str, int, int]]:
    """Of all groups of this process, those that have ended, too: as ``Group.statistics``."""

class Group:
    """Ranks that run collectives together. Thread-safe."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        host: str,
        deterministic: bool,
        timeout: float | None = None,
    ) -> None:
        """Returns once all ranks have come. ``store`` has ``set(key, value)`` and
        ``get(key, timeout)``, which raises TimeoutError. Raises StatusError (INVALID_ARGUMENT,
        DEADLINE_EXCEEDED, UNAVAILABLE, FAILED_PRECONDITION, RESOURCE_EXHAUSTED) or what the store
        raises."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def fabric(self) -> str:
        """How its data moves, for people; empty: there is one rank."""
    @property
    def tuned(self) -> tuple[bool, str]:
        """Whether the table of ``tensorwire tune collectives`` decides, and why it does not where
        it was to."""
    def statistics(self) -> list[tuple[str, str, int, int]]:
        """Operation, way, how often, bytes."""
    def run(
        self,
        kind: int,
        input: Memory | None,
        output: Memory | None,
        count: int,
        type: int,
        op: int,
        factor: float,
        root: int,
        timeout: float | None,
    ) -> None:
        """As ``tw_group_run``: the caller has compared the sizes of the arrays with ``count``."""
    def exchange(
        self,
        kind: int,
        input: Memory | None,
        gives: Sequence[tuple[int, int]],
        output: Memory | None,
        takes: Sequence[tuple[int, int]] | None,
        type: int,
        op: int,
        factor: float,
        root: int,
        timeout: float | None,
    ) -> None:
        """As ``tw_group_exchange``. Runs are (offset, size) in bytes, one for each rank.
        ValueError: they are too few or too many, or lie outside."""
    def send(self, rank: int, tag: int, data: Memory, timeout: float | None) -> None: ...
    def receive(self, rank: int, tag: int, into: Memory, timeout: float | None) -> None: ...
    def receive_any(self, tag: int, into: Memory, timeout: float | None) -> int: ...
    def gone(self, rank: int) -> bool:
        """Whether its process is known to be gone, or has left."""
    def abort(self, why: str) -> None: ...
    def leave(self) -> None:
        """At once, or when the operations under way have ended."""
