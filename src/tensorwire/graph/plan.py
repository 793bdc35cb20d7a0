# SPDX-License-Identifier: Apache-2.0
"""What the edges of a program come to: which messages, how many bytes, how much memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from tensorwire.graph.edge import Edge
from tensorwire.malformed import MALFORMED

MAX_EDGES: Final = 1 << 16
MAX_PLAN_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 64
ALIGNMENT: Final = 64
"""Of each tensor in a message, in bytes: XLA and vector loads want that."""

_MAGIC: Final = "tensorwire.graph"
_VERSION: Final = 2
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


class PlanError(ValueError):
    """A plan that cannot be read, does not fit its program, or differs from another machine's."""


class Transfer(NamedTuple):
    """A message of each step. One with several edges is coalesced: they lie one after the other,
    each at its offset."""

    number: int
    source: str
    target: str
    edges: tuple[Edge, ...]
    offsets: tuple[int, ...]
    nbytes: int | None
    """None: what it has differs from step to step, and travels with a header."""

    @property
    def round(self) -> int:
        return self.edges[0].round


class Pair(NamedTuple):
    """What one machine sends another one in a step."""

    source: str
    target: str
    edges: int
    messages: int
    """In a step. Of edges in loops and of such that stay on the stock path there are more."""
    nbytes: int
    unknown: int
    """Edges whose bytes are not known, and not among ``nbytes``."""


class Moved(NamedTuple):
    """Bytes that a machine sends and receives in a step."""

    sent: int
    received: int


class Arena(NamedTuple):
    """How much memory a machine needs for a plan, and settings that give it."""

    nbytes: int
    buffer_bytes: str
    """For TENSORWIRE_BUFFER_BYTES."""
    tf_rdma_buf_size: int
    """For TF_RDMA_BUF_SIZE, which is a multiple of 1 GiB."""


class Plan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The edges of a program, and how they travel. ``plan`` makes one."""

    magic: str
    version: int
    depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEPTH)]
    """Steps that a receiver has memory ready for."""
    coalesce: Annotated[int, msgspec.Meta(ge=0, le=_MIB)]
    """Bytes: so much small tensors of one round share a message."""
    edges: Annotated[tuple[Edge, ...], msgspec.Meta(max_length=MAX_EDGES)]

    @property
    def machines(self) -> tuple[str, ...]:
        """Of all edges, sorted."""
        return tuple(sorted({name for e in self.edges for name in (e.source, e.target)}))

    def transfers(self) -> tuple[Transfer, ...]:
        """The messages of a step, but for what stays on the stock path. Their order is that of
        their first edges."""
        groups: list[list[Edge]] = []
        filling: dict[tuple[str, str, int], tuple[list[Edge], int]] = {}
        for edge in self.edges:
            if edge.way == "stock":
                continue
            nbytes = edge.nbytes
            if edge.way == "described" or nbytes is None or nbytes > self.coalesce:
                groups.append([edge])
                continue
            key = (edge.source, edge.target, edge.round)
            group, used = filling.get(key, ([], self.coalesce))
            if not group or used + nbytes > self.coalesce:
                group, used = [], 0
                groups.append(group)
            group.append(edge)
            filling[key] = group, _aligned(used + nbytes)
        return tuple(_transfer(number, group) for number, group in enumerate(groups))

    def coalesced(self) -> tuple[Transfer, ...]:
        """Those messages that have several tensors."""
        return tuple(each for each in self.transfers() if len(each.edges) > 1)

    def pairs(self) -> tuple[Pair, ...]:
        """What goes between each two machines, sorted by their names."""
        messages: dict[tuple[str, str], int] = {}
        for each in self.transfers():
            key = (each.source, each.target)
            messages[key] = messages.get(key, 0) + 1
        edges: dict[tuple[str, str], list[Edge]] = {}
        for edge in self.edges:
            edges.setdefault((edge.source, edge.target), []).append(edge)
        return tuple(
            Pair(
                *key,
                len(found),
                messages.get(key, 0),
                sum(edge.nbytes or 0 for edge in found),
                sum(edge.nbytes is None for edge in found),
            )
            for key, found in sorted(edges.items())
        )

    def moved(self, machine: str) -> Moved:
        """What a machine sends and receives in a step, as far as it is known. KeyError: the plan
        has no such machine."""
        if machine not in self.machines:
            raise KeyError(f"the plan has no machine {machine!r}; {', '.join(self.machines)}")
        known = [(edge, edge.nbytes or 0) for edge in self.edges]
        return Moved(
            sum(nbytes for edge, nbytes in known if edge.source == machine),
            sum(nbytes for edge, nbytes in known if edge.target == machine),
        )

    def arena(self, machine: str) -> Arena:
        """What the arena of a machine should hold: ``depth`` steps of all that it sends and
        receives, or of four times what one peer reads, where that is more: of three peers each may
        hold a quarter of an arena. KeyError: the plan has no such machine."""
        moved = self.moved(machine)
        to_one = max((p.nbytes for p in self.pairs() if p.source == machine), default=0)
        needed = self.depth * max(moved.sent + moved.received, 4 * to_one)
        mib = max(64, -(-needed // _MIB))
        return Arena(needed, f"{mib}M", max(1, -(-needed // _GIB)) * _GIB)

    def table(self) -> str:
        """For people: the edges, the pairs of machines, and the size of arenas."""
        from tensorwire.graph.report import text

        return text(self)

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs: what ``tensorwire graph --json`` prints."""
        return {
            "digest": self.digest,
            "depth": self.depth,
            "coalesce": self.coalesce,
            "edges": [
                {
                    **{name: getattr(edge, name) for name in edge.__struct_fields__},
                    "nbytes": edge.nbytes,
                    "way": edge.way,
                }
                for edge in self.edges
            ],
            "coalesced": [
                {
                    "source": each.source,
                    "target": each.target,
                    "edges": [edge.name for edge in each.edges],
                    "nbytes": each.nbytes,
                }
                for each in self.coalesced()
            ],
            "pairs": [pair._asdict() for pair in self.pairs()],
            "machines": {
                name: {**self.moved(name)._asdict(), "arena": self.arena(name)._asdict()}
                for name in self.machines
            },
        }

    def to_bytes(self) -> bytes:
        """For another machine, or a file. The same plan gives the same bytes."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(data: bytes | memoryview) -> Plan:
        """Reads what ``to_bytes`` gave. PlanError when it is something else."""
        if len(data) > MAX_PLAN_BYTES:
            raise PlanError(f"a plan of {len(data)} bytes: the limit is {MAX_PLAN_BYTES}")
        try:
            found = _decode(data)
        except MALFORMED as error:
            raise PlanError(f"no plan: {error}") from None
        if (found.magic, found.version) != (_MAGIC, _VERSION):
            raise PlanError(
                f"no plan of version {_VERSION}: it begins with {found.magic[:40]!r}, "
                f"version {found.version}"
            )
        _check(found.edges)
        return found

    @property
    def digest(self) -> str:
        """Of all that the plan says: the same on two machines when their plans are."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


# Made by the import: threads that make the first one of a type at once crash in msgspec.
_decode: Final = msgspec.msgpack.Decoder(Plan).decode


def plan(edges: Iterable[Edge], *, depth: int = 2, coalesce: int = 8192) -> Plan:
    """How the tensors of a program travel.

    depth: for how many steps receivers have memory ready, 1 to 64. coalesce: tensors of so many
    bytes together share a message when they are ready at the same time, up to 1 MiB; 0: none do.

    Raises PlanError for edges that cannot be: a name that a pair of machines has twice, an edge
    from a machine to itself, more than 65536 edges, or numbers out of range.
    """
    found = tuple(edges)
    if not 1 <= depth <= MAX_DEPTH:
        raise PlanError(f"depth is 1 to {MAX_DEPTH} steps, not {depth}")
    if not 0 <= coalesce <= _MIB:
        raise PlanError(f"coalesce is 0 to {_MIB} bytes, not {coalesce}")
    if len(found) > MAX_EDGES:
        raise PlanError(f"{len(found)} edges: the limit is {MAX_EDGES}")
    _check(found)
    made = Plan(_MAGIC, _VERSION, depth, coalesce, found)
    data = made.to_bytes()
    if len(data) > MAX_PLAN_BYTES:
        raise PlanError(f"a plan of {len(data)} bytes: the limit is {MAX_PLAN_BYTES}")
    return Plan.from_bytes(data)  # what no machine could read is no plan


def _check(edges: Sequence[Edge]) -> None:
    seen: set[tuple[str, str, str]] = set()
    for edge in edges:
        key = (edge.name, edge.source, edge.target)
        if edge.source == edge.target:
            raise PlanError(f"{edge.name} goes from {edge.source} to itself")
        if edge.order is not None and sorted(edge.order) != list(range(len(edge.shape or ()))):
            raise PlanError(f"{edge.name} has no axes in the order {list(edge.order)}")
        if key in seen:
            raise PlanError(f"{edge.source} sends {edge.target} two edges named {edge.name}")
        seen.add(key)


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


def _transfer(number: int, group: Sequence[Edge]) -> Transfer:
    first = group[0]
    offsets, used = [], 0
    for edge in group:
        offsets.append(used)
        used = _aligned(used + (edge.nbytes or 0))
    placed = first.way == "placed"
    nbytes = offsets[-1] + (group[-1].nbytes or 0) if placed else None
    return Transfer(number, first.source, first.target, tuple(group), tuple(offsets), nbytes)
