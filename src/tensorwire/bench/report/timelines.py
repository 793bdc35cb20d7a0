# SPDX-License-Identifier: Apache-2.0
"""Pictures of what contenders took of the host while they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tensorwire.bench.harness.report import significant
from tensorwire.bench.report.picture import COLOURS, DASHES, MAX_SERIES, Chart, layout, nth, safe
from tensorwire.bench.report.runs import Run, Samples

MAX_POINTS: Final = 2000
"""Of a timeline; of more, every second, third ... one is drawn."""


def draw(run: Run) -> Iterator[Chart]:
    """For each case and resource one, with all contenders of which there are samples."""
    panels: dict[tuple[str, str], list[Samples]] = {}
    for samples in run.samples:
        for resource in samples.figures:
            panels.setdefault((samples.case, resource), []).append(samples)
    for (case, resource), found in panels.items():
        yield _timeline(": ".join(filter(None, (resource, case))), resource, found[:MAX_SERIES])


def _timeline(title: str, resource: str, found: Sequence[Samples]) -> Chart:
    traces, words = [], [f"{title}, over time."]
    for place, samples in enumerate(found):
        step = -(-len(samples.seconds) // MAX_POINTS) or 1
        values = samples.figures[resource][::step]
        who = f"{samples.contender} {samples.transport}".strip()
        line = {
            "color": nth(COLOURS, place),
            "dash": nth(DASHES, place // len(COLOURS)),
            "width": 2,
        }
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": safe(who),
                "x": samples.seconds[::step],
                "y": values,
                "line": line,
                "hovertemplate": "%{fullData.name}<br>%{x:.3g} s: %{y:.4g}<extra></extra>",
            }
        )
        if values:
            words.append(
                f"{who}: from {significant(min(values))} to {significant(max(values))} in "
                f"{significant(samples.seconds[-1])} seconds."
            )
    room = layout(len(traces), resource, log=False)
    room["xaxis"]["title"] = {"text": "seconds"}
    return Chart(title, " ".join(words), {"data": traces, "layout": room})
