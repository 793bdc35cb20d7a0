# SPDX-License-Identifier: Apache-2.0
"""Two runs of the same suite, row by row: what became slower, by more than its noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tensorwire.bench.harness.measure import quantile
from tensorwire.bench.harness.noise import DRIFT
from tensorwire.bench.harness.work import format_size
from tensorwire.bench.report.runs import Measured, Run, told_in_words
from tensorwire.bench.report.speed import Ratio, figure, ratio

LIMIT: Final = 0.05
"""A change by less is none."""
LEAST_OTHERS: Final = 3
"""Of fewer rows of others nothing is known of noise between runs."""
MOST_MOVED: Final = 0.25
"""However much others moved, a change of ours by more is one: a host that moves more tells nothing,
and should not hide anything."""

Verdict = Literal["slower", "faster", "same", "unknown"]
Key = tuple[str, str, str, int, str, str, bool, int]


@dataclass(frozen=True)
class Change:
    """A row of both runs. ratio: how many times faster it became."""

    before: Measured
    after: Measured
    ratio: Ratio
    verdict: Verdict

    @property
    def contender(self) -> str:
        return self.after.row.contender


@dataclass(frozen=True)
class Comparison:
    """moved: by how much rows of others, which do not change, became faster or slower between the
    runs, three in four by less; a change of ours by less is none, up to ``MOST_MOVED``.
    changes: of rows in both; gone, new: rows in one of them; notes: what a reader of the ratios has
    to know."""

    before: Run
    after: Run
    limit: float
    moved: float
    changes: list[Change]
    gone: list[Measured]
    new: list[Measured]
    notes: list[str]

    @property
    def regressions(self) -> list[Change]:
        """Rows of ours. Those of others tell of the host."""
        return [
            each for each in self.changes if each.verdict == "slower" and each.after.role == "own"
        ]

    @property
    def missing(self) -> list[Measured]:
        """Rows of ours that are gone, of works that the other run measured with others; these have
        no published memory, and do the same from ordinary memory."""
        others = (each for each in self.after.measured if each.role != "own")
        measured = {each.comparable for each in others}
        return [each for each in self.gone if each.role == "own" and each.comparable in measured]

    @property
    def undecided(self) -> list[Change]:
        """Rows whose noise is not known."""
        return [each for each in self.changes if each.verdict == "unknown"]

    def to_json(self) -> dict[str, Any]:
        return {
            "before": self.before.source,
            "after": self.after.source,
            "limit": self.limit,
            "moved": self.moved,
            "regressions": len(self.regressions),
            "missing": len(self.missing),
            "rows": [_change_to_json(each) for each in self.changes],
            "gone": [_name_to_json(each) for each in self.gone],
            "new": [_name_to_json(each) for each in self.new],
            "notes": self.notes,
        }


def compare(before: Run, after: Run, limit: float = LIMIT) -> Comparison:
    """Raises ValueError where the two have no row in common."""
    if before.report.suite != after.report.suite:
        raise ValueError(
            f"{before.source} is of the suite {before.report.suite}, {after.source} of "
            f"{after.report.suite}: compare runs of one suite"
        )
    old, new = _by_key(before), _by_key(after)
    pairs = [
        (old[key], each, by)
        for key, each in new.items()
        if key in old and (by := ratio(each, old[key], paired=False)) is not None
    ]
    same = _versions(before) == _versions(after)
    others = [by for _, each, by in pairs if each.role != "own"]
    moved = _moved(others) if same else 0.0
    changes = [Change(*pair, verdict(pair[2], max(limit, moved))) for pair in pairs]
    if not changes:
        raise ValueError(
            f"{before.source} and {after.source} have no row in common: compare runs with the same "
            "cases and sizes"
        )
    gone = [each for key, each in old.items() if key not in new]
    fresh = [each for key, each in new.items() if key not in old]
    notes = [*_notes(before, after)]
    if moved > limit:
        notes.insert(
            0,
            "Rows of others, which do not change, became faster or slower by up to "
            f"{moved:.0%}, three in four of them{', or by more' * (moved == MOST_MOVED)}: a change "
            "by less is none.",
        )
    if not same and len(others) >= LEAST_OTHERS:
        notes.insert(0, "Others are of other versions, so that they tell no noise between runs.")
    return Comparison(before, after, limit, moved, changes, gone, fresh, notes)


def _moved(others: Sequence[Ratio]) -> float:
    """Noise between runs, which no interval over the rounds of a run knows: what the scheduler and
    the rest of the host did, to rows that are the same in both."""
    if len(others) < LEAST_OTHERS:
        return 0.0
    moved = quantile(sorted(max(by.value, 1 / by.value) - 1 for by in others), 0.75)
    return min(moved, MOST_MOVED)


def _versions(run: Run) -> dict[str, Any]:
    """Of all that is not ours."""
    found = run.report.environment.get("versions")
    told: dict[str, Any] = found if isinstance(found, dict) else {}
    return {name: each for name, each in told.items() if name != "tensorwire"}


def verdict(by: Ratio, limit: float) -> Verdict:
    """A change is one when it is larger than the limit and than the noise of the row."""
    if by.beyond_noise is None:
        return "unknown"
    if by.beyond_noise and by.value < 1 / (1 + limit):
        return "slower"
    return "faster" if by.beyond_noise and by.value > 1 + limit else "same"


def parse_limit(text: str) -> float:
    """A part of the time, from ``5%`` or ``0.05``. Raises ValueError."""
    digits = text.strip().removesuffix("%")
    try:
        found = float(digits) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found < 10:
        raise ValueError(f"{text!r} is no limit: write 5% or 0.05")
    return found


def name_of(measured: Measured) -> str:
    """What a row is, in words that only it has."""
    row = measured.row
    words = [row.contender, row.transport, row.case, format_size(row.size)]
    words += [row.payload] if row.payload not in ("array", "tensor") else []
    words += [row.origin] if row.origin != "ordinary" else []
    words += ["read"] if row.reads else []
    return " ".join(words) + (f" x{row.callers}" if row.callers > 1 else "")


def key(measured: Measured) -> Key:
    row = measured.row
    return (
        *(row.contender, row.transport, row.case, row.size),
        *(row.payload, row.origin, row.reads, row.callers),
    )


def _by_key(run: Run) -> dict[Key, Measured]:
    return {key(each): each for each in run.measured}


def _notes(before: Run, after: Run) -> Iterator[str]:
    for run in (before, after):
        if not run.has_rounds:
            yield f"{run.source} has no rounds: there are no intervals, and noise is the spread."
        if run.told.interrupted:
            yield f"{run.source} was interrupted: its rows are of fewer rounds."
        if run.noise:
            yield f"{run.source}: {run.noise}"
    old, new = (
        dict(told_in_words(before.report.environment)),
        dict(told_in_words(after.report.environment)),
    )
    for loop, now in (after.told.noise.get("before") or {}).items():
        was = (before.told.noise.get("before") or {}).get(loop)
        if was and was.median_us and abs(now.median_us / was.median_us - 1) > DRIFT:
            yield (
                f"The host's own loop ({loop}) takes {now.median_us / was.median_us:.2f}x as long "
                f"before {after.source}: times of the two say little."
            )
    for name in dict.fromkeys((*old, *new)):
        if name.startswith(("time", "load_average", "noise")) or old.get(name) == new.get(name):
            continue
        yield f"{name} was {_told(old, name)}, and is {_told(new, name)}."


def _told(told: Mapping[str, str], name: str) -> str:
    return told.get(name) or "not told"


def _name_to_json(measured: Measured) -> dict[str, Any]:
    row = measured.row
    names = ("contender", "transport", *("case", "size", "payload", "origin", "reads", "callers"))
    return {name: getattr(row, name) for name in names}


def _change_to_json(change: Change) -> dict[str, Any]:
    by, name = change.ratio, figure(change.after)
    assert name is not None
    return {
        **_name_to_json(change.after),
        "figure": name,
        "before": getattr(change.before.row, name),
        "after": getattr(change.after.row, name),
        "ratio": by.value,
        "low": by.low,
        "high": by.high,
        "noise": by.noise,
        "verdict": change.verdict,
    }
