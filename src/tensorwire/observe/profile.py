# SPDX-License-Identifier: Apache-2.0
"""What messages a program sends: their sizes, and by which protocol and over what each buffer went.
The characterisation that R. Biswas et al. make of TensorFlow's channels (AR-gRPC, HiPC 2018,
section III), of any program: of what its links carry, and of what it sends by stock gRPC."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensorwire import launch, signals
from tensorwire.observe import sockets, trace
from tensorwire.observe.messages import Buffer, messages
from tensorwire.observe.sockets import Sockets
from tensorwire.terminal import show

if TYPE_CHECKING:
    from rich.console import Console

    from tensorwire.observe.trace import Direction, LinkTrace

MOST_MESSAGES: Final = 2000
"""That a profile lists, the first ones: as many as are in the traces of AR-gRPC."""
CLASSES: Final = (("small", 1 << 10), ("medium", 1 << 20), ("large", math.inf))
"""Of buffers, each with the size from which on it is the next one: those of TF-gRPC-Bench."""
GRPC: Final = "grpc"
"""What stock gRPC's connections count as, among the transports of links."""
_BAR: Final = 40


class Sent(NamedTuple):
    """A message of one link or, over ``GRPC``, what one call gave to a socket."""

    time_ns: int
    pid: int
    transport: str
    peer: str
    buffers: tuple[Buffer, ...]

    @property
    def nbytes(self) -> int:
        return sum(buffer.size for buffer in self.buffers)


@dataclass(frozen=True)
class Share:
    """buffers, nbytes: of one class or one size, over a transport, by a protocol."""

    buffers: int
    nbytes: int


@dataclass(frozen=True)
class Profile:
    """messages: with a payload, in the order in which they were announced. cut: links of which
    only the last steps were kept, so that earlier messages are missing. sockets: those of stock
    gRPC; None where no process has recorded any. why_no_sockets: a sentence, where the program's
    first process has not."""

    direction: Direction
    messages: Sequence[Sent]
    cut: int
    sockets: Sockets | None
    why_no_sockets: str = ""

    def channels(self) -> dict[str, list[Sent]]:
        """The messages over each transport."""
        found: dict[str, list[Sent]] = {}
        for message in self.messages:
            found.setdefault(message.transport, []).append(message)
        return dict(sorted(found.items()))

    def by(self, key: Callable[[Sent, Buffer], Any]) -> dict[Any, Share]:
        """The buffers, put together by a key, in its order."""
        counts: Counter[Any] = Counter()
        sums: Counter[Any] = Counter()
        for message in self.messages:
            for buffer in message.buffers:
                of = key(message, buffer)
                counts[of] += 1
                sums[of] += buffer.size
        return {of: Share(counts[of], sums[of]) for of in sorted(counts)}

    def classes(self) -> dict[tuple[int, str, str], Share]:
        """By the place in ``CLASSES``, transport and protocol."""
        return self.by(
            lambda message, buffer: (
                class_of(buffer.size),
                message.transport,
                buffer.protocol,
            )
        )

    def histogram(self) -> dict[tuple[int, str], Share]:
        """By the largest power of 2 that the size is not below, and transport."""
        return self.by(
            lambda message, buffer: (1 << (buffer.size.bit_length() - 1), message.transport)
        )


def class_of(size: int) -> int:
    return next(place for place, (_, end) in enumerate(CLASSES) if size < end)


def run(
    command: Sequence[str], keep: int, direction: Direction, *, to_stderr: bool = False
) -> tuple[int, Profile]:
    """Runs a program to its end. Its exit code, and what its processes have left. keep: the steps
    of each link, the last ones, and the buffers of each process's gRPC, the first ones. to_stderr:
    of what the program prints.

    Raises launch.NotStartedError.
    """
    with signals.folder("tensorwire-profile-") as name:
        folder = Path(name)
        environment, why = trace.environment(folder, keep), ""
        if direction == "received":
            why = "Of stock gRPC, only what is sent is recorded."
        else:
            try:
                environment |= sockets.environment(folder, keep)
            except ValueError as error:
                why = f"Stock gRPC is not recorded: {error}."
        finished = launch.follow(command, environment, to_stderr=to_stderr)
        recorded = sockets.read(folder)
        if not why and finished.pid not in recorded.pids:
            why = (
                f"Of stock gRPC, what {command[0]} itself has sent is not recorded. Unless it said "
                "why when it began, it is linked statically, has the set-user-ID bit, or is made "
                f"for another kind of machine: the loader puts no {sockets.LIBRARY.name} before it."
            )
        kept = recorded if recorded.pids else None
        return finished.code, profile(trace.read(folder), direction, kept, why)


def profile(
    links: Sequence[LinkTrace],
    direction: Direction,
    sockets: Sockets | None = None,
    why_no_sockets: str = "",
) -> Profile:
    """Of what all links, and the connections of stock gRPC, have kept. Where both ends of a link
    are there, what one has sent is what the other one has received."""
    found = [
        Sent(message.time_ns, link.pid, link.transport, link.peer, message.buffers)
        for link in links
        for message in messages(link.events, direction)
    ]
    if sockets is not None:
        found += [
            Sent(message.time_ns, connection.pid, GRPC, connection.peer, message.buffers)
            for connection in sockets.connections
            for message in connection.messages
        ]
    cut = sum(link.total > len(link.events) for link in links)
    found.sort(key=lambda message: message.time_ns)
    return Profile(direction, found, cut, sockets, why_no_sockets)


def as_dict(found: Profile) -> dict[str, Any]:
    """For JSON."""
    return {
        "direction": found.direction,
        "messages": len(found.messages),
        "bytes": sum(message.nbytes for message in found.messages),
        "links_cut": found.cut,
        "grpc": _grpc(found),
        "channels": [
            {
                "transport": transport,
                "messages": len(sent),
                "buffers": sum(len(message.buffers) for message in sent),
                "bytes": sum(message.nbytes for message in sent),
            }
            for transport, sent in found.channels().items()
        ],
        "classes": [
            {
                "class": CLASSES[place][0],
                "transport": transport,
                "protocol": protocol,
                **_shared(share),
            }
            for (place, transport, protocol), share in found.classes().items()
        ],
        "histogram": [
            {"from": size, "transport": transport, **_shared(share)}
            for (size, transport), share in found.histogram().items()
        ],
        "trace": [
            {
                "time_ns": message.time_ns,
                "pid": message.pid,
                "transport": message.transport,
                "peer": message.peer,
                "buffers": [buffer.size for buffer in message.buffers],
            }
            for message in found.messages[:MOST_MESSAGES]
        ],
    }


def _grpc(found: Profile) -> dict[str, Any]:
    """What is known of stock gRPC's connections, each with the bytes that the kernel has taken."""
    if found.sockets is None:
        return {"recorded": False, "why": found.why_no_sockets}
    told = ("pid", "peer", "tls", "calls", "bytes")
    return {
        "recorded": True,
        "why": found.why_no_sockets,
        "connections": [
            {name: getattr(connection, name) for name in told}
            for connection in found.sockets.connections
        ],
        "left_out": {
            "connections": found.sockets.connections_left_out,
            "buffers": found.sockets.buffers_left_out,
            "calls": found.sockets.calls_left_out,
        },
    }


def _shared(share: Share) -> dict[str, int]:
    return {"buffers": share.buffers, "bytes": share.nbytes}


def print_profile(found: Profile, console: Console) -> None:
    if found.messages:
        _print_tables(found, console)
    else:
        console.print(
            f"No message with a payload was {found.direction}. tensorwire doctor tells why a link "
            "is not made."
        )
    for line in _notes(found):
        console.print(line, markup=False, highlight=False)


def _print_tables(found: Profile, console: Console) -> None:
    from rich.table import Table

    for transport, sent in found.channels().items():
        counts = [len(message.buffers) for message in sent]
        console.print(
            f"{len(sent):,} messages {found.direction} over {transport}, "
            f"{sum(message.nbytes for message in sent):,} bytes in {sum(counts):,} buffers: "
            f"{median(counts):g} of a message in the median, {max(counts):,} at most",
            highlight=False,
        )
    total = sum(message.nbytes for message in found.messages)
    table = Table("buffers", "over", "protocol", header_style="bold", box=None, padding=(0, 1))
    for heading in ("count", "bytes", "of all bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (place, transport, protocol), share in found.classes().items():
        part = f"{share.nbytes / total:.1%}"
        named = (CLASSES[place][0], transport, protocol)
        table.add_row(*named, f"{share.buffers:,}", f"{share.nbytes:,}", part)
    show(console, table)
    table = Table("size from", "over", header_style="bold", box=None, padding=(0, 1))
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("")
    histogram = found.histogram()
    most = max(share.buffers for share in histogram.values())
    for (size, transport), share in histogram.items():
        bar = "█" * max(1, round(share.buffers * _BAR / most))
        table.add_row(f"{size:,}", transport, f"{share.buffers:,}", f"{share.nbytes:,}", bar)
    show(console, table)


def _notes(found: Profile) -> Iterator[str]:
    """What is not in the profile."""
    if found.cut:
        yield f"Of {found.cut} links only the last steps were kept: --keep more for all messages."
    if found.why_no_sockets:
        yield found.why_no_sockets
    if found.sockets is None:
        return
    secured = [connection for connection in found.sockets.connections if connection.tls]
    if secured:
        count = sum(connection.bytes for connection in secured)
        yield (
            f"{len(secured)} connections with TLS sent {count:,} bytes, in which gRPC's buffers "
            "cannot be told."
        )
    if found.sockets.buffers_left_out:
        yield (
            f"{found.sockets.buffers_left_out:,} buffers of gRPC had no room: --keep more for all."
        )
    if found.sockets.connections_left_out or found.sockets.calls_left_out:
        yield (
            f"{found.sockets.connections_left_out:,} connections had no room, and "
            f"{found.sockets.calls_left_out:,} calls on descriptors with too large a number."
        )


def plot(found: Profile, path: Path) -> None:
    """The sizes of the buffers of the first messages, one after the other, as the paper's figure 2.
    Raises ImportError where matplotlib is missing."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 5), layout="constrained")
    axis = picture.subplots()
    points: dict[str, list[tuple[int, int]]] = {}
    for place, message in enumerate(found.messages[:MOST_MESSAGES]):
        for buffer in message.buffers:
            label = f"{message.transport}, {buffer.protocol}"
            points.setdefault(label, []).append((place, buffer.size))
    for label, each in sorted(points.items()):
        places, sizes = zip(*each, strict=True)
        axis.scatter(places, sizes, s=6, label=label)
    axis.set(xlabel=f"message {found.direction}", ylabel="bytes of a buffer")
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter(lambda size, _: f"{size:,.0f}" if size >= 1 else "")
    axis.grid(alpha=0.3)
    if points:
        axis.legend(fontsize="small")
    picture.savefig(path)
