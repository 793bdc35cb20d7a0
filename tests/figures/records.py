# SPDX-License-Identifier: Apache-2.0
"""The page of each set, with all that its file has, its pictures, and the page of all sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from tests.figures import sets
from tests.figures.rows import table, wrapped
from tests.figures.sets import SETS, file_of, kept, outdated, runs_of

from tensorwire.bench.harness.report import host, plot
from tensorwire.bench.harness.rows import Report
from tensorwire.bench.report import tables
from tensorwire.bench.report.leads import Leads, leads
from tensorwire.bench.report.runs import Run

MAKE: Final = "make benchmarks"


def pages() -> Iterator[tuple[Path, str]]:
    """Each page with its text."""
    yield sets.FOLDER / "index.md", _index()
    for name in SETS:
        if file_of(name).exists():
            yield sets.FOLDER / f"{name}.md", _page(name)


def write() -> list[str]:
    """Writes all pages and pictures anew, and returns which pages."""
    sets.FOLDER.mkdir(parents=True, exist_ok=True)
    for old in sets.FOLDER.glob("*.png"):
        old.unlink()
    for name in SETS:
        for place, each in enumerate(kept(name)):
            _draw(Report.from_json(each["report"]), _picture(name, place))
    written = []
    for path, text in pages():
        path.write_text(text)
        written.append(f"{path.name}: all figures")
    return written


def _picture(name: str, place: int) -> Path:
    return sets.FOLDER / f"{name}-{place + 1}.png"


def _draw(report: Report, path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"savefig.dpi": 60}):
        _plots().get(report.suite, plot)(report, path)


def _plots() -> Mapping[str, Callable[[Report, Path], None]]:
    """Of suites whose figures have a picture of their own."""
    from tensorwire.bench.suites.channels import suite as channels
    from tensorwire.bench.suites.tf_grpc import suite as tf_grpc
    from tensorwire.bench.suites.train import compare

    return {
        **dict.fromkeys(tf_grpc.BENCHMARKS, tf_grpc.plot),
        "channels": channels.plot,
        "train": compare.draw,
    }


def minutes_of_all() -> int:
    """That measuring all sets is planned to take."""
    return round(sum(each.seconds for each in SETS.values() if not each.apart) / 60)


def minutes_of_headline() -> int:
    return round(sum(each.seconds for each in SETS.values() if each.headline) / 60)


def took_in_all() -> int:
    """Seconds that it took to measure what is kept."""
    found = [kept(name) for name, each in SETS.items() if not each.apart]
    return sum(each.get("seconds", 0) for of in found for each in of)


def _index() -> str:
    there = [name for name in SETS if file_of(name).exists()]
    lines = [_line(name) for name in SETS]
    apart = [name for name, each in SETS.items() if each.apart]
    first = [name for name, each in SETS.items() if each.headline]
    about = (
        "All that was measured for these pages, with the files that it is kept in: every row, who "
        "is ahead of ours, the host, and how quiet it was. [Figures](../figures.md) is the short "
        "form, and [Benchmarks](../benchmarks.md) tells how it is measured."
    )
    how = (
        f"`{MAKE}` measures all but {', '.join(apart)} again in about {minutes_of_all()} "
        f"minutes, `{MAKE} ARGS=--headline` only {', '.join(first)} in about "
        f'{minutes_of_headline()}, and `{MAKE} ARGS="sizes queue"` those sets. What is here took '
        f"{took_in_all() / 60:.0f} minutes. Nothing else may run on the machine meanwhile. "
        "Ctrl-C ends it, and what has been measured stays. `ARGS=--pages-only` makes the pages "
        "anew from the files, and `ARGS=--list` shows the commands."
    )
    contents = "\n".join(there)
    return "\n".join(
        [
            "# All figures\n",
            f"{wrapped(about)}\n",
            table(
                ["set", "measured", "commit", "took", "rows", "others ahead", "host not quiet"],
                lines,
            ),
            f"\n{wrapped(how)}\n",
            f"```{{toctree}}\n:hidden:\n\n{contents}\n```\n",
        ]
    )


def _line(name: str) -> list[str]:
    if not file_of(name).exists():
        return [SETS[name].title, "not yet", "", f"about {SETS[name].seconds} s", "", "", ""]
    runs = runs_of(name)
    found = [leads(run.measured) for run in runs]
    compared = sum(each.compared for each in found)
    return [
        f"[{SETS[name].title}]({name}.md)",
        ", ".join(dict.fromkeys(run.told.time[:10] for run in runs)),
        ", ".join(dict.fromkeys(_commit(run) for run in runs)),
        _took(kept(name)),
        str(sum(len(run.measured) for run in runs)),
        f"{sum(len(each.peers) for each in found)} of {compared}" if compared else "",
        f"in {noisy} of {len(runs)} runs"
        if (noisy := sum(bool(run.noise) for run in runs))
        else "",
    ]


def _commit(run: Run) -> str:
    commit, dirty, _ = str(run.report.environment.get("commit", "")).partition("-dirty")
    return commit[:12] + dirty


def _took(found: list[dict[str, Any]]) -> str:
    if not all("seconds" in each for each in found):
        return ""
    return f"{sum(each['seconds'] for each in found)} s"


def _page(name: str) -> str:
    made = SETS[name]
    parts = [f"# {made.title}\n", f"{wrapped(made.about)}\n"]
    parts.append(
        wrapped(
            f"Made from [{name}.json]({name}.json) by `{MAKE} ARGS={name}`. "
            "[Benchmarks](../benchmarks.md) tells what the columns are."
        )
        + "\n"
    )
    if missing := outdated(name):
        text = "The list of commands has others by now, which were not measured yet:"
        parts += [f"{text}\n", *_code(missing)]
    if len(runs := runs_of(name)) > 1:
        found = _titles(runs)
        parts += [*(f"- [{each}](#{_anchor(each)})" for each in found), ""]
    for place, run in enumerate(runs):
        title = _titles(runs)[place] if len(runs) > 1 else ""
        parts += _run(run, _picture(name, place).name, title)
    return "\n".join(parts)


def _code(commands: list[str]) -> list[str]:
    return ["```sh", *commands, "```\n"]


def _titles(runs: list[Run]) -> list[str]:
    """Of several on a page: what not all of their commands have, options with their values, the
    first ones where they are many."""
    every = [_parts(run.command) for run in runs]
    common = set(every[0]).intersection(*every)
    titles = [" ".join(part for part in parts if part not in common) for parts in every]
    plain = [title.replace("--", "").replace("_", " ") for title in titles]
    return [shorten(title, 90, placeholder="") or "as it is" for title in plain]


def _parts(command: str) -> list[str]:
    """Options with their values, and other words."""
    found: list[str] = []
    for word in command.split():
        if found and found[-1].startswith("--") and " " not in found[-1] and word[:2] != "--":
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-")


def _run(run: Run, picture: str, title: str) -> Iterator[str]:
    """title: where there are several on a page."""
    level = "##"
    if title:
        yield f"## {title}\n"
        level = "###"
    yield from _code([run.command])
    for text in tables.summary(run):
        yield f"{wrapped(text)}\n"
    yield f"{wrapped(_where(run))}\n"
    yield f"![{_alt(run, title)}]({picture})\n"
    for note in run.told.notes:
        yield wrapped(f"- {' '.join(note.split())}", "  ")
    if run.told.notes:
        yield ""
    yield from _ahead(leads(run.measured), level)
    for make in tables.SPECIAL:
        if (special := make(run)) is not None:
            yield f"{level} {special.title}\n"
            yield f"{wrapped(special.about)}\n"
            yield f"{_markdown(special)}\n"
    yield f"{level} All rows\n"
    yield f"{_markdown(tables.of_rows(run))}\n"


def _where(run: Run) -> str:
    environment = run.report.environment
    if "kernel" not in environment:
        return "The run, of an older version, does not tell where it was made."
    return f"{host(environment)} Commit: {_commit(run) or 'not told'}."


def _alt(run: Run, title: str) -> str:
    about = f"{run.report.suite}, {title}" if title else run.report.suite
    return f"The figures of {about}, of the table of all rows below."


def _ahead(found: Leads, level: str) -> Iterator[str]:
    if not found.compared and not found.limits:
        return
    yield f"{level} Where others are ahead\n"
    yield f"{wrapped(tables.ahead(found))}\n"
    for title, each in (("Other libraries", found.peers), ("Limits", found.limits)):
        if each:
            yield f"{title} that are ahead:\n"
            yield f"{_markdown(tables.of_leads(title, each))}\n"


def _markdown(found: tables.Table) -> str:
    return table(
        [cell.replace("|", "\\|") for cell in found.head],
        [[cell.replace("|", "\\|") for cell in row] for row in found.rows],
    )
