# SPDX-License-Identifier: Apache-2.0
"""Plans for people: tables, and a picture of machines and what goes between them."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tensorwire.graph.edge import Edge
from tensorwire.terminal import PLAIN_WIDTH, Column, console, fitted, show, tell_left_out

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tensorwire.graph.plan import Plan

MOST_EDGES: Final = 40
"""That a table shows unless all are asked for: the largest."""


def size(nbytes: int | None) -> str:
    """``235.9 MiB``; ``?`` where it is not known."""
    if nbytes is None:
        return "?"
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min(int(math.log2(nbytes) // 10), 4)
    return f"{nbytes / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def shape(edge: Edge) -> str:
    if edge.shape is None:
        return f"{edge.dtype} [...]"
    return f"{edge.dtype} [{', '.join('?' if n is None else str(n) for n in edge.shape)}]"


_EDGES: Final = (
    Column("from", lambda edge: edge.source, text=True),
    Column("to", lambda edge: edge.target, text=True),
    Column("tensor", lambda edge: edge.name, text=True),
    Column("what", shape, text=True),
    Column("bytes", lambda edge: size(edge.nbytes)),
    Column("per", lambda edge: edge.per, text=True, leaves=2),
    Column("seen", lambda edge: edge.seen, text=True, leaves=3),
    Column("way", lambda edge: edge.way, text=True, leaves=1),
)
_PAIRS: Final = (
    Column("from", lambda pair: pair.source, text=True),
    Column("to", lambda pair: pair.target, text=True),
    Column("edges", lambda pair: str(pair.edges)),
    Column("messages", lambda pair: str(pair.messages)),
    Column("bytes a step", lambda pair: size(pair.nbytes)),
    Column("of unknown size", lambda pair: str(pair.unknown), leaves=1),
)


def _machines(plan: Plan) -> Sequence[Column]:
    return (
        Column("machine", lambda name: name, text=True),
        Column("sends", lambda name: size(plan.moved(name).sent)),
        Column("receives", lambda name: size(plan.moved(name).received)),
        Column("TENSORWIRE_BUFFER_BYTES", lambda name: plan.arena(name).buffer_bytes),
        Column("TF_RDMA_BUF_SIZE", lambda name: str(plan.arena(name).tf_rdma_buf_size)),
    )


def print_plan(plan: Plan, to: Console | None = None, most: int | None = MOST_EDGES) -> None:
    """most: how many edges are shown, the largest; None: all."""
    to = to or console()
    edges = list(plan.edges)
    if most is not None and len(edges) > most:
        kept = sorted(edges, key=lambda edge: -(edge.nbytes or 0))[:most]
        edges = [edge for edge in edges if edge in kept]
    _print(to, f"{_count(plan)}, digest {plan.digest[:12]}", _EDGES, edges)
    if len(edges) < len(plan.edges):
        show(to, f"The {len(edges)} largest of {len(plan.edges)}: --all shows all.")
    _print(to, "between machines", _PAIRS, plan.pairs())
    groups = plan.coalesced()
    if groups:
        small = sum(len(each.edges) for each in groups)
        messages = "one message" if len(groups) == 1 else f"{len(groups)} messages"
        show(to, f"{small} small tensors travel in {messages}.")
    _print(to, f"memory, {plan.depth} steps under way", _machines(plan), plan.machines)


def text(plan: Plan) -> str:
    """The tables, with all edges."""
    from rich.console import Console

    written = io.StringIO()
    print_plan(plan, Console(width=PLAIN_WIDTH, file=written), None)
    return written.getvalue()


def _edges(count: int) -> str:
    return "one edge" if count == 1 else f"{count} edges"


def _count(plan: Plan) -> str:
    ways = [edge.way for edge in plan.edges]
    parts = [f"{ways.count(way)} {way}" for way in ("placed", "described", "stock") if way in ways]
    total = size(sum(edge.nbytes or 0 for edge in plan.edges))
    return f"{_edges(len(ways))} ({', '.join(parts)}), {total} a step"


def _print(to: Console, title: str, columns: Sequence[Column], rows: Sequence[Any]) -> None:
    if not rows:
        show(to, title)
        return

    def table(shown: Sequence[Column]) -> Table:
        from rich.table import Table
        from rich.text import Text

        made = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for column in shown:
            column.head(made)
        for row in rows:
            made.add_row(*(Text(column.cell(row)) for column in shown))  # names may have brackets
        return made

    made, left_out = fitted(to, columns, table)
    show(to, made)
    tell_left_out(to, left_out)


def draw(plan: Plan, path: Path) -> None:
    """Machines on a circle, and arrows between them as thick as what they send. ImportError where
    matplotlib is missing."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 6), layout="constrained")
    axis = picture.subplots()
    names = plan.machines
    places = {
        name: (math.cos(angle), math.sin(angle))
        for number, name in enumerate(names)
        for angle in (math.pi - 2 * math.pi * number / len(names),)
    }
    pairs = plan.pairs()
    most = max((pair.nbytes for pair in pairs), default=0) or 1
    for pair in pairs:
        start, end = places[pair.source], places[pair.target]
        axis.annotate(
            "",
            xy=end,
            xytext=start,
            arrowprops={
                "arrowstyle": "-|>",
                "connectionstyle": "arc3,rad=0.15",
                "linewidth": 1 + 4 * pair.nbytes / most,
                "color": "tab:blue",
                "alpha": 0.7,
                "shrinkA": 28,
                "shrinkB": 28,
            },
        )
        words = f"{size(pair.nbytes)}{' + ?' if pair.unknown else ''}\n{_edges(pair.edges)}"
        axis.text(*_beside(start, end), words, ha="center", va="center", fontsize="small")
    for name, (x, y) in places.items():
        axis.text(x, y, name, ha="center", va="center", bbox={"boxstyle": "round", "fc": "white"})
    axis.set(xlim=(-1.5, 1.5), ylim=(-1.4, 1.4), title=_count(plan))
    axis.set_axis_off()
    picture.savefig(path)


def _beside(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Where the words of an arrow stand: off its middle, on the side to which it bends."""
    (x, y), (to_x, to_y) = start, end
    return (x + to_x) / 2 + 0.16 * (to_y - y), (y + to_y) / 2 - 0.16 * (to_x - x)
