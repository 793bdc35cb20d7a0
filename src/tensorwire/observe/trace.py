# SPDX-License-Identifier: Apache-2.0
"""The protocol steps that links note: kept, read, and shown, also those of a whole program."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tensorwire.terminal import Column, fitted, show, tell_left_out

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Direction = Literal["sent", "received"]
Step = Literal[
    "MESSAGE",
    "MAP",
    "RETURN",
    "EAGER",
    "DATA",
    "RTS",
    "READ",
    "READ_DONE",
    "FIN",
    "CREDIT",
    "ABORT",
    "GOAWAY",
    "SEND",
]
STEPS: tuple[Step, ...] = get_args(Step)
PAYLOAD: tuple[Step, ...] = ("MESSAGE", "MAP", "RETURN", "EAGER", "DATA", "RTS")
"""Each byte of payload is in one of these, at either end."""


@dataclass(frozen=True)
class Event:
    """One protocol step of a link.

    time_ns: of ``time.monotonic_ns()``. direction: as seen from this end; a READ is ``sent`` when
    it begins and ``received`` when it is done. segment: the one it is about, or its first; for
    MESSAGE how many there are. bytes: of payload; for SEND, of anything. id: the rendezvous of RTS,
    READ, READ_DONE and FIN, or the lease of MAP and FIN. What does not apply to a step is 0.
    """

    time_ns: int
    direction: Direction
    step: Step
    stream: int
    message: int
    segment: int
    bytes: int
    id: int


@dataclass(frozen=True)
class LinkTrace:
    """What one link has noted.

    total: steps since tracing began, of which ``events`` are the last, oldest first. steps: count
    and bytes of all of them, where the process has left them (``read``); of ``events`` else.
    thresholds: of what this end sent, where the process has left them: as of ``Path``.
    """

    transport: str
    peer: str
    total: int
    events: tuple[Event, ...]
    steps: Mapping[Direction, Mapping[Step, tuple[int, int]]]
    role: str = ""
    pid: int = 0
    thresholds: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def count(self, step: Step, direction: Direction) -> int:
        return self.steps[direction].get(step, (0, 0))[0]

    def payload(self, direction: Direction) -> int:
        """Bytes of tensors and other segments, however they travelled."""
        return sum(self.steps[direction].get(step, (0, 0))[1] for step in PAYLOAD)


@dataclass(frozen=True)
class GroupTrace:
    """What the operations of one rank of a group have come to.

    links: ranks that it had links with when it left. fabric, tuned: as of ``collective.Group``.
    operations: count and bytes by operation and way.
    """

    pid: int
    rank: int
    size: int
    links: int
    fabric: str
    tuned: bool
    operations: Mapping[str, Mapping[str, tuple[int, int]]]


def keep(events: int) -> None:
    """Every link of this process, those of now and those to come, forgets what it has noted and
    keeps its last ``events`` steps from now on; 0: none. 48 bytes each."""
    from tensorwire import _core

    _core.trace(events)


def link_trace(transport: str, peer: str, total: int, events: Iterable[Sequence[Any]]) -> LinkTrace:
    kept = tuple(Event(*event) for event in events)
    steps: dict[Direction, dict[Step, tuple[int, int]]] = {"sent": {}, "received": {}}
    for event in kept:
        count, size = steps[event.direction].get(event.step, (0, 0))
        steps[event.direction][event.step] = (count + 1, size + event.bytes)
    return LinkTrace(transport, peer, total, kept, steps)


# ------------------------------------------------------------------------------- whole programs


def environment(folder: Path, events: int) -> dict[str, str]:
    """What a program is started with so that its processes leave their traces in ``folder``."""
    return {"TENSORWIRE_TRACE": str(events), "TENSORWIRE_TRACE_FOLDER": str(folder)}


def _left(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    for file in sorted(each for each in Path(folder).iterdir() if each.suffix == ".jsonl"):
        for line in file.read_bytes().split(b"\n"):
            with suppress(json.JSONDecodeError, UnicodeDecodeError):  # cut off with its process
                yield json.loads(line)


def read(folder: str | os.PathLike[str]) -> list[LinkTrace]:
    """What processes have left there. A killed one leaves only the links that ended before it.

    Raises FileNotFoundError for a folder that is not there.
    """
    return [
        LinkTrace(
            transport=link["transport"],
            peer=link["peer"],
            total=link["total"],
            events=tuple(Event(*event) for event in link["events"]),
            steps={
                direction: {step: (count, size) for step, (count, size) in steps.items()}
                for direction, steps in link["steps"].items()
            },
            role=link["role"],
            pid=link["pid"],
            thresholds={name: (size, who) for name, (size, who) in link["thresholds"].items()},
        )
        for link in _left(folder)
        if "group" not in link
    ]


def read_groups(folder: str | os.PathLike[str]) -> list[GroupTrace]:
    """What ranks have left there when they left their groups.

    Raises FileNotFoundError for a folder that is not there.
    """
    found = []
    for left in _left(folder):
        if "group" in left:
            operations: dict[str, dict[str, tuple[int, int]]] = {}
            for operation, way, count, size in left["operations"]:
                operations.setdefault(operation, {})[way] = (count, size)
            found.append(GroupTrace(left["pid"], **left["group"], operations=operations))
    return found


def as_dict(link: LinkTrace, *, events: bool) -> dict[str, Any]:
    """For JSON; ``events``: with the list of all that was kept."""
    fields: dict[str, Any] = {
        "pid": link.pid,
        "role": link.role,
        "transport": link.transport,
        "peer": link.peer,
        "total": link.total,
        "steps": {
            direction: {step: {"count": c, "bytes": b} for step, (c, b) in steps.items()}
            for direction, steps in link.steps.items()
        },
        "payload": {direction: link.payload(direction) for direction in get_args(Direction)},
    }
    if events:
        fields["events"] = [vars(event) for event in link.events]
    return fields


def group_as_dict(group: GroupTrace) -> dict[str, Any]:
    """For JSON."""
    operations = {
        operation: {way: {"operations": n, "bytes": size} for way, (n, size) in ways.items()}
        for operation, ways in group.operations.items()
    }
    return {**vars(group), "operations": operations}


def as_chrome(links: Sequence[LinkTrace]) -> dict[str, Any]:
    """The steps that were kept in the Trace Event Format, which ``ui.perfetto.dev`` and
    ``chrome://tracing`` show: a process for each process, a thread for each link. A read is as long
    as it took, all other steps are instants. Times are microseconds of ``time.monotonic_ns()``.
    """
    events: list[dict[str, Any]] = []
    for number, link in enumerate(links, 1):
        where = {"pid": link.pid, "tid": number}
        for kind, name in (
            ("process_name", f"pid {link.pid}"),
            ("thread_name", f"{link.role} over {link.transport} to {link.peer}"),
        ):
            events.append({"ph": "M", "name": kind, **where, "args": {"name": name}})
        begun: dict[int, int] = {}
        for event in link.events:
            at = event.time_ns / 1e3
            step = {
                **where,
                "cat": event.direction,
                "args": {
                    name: getattr(event, name)
                    for name in ("direction", "stream", "message", "segment", "bytes", "id")
                },
            }
            if event.step == "READ":
                begun[event.id] = event.time_ns
            elif event.step == "READ_DONE" and event.id in begun:
                begin = begun.pop(event.id) / 1e3
                events.append({"ph": "X", "name": "READ", "ts": begin, "dur": at - begin, **step})
            else:
                events.append({"ph": "i", "s": "t", "name": event.step, "ts": at, **step})
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def print_links(links: Sequence[LinkTrace], console: Console, *, events: bool) -> None:
    from rich.table import Table

    if not links:
        console.print("No link was opened: calls went by gRPC, or there were none.")
    for link in links:
        console.print(
            f"\n{link.role} (pid {link.pid}) over {link.transport} to {link.peer}"
            + "".join(
                f", {name} {nbytes} by {who}"
                for name, (nbytes, who) in link.thresholds.items()
                if who != "default"
            ),
            markup=False,
            highlight=False,
        )
        table = Table("step", header_style="bold", box=None, padding=(0, 1))
        for heading in ("sent", "bytes", "received", "bytes"):
            table.add_column(heading, justify="right", no_wrap=True)
        for step in STEPS:
            sent, received = (link.steps[way].get(step, (0, 0)) for way in get_args(Direction))
            if sent[0] or received[0]:
                table.add_row(step, *(f"{figure:,}" for figure in (*sent, *received)))
        sums = [f"{link.payload(way):,}" for way in get_args(Direction)]
        table.add_row("payload", "", sums[0], "", sums[1])
        show(console, table)
        if events:
            _print_events(link, console)


def print_groups(groups: Sequence[GroupTrace], console: Console) -> None:
    from rich.table import Table

    for group in groups:
        over = f" over {group.fabric}" if group.fabric else ""
        console.print(
            f"\nrank {group.rank} of {group.size} (pid {group.pid}), links to {group.links}{over}"
            f"{', tuned' if group.tuned else ''}",
            markup=False,
            highlight=False,
        )
        table = Table("operation", "way", header_style="bold", box=None, padding=(0, 1))
        for heading in ("calls", "bytes"):
            table.add_column(heading, justify="right", no_wrap=True)
        for operation, ways in group.operations.items():
            for way, figures in ways.items():
                table.add_row(operation, way, *(f"{figure:,}" for figure in figures))
        show(console, table)


def _print_events(link: LinkTrace, console: Console) -> None:
    from rich.table import Table

    begin = link.events[0].time_ns if link.events else 0
    columns = (
        Column("ms", lambda event: f"{(event.time_ns - begin) / 1e6:.3f}"),
        Column("", lambda event: event.direction, text=True),
        Column("step", lambda event: event.step, text=True),
        Column("stream", lambda event: str(event.stream), leaves=2),
        Column("message", lambda event: str(event.message)),
        Column("segment", lambda event: str(event.segment), leaves=1),
        Column("bytes", lambda event: f"{event.bytes:,}"),
        Column("id", lambda event: str(event.id), leaves=3),
    )

    def table(shown: Sequence[Column]) -> Table:
        made = Table(header_style="bold", box=None, padding=(0, 1))
        for column in shown:
            column.head(made)
        for event in link.events:
            made.add_row(*(column.cell(event) for column in shown))
        return made

    if link.total > len(link.events):
        console.print(f"the last {len(link.events):,} of {link.total:,} steps (--keep)")
    fitting, left_out = fitted(console, columns, table)
    show(console, fitting)
    tell_left_out(console, left_out)
