# SPDX-License-Identifier: Apache-2.0
"""What ``tensorwire tune links`` measures, what it chooses of that, and the table of it."""

from __future__ import annotations

import ipaddress
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from math import exp, isqrt, log
from pathlib import Path
from typing import Final

from tensorwire import transports
from tensorwire.bench.suites.links.curves import Curves, Fixed, Plan, Shape, Times
from tensorwire.plugins import cache_path

FILE: Final = "links.table"
"""In this user's cache; the core looks for it there (``core/process/link_table.cc``)."""
CLEARLY: Final = 1.05
"""How many times faster another value has to be to be chosen: less is within what runs differ
by."""
DEFAULT: Final = Fixed(8 << 10, 16 << 10, 4 << 20)
"""Of transports that ``DEFAULTS`` does not name."""
DEFAULTS: Final[Mapping[str, Fixed]] = {
    "shm": Fixed(8 << 10, 8 << 10, 4 << 20),
    "tcp": Fixed(8 << 10, 16 << 10, 1 << 20),
}
MOST: Final = 1 << 20
"""Bytes up to which segments can be copied along."""
SIZES: Final = (2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10)
"""Of one segment, for the change between copying along and bulk."""
COALESCE: Final = (0, 4 << 10, 8 << 10, 16 << 10, 32 << 10)
PARTS: Final = (16, (256, 2 << 10, 6 << 10))
"""Segments of a message and their sizes, for coalescing."""
SEVERAL: Final = (10, (10 << 10, 20 << 10))
"""... for the change between copying along and bulk: as variables of a model have them."""
CHUNKS: Final = (256 << 10, 512 << 10, 1 << 20, 4 << 20)
"""Over TCP a table makes none larger than the default: they would hold up small messages."""
LARGE: Final = (1 << 20, 8 << 20)
"""Of one segment, for chunks."""
COPIED: Final = Fixed(DEFAULT.coalesce, MOST, DEFAULT.chunk)
BULK: Final = Fixed(0, 0, DEFAULT.chunk)
NAMES: Final = ("coalesce_bytes", "eager_bytes", "chunk_bytes")


def default_path() -> Path:
    return cache_path() / FILE


@dataclass(frozen=True)
class Choice:
    """Of a transport and a peer (``same_host``, or an address): a threshold as it is by default and
    as it was chosen, in bytes."""

    transport: str
    peer: str
    threshold: str
    default: int
    bytes: int


def default_of(transport: str) -> Fixed:
    """A link's thresholds where nobody says any."""
    return DEFAULTS.get(transport, DEFAULT)


def cuts(transport: str) -> bool:
    """Whether large segments go in chunks: shared memory lends them whole."""
    return transport != "shm"


def plan(transport: str) -> Plan:
    default = default_of(transport)
    origins = ("ordinary", "published") if transports.lends(transport) else ("ordinary",)
    kinds = [(case, origin) for case in ("call", "stream") for origin in origins]
    lengths = [(size, 1) for size in SIZES] + [(size, SEVERAL[0]) for size in SEVERAL[1]]
    segments = [
        (Shape(case, origin, size, count), (COPIED, BULK))
        for size, count in lengths
        for case, origin in kinds
    ]
    count, sizes = PARTS
    several = [
        (Shape(case, "ordinary", size, count), coalescing(default))
        for size in sizes
        for case in ("call", "stream")
    ]
    if not cuts(transport):
        return [*segments, *several]
    large = [
        (Shape(case, origin, size), chunking(default)) for size in LARGE for case, origin in kinds
    ]
    return [*segments, *several, *large]


def coalescing(default: Fixed) -> list[Fixed]:
    return [replace(default, coalesce=nbytes) for nbytes in COALESCE]


def chunking(default: Fixed) -> list[Fixed]:
    return [replace(default, chunk=nbytes) for nbytes in CHUNKS if nbytes <= default.chunk]


def mean(ratios: Iterable[float]) -> float:
    """The geometric one."""
    each = [log(ratio) for ratio in ratios]
    return exp(sum(each) / len(each))


def curve(times: Times) -> dict[int, float]:
    """By the size of a segment, how many times as long it takes copied along as in bulk: the mean
    of all shapes."""
    return {
        size: mean(
            times[shape, COPIED] / times[shape, BULK]
            for shape, fixed in times
            if fixed == BULK and shape.size == size
        )
        for size in sorted({shape.size for shape, fixed in times if fixed == BULK})
    }


def even(ratios: Mapping[int, float]) -> int | None:
    """The first size from which on copying along takes longer than bulk does: between two sizes, as
    logarithms go. None where the curves do not cross."""
    each = sorted(ratios.items())
    for (size, ratio), (next_size, next_ratio) in itertools.pairwise(each):
        if ratio <= 1 < next_ratio:
            part = -log(ratio) / (log(next_ratio) - log(ratio))
            return round(size * exp(part * log(next_size / size)))
    return None


def crossover(ratios: Mapping[int, float], default: int) -> int:
    """Up to which size segments are copied along: from the default on, for as long as the next size
    is clearly faster the other way. The change is in the middle between two sizes, as their
    logarithms go."""
    copied = [size for size in sorted(ratios) if size <= default]
    bulk = [size for size in sorted(ratios) if size > default]
    while copied and ratios[copied[-1]] >= CLEARLY:
        bulk.insert(0, copied.pop())
    lowered = bulk and bulk[0] <= default
    while not lowered and bulk and ratios[bulk[0]] <= 1 / CLEARLY:
        copied.append(bulk.pop(0))
    if lowered:
        return isqrt(copied[-1] * bulk[0]) if copied else 0
    if copied[-1] <= default:
        return default
    return isqrt(copied[-1] * bulk[0]) if bulk else copied[-1]


def fastest(
    times: Times, candidates: Sequence[Fixed], value: Callable[[Fixed], int], default: int
) -> int:
    """Of values that are compared over all shapes, each against the default: the one that is
    fastest by the mean, where that is clear, and it is clearly slower for none."""
    (base,) = (fixed for fixed in candidates if value(fixed) == default)
    shapes = [shape for shape, fixed in times if fixed == base and (shape, candidates[0]) in times]
    shapes = [shape for shape in shapes if all((shape, each) in times for each in candidates)]
    gains = {
        value(fixed): [times[shape, base] / times[shape, fixed] for shape in shapes]
        for fixed in candidates
    }
    best = max(gains, key=lambda nbytes: mean(gains[nbytes]))
    clear = mean(gains[best]) >= CLEARLY and min(gains[best]) >= 1 / CLEARLY
    return best if clear else default


def choices(curves: Curves, transport: str) -> list[Choice]:
    times, default = curves.times, default_of(transport)
    eager = crossover(curve(times), default.eager)
    coalesce = fastest(times, coalescing(default), lambda fixed: fixed.coalesce, default.coalesce)
    # What is coalesced is copied along, whatever the other threshold.
    found = [min(coalesce, eager), eager, default.chunk]
    if cuts(transport):
        found[2] = fastest(times, chunking(default), lambda fixed: fixed.chunk, default.chunk)
    peer = peer_of(transport, curves.address)
    return [
        Choice(transport, peer, name, usual, nbytes)
        for name, usual, nbytes in zip(NAMES, astuple(default), found, strict=True)
    ]


def peer_of(transport: str, address: str) -> str:
    """What a table calls the peer: ``same_host``, or its address."""
    host = address.partition(":")[2].rpartition(":")[0].strip("[]")
    if transport == "shm" or not host or ipaddress.ip_address(host).is_loopback:
        return "same_host"
    return host


def tuned(chosen: Sequence[Choice]) -> Fixed:
    """A link's thresholds by them, which are of one transport."""
    found = {choice.threshold: choice.bytes for choice in chosen}
    return Fixed(*(found[name] for name in NAMES))


def rule(transport: str, peer: str, threshold: str, nbytes: int) -> str:
    return f"{transport:<9}  {peer:<11}  {threshold:<14}  {nbytes}\n"


def rules_of(path: Path) -> list[tuple[str, str, str, int]]:
    """Transport, peer, threshold and bytes of each rule in a table; none where it cannot be
    read."""
    try:
        lines = [line.partition("#")[0].split() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        return []
    return [
        (words[0], words[1], words[2], int(words[3]))
        for words in lines
        if len(words) == 4 and words[3].isdigit()
    ]


def table(path: Path, chosen: Sequence[Choice]) -> str:
    """What the file is to hold: the new rules, and the old ones for links that were not measured
    now. What stays as it is by default has none."""
    measured = {(choice.transport, choice.peer) for choice in chosen}
    kept = [rule(*each) for each in rules_of(path) if each[:2] not in measured]
    when = time.strftime("%Y-%m-%d", time.gmtime())
    head = (
        f"# Made by tensorwire tune links, {when}: thresholds of this host's links.\n"
        "# transport  peer  threshold  bytes\n"
    )
    new = [
        rule(choice.transport, choice.peer, choice.threshold, choice.bytes)
        for choice in chosen
        if choice.bytes != choice.default
    ]
    return head + "".join([*kept, *new])
