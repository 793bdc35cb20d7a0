# SPDX-License-Identifier: Apache-2.0
"""What messages a program sends: their sizes, and by which protocol and over what each buffer went.
The characterisation that R. Biswas et al. make of TensorFlow's channels (AR-gRPC, HiPC 2018,
section III), of any program whose links note their steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensorwire.observe.messages import Buffer, messages
from tensorwire.terminal import show

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tensorwire.observe.trace import Direction, LinkTrace, Step

MOST_MESSAGES: Final = 2000
"""That a profile lists, the first ones: as many as are in the traces of AR-gRPC."""
CLASSES: Final = (("small", 1 << 10), ("medium", 1 << 20), ("large", math.inf))
"""Of buffers, each with the size from which on it is the next one: those of TF-gRPC-Bench."""
PROTOCOLS: Final[dict[Step, str]] = {
    "MESSAGE": "with the header",
    "EAGER": "eager",
    "DATA": "chunks",
    "MAP": "mapped",
    "RTS": "rendezvous",
}
_BAR: Final = 40


class Sent(NamedTuple):
    """A message of one link. buffers: bytes of each."""

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
    only the last steps were kept, so that earlier messages are missing."""

    direction: Direction
    messages: Sequence[Sent]
    cut: int

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
                PROTOCOLS[buffer.step],
            )
        )

    def histogram(self) -> dict[int, Share]:
        """By the largest power of 2 that the size is not below."""
        return self.by(lambda message, buffer: 1 << (buffer.size.bit_length() - 1))


def class_of(size: int) -> int:
    return next(place for place, (_, end) in enumerate(CLASSES) if size < end)


def profile(links: Sequence[LinkTrace], direction: Direction) -> Profile:
    """Of what all links have kept. Where both ends of a link are there, what one has sent is what
    the other one has received."""
    found = [
        Sent(message.time_ns, link.pid, link.transport, link.peer, message.buffers)
        for link in links
        for message in messages(link.events, direction)
    ]
    cut = sum(link.total > len(link.events) for link in links)
    return Profile(direction, sorted(found, key=lambda message: message.time_ns), cut)


def as_dict(found: Profile) -> dict[str, Any]:
    """For JSON."""
    return {
        "direction": found.direction,
        "messages": len(found.messages),
        "links_cut": found.cut,
        "bytes": sum(message.nbytes for message in found.messages),
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
            {"from": size, **_shared(share)} for size, share in found.histogram().items()
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


def _shared(share: Share) -> dict[str, int]:
    return {"buffers": share.buffers, "bytes": share.nbytes}


def print_profile(found: Profile, console: Console) -> None:
    from rich.table import Table

    if not found.messages:
        console.print(
            f"No message with a payload was {found.direction} over a link: calls went by gRPC, or "
            "there were none. tensorwire doctor tells why a link is not made."
        )
        return
    counts = [len(message.buffers) for message in found.messages]
    total = sum(message.nbytes for message in found.messages)
    console.print(
        f"{len(found.messages):,} messages {found.direction}, {total:,} bytes in "
        f"{sum(counts):,} buffers: {median(counts):g} of a message in the median, "
        f"{max(counts):,} at most",
        highlight=False,
    )
    table = Table("buffers", "over", "protocol", header_style="bold", box=None, padding=(0, 1))
    for heading in ("count", "bytes", "of all bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (place, transport, protocol), share in found.classes().items():
        part = f"{share.nbytes / total:.1%}"
        named = (CLASSES[place][0], transport, protocol)
        table.add_row(*named, f"{share.buffers:,}", f"{share.nbytes:,}", part)
    show(console, table)
    table = Table("size from", header_style="bold", box=None, padding=(0, 1))
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("")
    histogram = found.histogram()
    most = max(share.buffers for share in histogram.values())
    for size, share in histogram.items():
        bar = "█" * max(1, round(share.buffers * _BAR / most))
        table.add_row(f"{size:,}", f"{share.buffers:,}", f"{share.nbytes:,}", bar)
    show(console, table)
    if found.cut:
        console.print(
            f"Of {found.cut} links only the last steps were kept: --keep more for all messages.",
            highlight=False,
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
            label = f"{message.transport}, {PROTOCOLS[buffer.step]}"
            points.setdefault(label, []).append((place, buffer.size))
    for label, each in sorted(points.items()):
        places, sizes = zip(*each, strict=True)
        axis.scatter(places, sizes, s=6, label=label)
    axis.set(xlabel=f"message {found.direction}", ylabel="bytes of a buffer")
    axis.set_yscale("log", base=2)
    axis.grid(alpha=0.3)
    if points:
        axis.legend(fontsize="small")
    picture.savefig(path)
