# SPDX-License-Identifier: Apache-2.0
"""Runs that were kept as JSON. Anybody may have written the file, so that all of it is checked, and
no more is read than a run can be."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from tensorwire.bench.harness.contenders import Role
from tensorwire.bench.harness.measure import LEAST_FOR_P99
from tensorwire.bench.harness.noise import verdict
from tensorwire.bench.harness.report import ordered
from tensorwire.bench.harness.rows import Figure, Report, Row
from tensorwire.bench.harness.work import Work

MAX_BYTES: Final = 64 << 20
"""Of a file."""
MAX_ROWS: Final = 5000
"""Of a run."""
MAX_TEXT: Final = 500
"""Characters of a name. Notes may have ten times as many."""
MAX_TOLD: Final = 500
"""Things that an environment tells."""
MAX_NUMBER: Final = 1e18
_UNPRINTABLE: Final = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F)}
    | {*range(0x2066, 0x206A), *range(0xD800, 0xE000)} - {ord("\n"), ord("\t")},
    "\N{REPLACEMENT CHARACTER}",
)


class Loop(msgspec.Struct, frozen=True):
    """One of the loops of ``noise.check``."""

    median_us: float
    spread: float


class Told(msgspec.Struct, frozen=True):
    """What is used of an environment; runs of older versions have less of it."""

    time: str = ""
    notes: list[str] = []
    interrupted: bool = False
    roles: dict[str, Role] = {}
    noise: dict[str, dict[str, Loop] | None] = {}


class Rounds(msgspec.Struct, frozen=True):
    """What a row's medians are of: a figure of each round; empty where that was not kept. timed: of
    how many times the quantiles are."""

    p50_us: list[float] = []
    p99_us: list[float] = []
    calls_per_s: list[float] = []
    items_per_s: list[float] = []
    timed: list[int] = []


class Samples(msgspec.Struct, frozen=True):
    """Resources over time while a contender ran. seconds: since its first sample; figures: of each
    resource, whose name has the unit, a value for each of those."""

    contender: str
    seconds: list[float]
    figures: dict[str, list[float]]
    transport: str = ""
    case: str = ""


class _More(msgspec.Struct, frozen=True):
    serialization_us: float = 0.0
    efficiency: float | None = None
    bus_gb_per_s: float | None = None
    samples_us: list[list[float]] = []


class _Details(msgspec.Struct, frozen=True):
    rounds: list[Rounds] = []
    rows: list[_More] = []
    samples: list[Samples] = []
    figure: Figure = "p50_us"
    as_others: dict[str, str] = {}


@dataclass(frozen=True)
class Measured:
    """A row, whose it is, and its rounds. serializers: microseconds of a call that the caller spent
    in them. efficiency: of a training, its speed by that of as many ranks that do not communicate;
    None where that was not measured. bus: of a collective, its bus bandwidth as of
    nccl-tests, 10^9 bytes in a second. samples_us: of each round, times of single calls; empty
    where they were not kept. figure: by which it is compared, if it has one caller and no images.
    as_others: of ours, the case of others that it begins and ends with, by another name; empty
    where names tell that.

    The row has no p99 where a round has fewer times than one of which that could be told."""

    row: Row
    role: Role
    rounds: Rounds = field(default_factory=Rounds)
    serializers: float = 0.0
    efficiency: float | None = None
    bus: float | None = None
    samples_us: Sequence[Sequence[float]] = ()
    figure: Figure = "p50_us"
    as_others: str = ""

    @property
    def work(self) -> Work:
        return self.row.work

    @property
    def comparable(self) -> Hashable:
        """Equal for what may be divided by each other."""
        case = self.as_others or self.work.case
        return replace(self.work, case=case).comparable

    @property
    def announced(self) -> bool:
        return self.row.announced


@dataclass(frozen=True)
class Run:
    """source: the file; command: that made the run, where that was kept with it. measured: by case
    and size, the baseline first."""

    source: str
    command: str
    report: Report
    told: Told
    measured: list[Measured]
    samples: list[Samples]

    @property
    def has_rounds(self) -> bool:
        return self.rounds > 0

    @property
    def noise(self) -> str:
        """A sentence where its host was not quiet."""
        before, after = (
            {name: (each.median_us, each.spread) for name, each in (loops or {}).items()}
            for loops in (self.told.noise.get("before"), self.told.noise.get("after"))
        )
        return verdict(before, after)

    @property
    def rounds(self) -> int:
        """How many there were, of the rows with the most; 0 where they were not kept."""
        return max(
            (
                len(getattr(each.rounds, name))
                for each in self.measured
                for name in Rounds.__struct_fields__
            ),
            default=0,
        )


def read(path: Path) -> list[Run]:
    """The runs of a file: of ``--output`` one; of a list of objects with ``command`` and ``report``
    one for each. Raises ValueError, which names the file, for one that cannot be shown."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror})") from None
    try:
        return parse(text, str(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse(text: bytes, source: str) -> list[Run]:
    """What is no number (a loss that became NaN) is None. Raises ValueError for what is no report,
    or a larger one than can be shown."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB: a run is smaller")
    try:
        found = _printable(json.loads(text, parse_constant=lambda name: None))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no JSON: {error}") from None
    kept = found if isinstance(found, list) else [{"command": "", "report": found}]
    if not kept:
        raise ValueError("the list is empty: there is no run in it")
    return [_run(each, source) for each in kept]


def _printable(found: Any) -> Any:
    """The same without characters that would change how others are shown: control characters,
    overrides of the direction of writing, and halves of surrogate pairs."""
    if isinstance(found, str):
        return found.translate(_UNPRINTABLE)
    if isinstance(found, list):
        return [_printable(each) for each in found]
    if isinstance(found, dict):
        return {_printable(name): _printable(each) for name, each in found.items()}
    return found


def _run(kept: Any, source: str) -> Run:
    written = kept.get("report") if isinstance(kept, dict) else None
    if not isinstance(written, dict) or "schema" not in written:
        raise ValueError(
            "this is no report: give a file that tensorwire bench --output or tensorwire train "
            "--compare --output wrote"
        )
    command = kept.get("command", "")
    if not isinstance(command, str):
        raise ValueError("the command is no text")
    report = Report.from_json(written)
    _check(report)
    try:
        told = msgspec.convert(report.environment, Told)
        details = msgspec.convert(report.details, _Details)
    except msgspec.ValidationError as error:
        raise ValueError(f"this is no report: {error}") from None
    rounds: Sequence[Rounds] = details.rounds or [Rounds()] * len(report.rows)
    more: Sequence[_More] = details.rows or [_More()] * len(report.rows)
    for name, found_ in (("rounds", rounds), ("details", more)):
        if len(found_) != len(report.rows):
            raise ValueError(f"{name} of {len(found_)} rows, and there are {len(report.rows)} rows")
    for each in rounds:
        for name in each.__struct_fields__:
            _check_numbers(name, getattr(each, name))
    _check_samples(details.samples)
    for note in told.notes:
        _check_text("a note", note, 10 * MAX_TEXT)
    for loops in told.noise.values():
        for name, loop in (loops or {}).items():
            _check_text("a loop", name)
            _check_numbers(name, [loop.median_us, loop.spread])
    _check_numbers("serialization_us", [each.serialization_us for each in more])
    _check_numbers("efficiency", [each.efficiency for each in more if each.efficiency is not None])
    _check_numbers("bus_gb_per_s", [each.bus_gb_per_s for each in more if each.bus_gb_per_s])
    for times in (times for each in more for times in each.samples_us):
        _check_numbers("samples_us", times)
    found = {
        id(row): Measured(
            _with_known_quantiles(row, each),
            (role := _role(row.contender, told.roles)),
            each,
            also.serialization_us,
            also.efficiency,
            also.bus_gb_per_s,
            [times for times in also.samples_us if times],
            details.figure,
            details.as_others.get(row.case, "") if role == "own" else "",
        )
        for row, each, also in zip(report.rows, rounds, more, strict=True)
    }
    measured = [found[id(row)] for row in ordered(report.rows, report.baseline)]
    return Run(source, command[:MAX_TEXT], report, told, measured, details.samples)


def _with_known_quantiles(row: Row, rounds: Rounds) -> Row:
    """Without p99 where that would be the slowest call of a round."""
    timed = min(rounds.timed, default=row.calls // (len(rounds.p50_us) or 1))
    return row if timed >= LEAST_FOR_P99 else replace(row, p99_us=None, p99_ratio=None)


def _role(contender: str, roles: Mapping[str, Role]) -> Role:
    """Runs of older versions do not tell it: by the name then."""
    return roles.get(contender) or ("own" if "tensorwire" in contender else "peer")


def _check(report: Report) -> None:
    if len(report.rows) > MAX_ROWS:
        raise ValueError(f"{len(report.rows)} rows, and {MAX_ROWS} can be shown")
    for name in ("suite", "baseline"):
        _check_text(name, getattr(report, name))
    for row in report.rows:
        for each in fields(row):
            value = getattr(row, each.name)
            if isinstance(value, str):
                _check_text(each.name, value, 10 * MAX_TEXT if each.name == "note" else MAX_TEXT)
            elif value is not None:
                _check_numbers(each.name, [value])
        if row.callers < 1:
            raise ValueError(f"callers of a row are {row.callers}")


def _check_samples(samples: Sequence[Samples]) -> None:
    for each in samples:
        _check_numbers("seconds", each.seconds)
        for text in (each.contender, each.transport, each.case, *each.figures):
            _check_text("a name of samples", text)
        for name, values in each.figures.items():
            _check_numbers(name, values)
            if len(values) != len(each.seconds):
                raise ValueError(f"samples of {name}: {len(values)} at {len(each.seconds)} times")


def _check_text(name: str, text: str, most: int = MAX_TEXT) -> None:
    if len(text) > most:
        raise ValueError(f"{name} has {len(text)} characters: no more than {most} are shown")


def _check_numbers(name: str, values: Sequence[float]) -> None:
    for value in values:
        if not 0 <= value <= MAX_NUMBER:
            raise ValueError(f"{name} is {value!s:.20}: figures are from 0 to {MAX_NUMBER:.0e}")


def told_in_words(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each thing that an environment tells, by a dotted name; notes are told elsewhere."""
    told = {
        name: value
        for name, value in environment.items()
        if name not in ("notes", "interrupted", "roles")
    }
    each = (pair for name, value in told.items() for pair in _flat(str(name), value))
    return islice(each, MAX_TOLD)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for inner, each in value.items():
            yield from _flat(f"{name}.{inner}", each)
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))[: 4 * MAX_TEXT]
    elif isinstance(value, float):
        yield name, f"{value:.4g}"
    else:
        yield name, "" if value in (None, {}) else str(value)[: 4 * MAX_TEXT]
