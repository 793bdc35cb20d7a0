# SPDX-License-Identifier: Apache-2.0
"""Which table is on which page, and putting them there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.figures import calls, memory, profiles, repeated, steps, tf_grpc, torch_steps
from tests.figures.rows import ABOUT, MB, STEADY, Line, Rows, about, measured, table, times, wrapped
from tests.figures.sets import ROOT, file_of, load, runs_of

from tensorwire.bench.harness.report import duration
from tensorwire.bench.harness.rows import Row


def home() -> str:
    rows, variables = Rows(load("rpc")), Rows(load("tensorflow"))

    def line(label: str, size: int) -> Line:
        row = calls.call(rows, "shm", "request", size)
        if row is None:
            return [label, ""]
        return [label, time(row, calls.call(rows, "grpcio", "request", size))]

    def time(row: Row, stock: Row | None) -> str:
        return f"{duration(measured(row.p50_us))}, {about(times(row.ratio, bold=True), row, stock)}"

    row, stock = (steps.step(variables, way, "tensor", 64 * MB) for way in ("shm", "grpc"))
    return table(
        ["", "over shared memory, against gRPC"],
        [
            line("a call of 8 bytes", 8),
            line("a request of 64 MiB, from an ordinary array", 64 * MB),
            [
                "a TensorFlow variable of 64 MiB, read by another process",
                time(row, stock) if row else "",
            ],
        ],
    )


_ROUGH: Final = (
    f"{ABOUT.title()}: the rounds of one of the two were apart by more than {STEADY:.0%} of their "
    "median."
)


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _busy(names: Sequence[str], folder: str) -> str:
    """Of which sets the host was not quiet, as their files tell."""
    runs = [run for name in names for run in runs_of(name)]
    noisy = sum(bool(run.noise) for run in runs)
    if not noisy:
        return ""
    which = "the run" if len(runs) == 1 else f"{noisy} of the {len(runs)} runs"
    how = f"{folder.removesuffix('benchmarks')}benchmarks.md#the-environment"
    return (
        f" The speed of the machine itself changed in {which} ([how that is found out]({how})): "
        "compare the columns."
    )


class Table(NamedTuple):
    """A table or a sentence, on a page between ``<!-- figures: NAME -->`` and
    ``<!-- end of figures -->``. sets: of which it is made; none, where it is made of the recorded
    messages."""

    name: str
    page: str
    sets: Sequence[str]
    render: Callable[[], str]

    @property
    def measured(self) -> bool:
        """Whether there is a file of each set. Without, the page keeps what was written there."""
        if not self.sets:
            return profiles.file().exists()
        return all(file_of(name).exists() for name in self.sets)

    @property
    def text(self) -> str:
        if not self.sets:
            return f"{self.render()}\n"
        folder = "benchmarks" if self.page.startswith("docs/") else "docs/benchmarks"
        files: dict[str, list[str]] = {}
        for name in self.sets:
            (cpu,) = {each.environment["cpu"] for each in load(name)}
            files.setdefault(cpu, []).append(f"[{name}.json]({folder}/{name}.json)")
        links = ", and ".join(f"{_listed(of)} ({cpu})" for cpu, of in files.items())
        text = self.render()
        rough = f" {_ROUGH}" if re.search(rf"\b{ABOUT} [*0-9]", text) else ""
        return f"{text}\n\n{wrapped(f'Made from {links}.{rough}{_busy(self.sets, folder)}')}\n"


TABLES: Final = (
    Table("steps", "README.md", ["tensorflow"], steps.readme_steps),
    Table("many", "README.md", ["many"], steps.readme_many),
    Table("trained", "README.md", ["training"], steps.readme_training),
    Table("calls", "README.md", ["rpc", "bytes"], calls.readme_calls),
    Table("others", "README.md", ["rpc"], calls.readme_others),
    Table("memory", "README.md", ["collectives", "remote", "weights", "queue"], memory.readme),
    Table("steps", "CHANGELOG.md", ["tensorflow"], steps.readme_steps),
    Table("calls", "CHANGELOG.md", ["rpc", "bytes"], calls.readme_calls),
    Table("memory", "CHANGELOG.md", ["collectives", "remote", "weights", "queue"], memory.readme),
    Table("home", "docs/index.md", ["rpc", "tensorflow"], home),
    Table("calls", "docs/figures.md", ["rpc"], calls.calls),
    Table("sizes", "docs/figures.md", ["sizes"], calls.sizes),
    Table("peers", "docs/figures.md", ["peers"], calls.more_peers),
    Table("tf_grpc", "docs/figures.md", ["tf-grpc", "mimic"], tf_grpc.benchmarks),
    Table("steps", "docs/figures.md", ["tensorflow"], steps.steps),
    Table("training", "docs/figures.md", ["training"], steps.training),
    Table("collectives", "docs/figures.md", ["collectives", "types"], memory.collectives),
    Table("remote", "docs/figures.md", ["remote"], memory.remote),
    Table("weights", "docs/figures.md", ["weights"], memory.weights),
    Table("first", "docs/figures.md", ["first"], memory.first),
    Table("repeated", "docs/report.md", ["repeated"], repeated.rows),
    Table("requests", "docs/comparison.md", ["rpc"], calls.comparison),
    Table("bytes", "docs/benchmarks.md", ["bytes"], calls.ready_bytes),
    Table("large", "docs/protobuf.md", ["protobuf"], calls.protobuf_large),
    Table("others", "docs/protobuf.md", ["protobuf"], calls.protobuf_others),
    Table("steps", "docs/pytorch.md", ["torch"], torch_steps.steps),
    Table("steps", "docs/tensorflow.md", ["tensorflow"], steps.guide_steps),
    Table("training", "docs/tensorflow.md", ["training"], steps.guide_training),
    Table("many", "docs/tensorflow.md", ["many"], steps.many),
    Table("plans", "docs/tensorflow.md", ["plans"], steps.plans),
    Table("recorded", "docs/profile.md", [], profiles.classes),
    Table("bands", "docs/profile.md", [], profiles.bands),
    Table("largest", "docs/profile.md", [], profiles.largest),
)


def place(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"(<!-- figures: {name} -->\n\n)(.*?)(\n<!-- end of figures -->\n)", re.DOTALL
    )


def write(root: Path = ROOT) -> list[str]:
    """Puts the tables of all sets that have files into their pages, and returns which.

    Raises ValueError where a page has no place for its table.
    """
    written = []
    for each in TABLES:
        if not each.measured:
            continue
        page = root / each.page
        text = page.read_text()
        found = place(each.name).search(text)
        if found is None:
            raise ValueError(f"{each.page} has no place for the figures {each.name!r}")
        page.write_text(text[: found.start(2)] + each.text + text[found.end(2) :])
        written.append(f"{each.page}: {each.name}")
    return written
