# SPDX-License-Identifier: Apache-2.0
"""Steps of PyTorch, measured by ``tensorwire bench torch``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.figures.rows import Line, Rows, measured, part, table, times, wrapped
from tests.figures.sets import load

from tensorwire.bench.harness.report import duration
from tensorwire.bench.harness.rows import Row

KINDS: Final = {"ddp": "DDP", "fsdp": "`fully_shard`", "zero": "ZeRO"}
CONTENDERS: Final = ("tensorwire", "gloo", "nothing")


def _of(rows: Rows, case: str, size: int) -> list[Row]:
    """Ours, gloo's, and that of ranks which exchange nothing; nothing where one is missing."""
    found = [rows.one(contender=name, case=case, size=size) for name in CONTENDERS]
    return [row for row in found if row is not None] if all(found) else []


def _lines(rows: Rows) -> Iterator[Line]:
    for size in sorted({row.size for row in rows.all}):
        label = f"{size / 1e6:.0f} MB"
        for case, kind in KINDS.items():
            if not (found := _of(rows, case, size)):
                continue
            ours, gloo, alone = (measured(row.p50_us) for row in found)
            cpu, by_gloo, least = (measured(row.cpu_s_per_call) for row in found)
            more = f"{cpu / least:.2f} / {by_gloo / least:.2f}"
            yield [label, kind, f"{gloo / ours:.2f}", f"{alone / ours:.2f}", more]
            label = ""


def steps() -> str:
    idle, busy = (Rows([report]) for report in load("torch"))
    head = ["gradients", "", "x gloo", "x ranks that exchange nothing"]
    text = table([*head, "processor time, ours / gloo"], [*_lines(busy)])
    (size,) = {row.size for row in idle.all}
    found = _of(idle, "ddp", size)
    ours, gloo, alone = (measured(row.p50_us) for row in found)
    cpu, by_gloo, least = (measured(row.cpu_s_per_call) for row in found)
    more, with_gloo = cpu - least, by_gloo - least
    return f"{text}\n\n" + wrapped(
        f"With hardly any computing and {size / 1e6:.0f} MB of gradients a step of DDP took "
        f"{duration(ours)}, {duration(gloo)} with gloo ({times(gloo / ours)}), and "
        f"{duration(alone)} on ranks that exchange nothing: no back end could be more than "
        f"{times(gloo / alone)} as fast as gloo there. Beyond what those ranks take, processors "
        f"worked {duration(more * 1e6)} for a step, with gloo {duration(with_gloo * 1e6)} "
        f"({part(with_gloo / more)})."
    )
