# SPDX-License-Identifier: Apache-2.0
"""The page: one file, which loads nothing and runs nothing but its own two scripts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Final

from tensorwire.bench.report import charts, comparison, distribution, ratios, tables, timelines
from tensorwire.bench.report.comparison import Comparison, name_of
from tensorwire.bench.report.leads import leads
from tensorwire.bench.report.markup import Node, data, document, node, script, table
from tensorwire.bench.report.picture import Chart
from tensorwire.bench.report.printed import figure_in_words, noise_in_words
from tensorwire.bench.report.runs import Run, told_in_words
from tensorwire.bench.report.speed import figure
from tensorwire.bench.report.tables import Table

MAX_CHARTS: Final = 200
"""Of a page."""


def check() -> None:
    """Raises ValueError where the library that draws is not installed."""
    if find_spec("plotly") is None:
        raise ValueError("needs plotly: pip install 'tensorwire[report]'")


class Pictures:
    """Those of the page, in their order."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, Any]] = {}
        self.left_out = 0

    def show(self, found: Iterable[Chart], class_: str = "") -> Iterator[Node]:
        for chart in found:
            if len(self.figures) == MAX_CHARTS:
                self.left_out += 1
                continue
            name = f"picture-{len(self.figures)}"
            self.figures[name] = chart.figure
            room = f"min-height: {chart.figure['layout']['height']}px"
            drawn = node("div", id=name, role="img", aria_label=chart.words, style=room)
            yield node("figure", node("figcaption", chart.title), drawn, class_=class_)


def page(runs: Sequence[Run], limit: float = comparison.LIMIT) -> str:
    """An HTML document about all of these runs; runs of one suite in several files are compared,
    each with the first. Raises ValueError where plotly is not installed."""
    check()
    from plotly.offline import get_plotlyjs

    pictures = Pictures()
    compared = [*_compared(runs, limit)]
    parts = [
        _comparison(each, f"compared-{place}", pictures) for place, each in enumerate(compared)
    ]
    parts += [_run(each, f"run-{place}", pictures) for place, each in enumerate(runs)]
    if pictures.left_out:
        text = f"{pictures.left_out} pictures are left out; the tables have all figures."
        parts.insert(0, node("p", text))
    library, library_hash = script(get_plotlyjs())
    own, own_hash = script(_text("page.js"))
    policy = (
        f"default-src 'none'; script-src {library_hash} {own_hash}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=policy),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("title", "Benchmarks of Tensorwire"),
        node("style", _text("style.css")),
    )
    body = node(
        "body",
        _header(runs, compared),
        node("main", *parts),
        data("figures", pictures.figures),
        library,
        own,
    )
    return document(node("html", head, body, lang="en"))


def _text(name: str) -> str:
    return files("tensorwire.bench.report").joinpath(name).read_text(encoding="utf-8")


def _header(runs: Sequence[Run], compared: Sequence[Comparison]) -> Node:
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    links = [(f"compared-{place}", _title_of(each)) for place, each in enumerate(compared)]
    links += [(f"run-{place}", _title(each)) for place, each in enumerate(runs)]
    return node(
        "header",
        node("h1", "Benchmarks of Tensorwire"),
        node("p", f"Made by tensorwire {version('tensorwire')} at {made}.", class_="quiet"),
        node(
            "nav",
            node("ul", *(node("li", node("a", title, href=f"#{name}")) for name, title in links)),
            aria_label="Contents",
        ),
        node(
            "noscript",
            node("p", "The pictures need JavaScript; the tables have all of their figures."),
        ),
    )


def _title(run: Run) -> str:
    return f"{run.report.suite}: {run.command or run.source}"


def _title_of(found: Comparison) -> str:
    return f"{found.after.report.suite}: {found.after.source} against {found.before.source}"


def _compared(runs: Sequence[Run], limit: float) -> Iterator[Comparison]:
    """Each run with the first one of another file that has rows in common with it."""
    for place, after in enumerate(runs):
        for before in runs[:place]:
            if before.source == after.source or before.report.suite != after.report.suite:
                continue
            try:
                yield comparison.compare(before, after, limit)
            except ValueError:
                continue  # no row in common
            break


def _run(run: Run, name: str, pictures: Pictures) -> Node:
    parts: list[Node | None] = [
        node("h2", _title(run)),
        *(node("p", text) for text in tables.summary(run)),
        _leads(run),
    ]
    for metric in charts.METRICS:
        shown = [*pictures.show(charts.draw(run, metric))]
        if shown:
            parts += [node("h3", metric.title), node("div", *shown, class_="pictures")]
    if run.has_rounds:
        parts.append(node("p", "Bars at the marks go from the least round to the largest."))
    if any(each.announced for each in run.measured):
        parts.append(node("p", charts.HOW_ANNOUNCED))
    if (spread := distribution.table(run)) is not None:
        shown = [*pictures.show(distribution.draw(run))]
        parts += [node("h3", spread.title), node("div", *shown, class_="pictures")]
        parts += [node("p", spread.about), _table(spread)]
    if shown := [*pictures.show(timelines.draw(run))]:
        parts += [node("h3", "Resources over time"), node("div", *shown, class_="pictures")]
    for special in (make(run) for make in tables.SPECIAL):
        if special is not None:
            parts += [node("h3", special.title), node("p", special.about), _table(special)]
    if run.measured:
        parts += [node("h3", "All rows"), _table(tables.of_rows(run))]
    notes = run.told.notes
    if notes:
        parts += [node("h3", "Notes"), node("ul", *(node("li", note) for note in notes))]
    told = [
        each
        for key, value in told_in_words(run.report.environment)
        for each in (node("dt", key), node("dd", value))
    ]
    parts += [node("h3", "Where it was measured"), node("dl", *told)]
    return node("section", *parts, id=name)


def _leads(run: Run) -> Node | None:
    found = leads(run.measured)
    if not found.compared and not found.limits:
        return None
    parts: list[Node | None] = [
        node("h3", "Where others are ahead"),
        node("p", tables.ahead(found)),
    ]
    if found.peers:
        parts.append(_table(tables.of_leads("Other libraries that are ahead", found.peers)))
    if found.limits:
        text = "Limits show what the host can do without a library. These are ahead:"
        parts += [
            node("p", text),
            _table(tables.of_leads("Limits that are ahead", found.limits)),
        ]
    return node("section", *parts)


def _table(found: Table) -> Node:
    return table(found.title, found.head, found.rows, found.texts)


def _comparison(found: Comparison, name: str, pictures: Pictures) -> Node:
    slower = len(found.regressions)
    text = f"{len(found.changes)} rows are in both runs. "
    text += f"{slower} of ours became slower" if slower else "None of ours became slower"
    text += (
        f" by more than {max(found.limit, found.moved):.0%} and than noise: an interval of 95 % by "
        "the bootstrap over rounds, or where there are fewer than five rounds their spread."
    )
    rows = [
        [
            name_of(each.after),
            figure_in_words(each.before, figure(each.after) or "p50_us"),
            figure_in_words(each.after, figure(each.after) or "p50_us"),
            f"{each.ratio.value:.2f}x",
            noise_in_words(each.ratio),
            each.verdict,
        ]
        for each in found.changes
    ]
    missing = [
        node("p", f"{word}: " + "; ".join(map(name_of, rows_)) + ".")
        for word, rows_ in (("Only before", found.gone), ("Only after", found.new))
        if rows_
    ]
    return node(
        "section",
        node("h2", _title_of(found)),
        node("p", text),
        node("ul", *(node("li", note) for note in found.notes)) if found.notes else None,
        *pictures.show([ratios.draw(found)], "all"),
        table(
            "Rows of both runs",
            ["row", "before", "after", "times faster", "interval or noise", "verdict"],
            rows,
        ),
        *missing,
        id=name,
    )
