# SPDX-License-Identifier: Apache-2.0
"""The Python examples of README.md and docs/ run, each page in a namespace of its own.

``<!-- needs: module -->`` on the line before a block skips it where the module is not installed;
``<!-- file: name.py -->`` makes it a file of a program, which runs in processes of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import typer

from tensorwire import cli
from tensorwire.cli.group import Group
from tensorwire.launch import free_ports

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("README.md"), *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^( *)(`{3,})(.*)$")
MARK = re.compile(r"^ *<!-- (needs|file): ([\w.]+) -->$")
# A run takes a free port instead: another run may be on at the same time.
FIXED_PORT = re.compile(r"(?<=start_http_server\()\d+(?=\))")


class Block(NamedTuple):
    line: int
    """Of its first line of code, from 0."""
    code: str
    needs: str | None
    file: str | None


def blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        opening = FENCE.match(lines[at])
        at += 1
        if opening is None:
            continue
        indent, ticks, language = opening.groups()
        start = at
        while lines[at].strip() != ticks:
            at += 1
        if language.strip() == "python":
            mark = MARK.match(lines[start - 2]) if start >= 2 else None
            kind, value = mark.groups() if mark else (None, None)
            code = "\n".join(line.removeprefix(indent) for line in lines[start:at])
            yield Block(
                start,
                code,
                value if kind == "needs" else None,
                value if kind == "file" else None,
            )
        at += 1


def run(page: Path) -> int:
    """The number of blocks that ran."""
    module = ModuleType("example")
    ran = 0
    sys.modules[module.__name__] = module
    try:
        for block in blocks(page.read_text()):
            if block.file:
                continue
            if block.needs and importlib.util.find_spec(block.needs) is None:
                continue
            # Leading newlines make tracebacks point into the page.
            source = "\n" * block.line + FIXED_PORT.sub("0", block.code)
            code = compile(source, str(page), "exec")
            exec(code, vars(module))
            ran += 1
    finally:
        del sys.modules[module.__name__]
    return ran


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(not block.file for block in blocks(page.read_text()))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_examples_run(page: Path) -> None:
    assert run(page)


@pytest.mark.parametrize(
    ("tutorial", "clients"),
    [
        ("model_server", [["client.py"]]),
        ("parameter_server", [["worker.py", "0"], ["worker.py", "1"]]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_programs_of_tutorials(tutorial: str, clients: list[list[str]], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorials" / f"{tutorial}.md").read_text()
    port = str(free_ports(1)[0])
    for block in blocks(page):
        assert block.file
        (tmp_path / block.file).write_text(block.code.replace("50051", port))

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True)

    with start("server.py") as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"serving at 127.0.0.1:{port}\n"
            running = [start(*arguments) for arguments in clients]
            printed = [client.communicate()[0] for client in running]
        finally:
            server.kill()
    assert [client.returncode for client in running] == [0] * len(clients)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert "".join(printed) == shown
    run_it = page[page.index("## Run it") : page.index("```text")]
    assert all(f"python {' '.join(arguments)}" in run_it for arguments in clients)


SAVED = re.compile(r"Save this as `([\w.]+)`[^`]*```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STARTED = re.compile(r"^```sh\n(folder=.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("page", "needs"), [("collectives", "numpy"), ("graph", "torch")])
def test_programs_that_meet_in_a_folder(page: str, needs: str, tmp_path: Path) -> None:
    """Started as the page does it."""
    pytest.importorskip(needs)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for block in blocks(text):
        if block.file:
            (tmp_path / block.file).write_text(block.code)
    for name, code in SAVED.findall(text):
        (tmp_path / name).write_text(code)
    (commands,) = STARTED.findall(text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path)}
    started = ["bash", "-e", "-c", commands]
    done = subprocess.run(
        started, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, "")


SOURCES = [
    source
    for folder, suffixes in (("core", (".cc", ".h")), ("src", (".py", ".cc", ".h")))
    for source in sorted((ROOT / folder).rglob("*"))
    if source.suffix in suffixes and not {"test", "fuzz"} & set(source.parts)
]


def messages_of(page: str) -> list[str]:
    """What is quoted as a message: `…` stands in it for what differs."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    if page != "troubleshooting":
        prose = re.sub("```.*?```", "", text, flags=re.DOTALL)
        found = re.findall("`([^`]*)`", re.sub(r"\s+", " ", prose))
        return [span for span in found if "…" in span and " " in span]
    rows = [row for row in text.splitlines() if row.startswith("| ") and "gRPC's own" not in row]
    found = [span for row in rows for span in re.findall("`([^`]*)`", row.split("|")[1])]
    return [span for span in found if " " in span]


@pytest.mark.parametrize(
    ("page", "least"), [("troubleshooting", 50), ("deployment", 5), ("stability", 2)]
)
def test_messages_are_those_of_the_code(page: str, least: int) -> None:
    code = "".join(source.read_text() for source in SOURCES)
    code = re.sub(r"\"\s+f?\"", "", code).replace('\\"', '"')
    messages = messages_of(page)
    assert len(messages) >= least
    absent = [
        (message, part)
        for message in messages
        for part in filter(None, (part.strip() for part in message.split("…")))
        if part not in code
    ]
    assert absent == []


def test_every_command_is_in_the_table() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    found = re.findall(r"^\| `(tensorwire(?: [a-z][a-z0-9-]*)+)", page, re.MULTILINE)

    def leaves(command: Any, name: str) -> Iterator[str]:
        if not isinstance(command, Group):
            yield name
            return
        for word in command.summaries:
            yield from leaves(command.load(word), f"{name} {word}")

    assert sorted(found) == sorted(leaves(typer.main.get_command(cli.app), "tensorwire"))


MARKDOWN = sorted({*PAGES, *ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")})


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_fence_has_a_language(page: Path) -> None:
    ends = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fence and ends is None:
            assert fence[3].strip(), f"line {number}"
            ends = fence[2]
        elif line.strip() == ends:
            ends = None
    assert ends is None


# A row of a table, a line with a link, or one that is a span of code: these cannot be wrapped.
UNBROKEN = re.compile(r" *(\|.*|.*\]\(.*|(- )?\S*`[^`]*`\S*)")


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_100_columns(page: Path) -> None:
    ends = None
    long = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fence and ends is None:
            ends = fence[2]
        elif ends is not None:
            ends = None if line.strip() == ends else ends
        elif len(line) > 100 and not UNBROKEN.fullmatch(line):
            long.append((number, len(line)))
    assert long == []


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_row_is_cut_off_its_table(page: Path) -> None:
    """A table has its ruler in its second line; a row after an empty line would be a paragraph."""
    lines = page.read_text().splitlines()
    rows = [n for n, line in enumerate(lines) if line.lstrip().startswith("|")]
    heads = [n for n in rows if n - 1 not in rows]
    ruler = re.compile(r" *\|[-:| ]+\|")
    assert [n + 1 for n in heads if not ruler.fullmatch(lines[n + 1])] == []


PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
SVG = "{http://www.w3.org/2000/svg}"


def test_pictures_are_there_and_say_what_they_show() -> None:
    shown = set()
    for page in PAGES:
        for words, target in PICTURE.findall(page.read_text()):
            assert len(words) > 20, f"{page.name}: {target}"
            shown.add((page.parent / target).resolve())
    drawings = set((ROOT / "docs" / "images").iterdir())
    assert drawings <= shown
    assert all(picture.is_file() for picture in shown)


@pytest.mark.parametrize(
    "drawing", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.stem
)
def test_drawings_suit_light_and_dark_and_fetch_nothing(drawing: Path) -> None:
    text = drawing.read_text()
    image = ElementTree.fromstring(text)
    title = image.find(f"{SVG}title")
    assert title is not None
    assert title.text
    assert "prefers-color-scheme: dark" in text
    # A background of their own: words can be read whatever the page behind them looks like.
    background = next(iter(image.iter(f"{SVG}rect")))
    width, height = image.attrib["viewBox"].split()[2:]
    assert (background.get("class"), background.get("width"), background.get("height")) == (
        "page",
        width,
        height,
    )
    links = [value for each in image.iter() for value in each.attrib.values() if "//" in value]
    assert links == []
    assert {each.tag.removeprefix(SVG) for each in image.iter()} <= {
        *("svg", "title", "style", "defs", "marker", "rect", "path", "text")
    }
    assert len(text) < 8192


def test_the_home_page_shows_five_lines() -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    shown = re.sub("<!--.*?-->", "", page, flags=re.DOTALL)
    assert len("\n".join(block.code for block in blocks(shown)).splitlines()) <= 5


def test_the_guides_have_examples() -> None:
    for name in ("tensors.md", "service.md"):
        assert any(blocks((ROOT / "docs" / name).read_text()))


NAMED = re.compile(r"`((?:core|tests)/[\w/.]+?)(?:::(\w+))?`((?:(?:,| and)? ?\"[^\"|]+\")*)")


def test_the_tests_of_the_threat_model_exist() -> None:
    rows = (ROOT / "docs" / "security.md").read_text().splitlines()
    table = [row for row in rows[rows.index("## What holds") :] if row.startswith("|")][2:]
    assert table
    for row in table:
        found = NAMED.findall(row.split("|")[4].replace('`: "', '` "'))
        assert found, row
        for path, function, cases in found:
            text = (ROOT / path).read_text()
            assert not function or f"def {function}(" in text, f"{path}::{function}"
            for case in re.findall(r"\"([^\"]+)\"", cases):
                assert case in re.sub(r"\"\s+\"", "", text), f"{path}: {case}"


def test_blocks_are_found_and_run_in_order(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = [1]\n```\n\n```\nnot python\n```\n\n"
        "  ```python\n  if x:\n      x.append(2)\n  ```\n"
        "````md\n```python\nraise SystemExit\n```\n````\n"
        "<!-- needs: no_such_module -->\n```python\nimport no_such_module\n```\n"
        "```python\nassert x == [1, 2]\n```\n"
    )
    assert [block.line for block in blocks(page.read_text())] == [1, 9, 19, 22]
    assert run(page) == 3


def test_a_wrong_example_fails_at_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run(page)
    assert caught.traceback[-1].lineno == 4
    assert str(caught.traceback[-1].path) == str(page)


def test_the_way_through_the_code_leads_through_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`((?:core|src|tests)/[\w./]+\.\w+)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_the_tables_of_rooms_have_all_folders_and_modules() -> None:
    rooms = (ROOT / "docs" / "architecture.md").read_text().split("\n## ")[1]
    rows = [row.split("|")[1] for row in rooms.splitlines() if row.startswith("| `")]
    named = {name.partition("/")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}
    core = {path.name for path in (ROOT / "core").iterdir() if path.is_dir()}
    package = {path.name for path in (ROOT / "src" / "tensorwire").iterdir()}
    package = {name for name in package if not name.startswith("_") and name != "py.typed"}
    assert (core | package) - {"test", "fuzz", "tensorwire", "tensorwire.h"} - named == set()
    assert named - core - package == set()


CLAIM = re.compile(r"`((?:tests|core/test)/[^`\s:]+)(?:::([^`]+))?`")


def is_there(place: str, name: str) -> bool:
    """Tests at a place, or one in a file: of Python by its name, of C++ by how its title begins."""
    file = ROOT / place
    if not name or not file.is_file():
        return not name and file.exists()
    text = file.read_text()
    if file.suffix == ".py":
        return re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE) is not None
    cases = re.sub(r'"\s*\n\s*"', "", text)
    return re.search(rf'TEST_CASE(?:_TEMPLATE)?\(\s*"{re.escape(name)}', cases) is not None


def test_what_shows_a_claim_is_there() -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    named = CLAIM.findall(re.sub(r"\s+", " ", page))
    assert len(named) > 50
    assert [name for name in named if not is_there(*name)] == []
    for row in re.findall(r"^\| .* \|$", page, re.MULTILINE):
        _, where, shown = (cell.strip() for cell in row.strip("| ").split(" | "))
        assert where, row
        assert "`" in shown or "](" in shown or "not shown: " in shown or "what shows" in shown, row


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("tests/test_docs.py", "test_no_such_thing"),
        ("tests/test_docs.py", "is_ther"),
        ("tests/no_such_file.py", ""),
        ("core/test/access/torn.cc", "torn: no such case"),
    ],
)
def test_what_is_not_there_is_found(place: str, name: str) -> None:
    assert not is_there(place, name)


def test_what_is_left_out_of_the_tests_of_rdma_is_told() -> None:
    steps = (ROOT / "tests" / "verbs" / "steps").read_text()
    named = " ".join(re.findall(r'^left_out\+?="(.*)"$', steps, re.MULTILINE))
    words = [word.strip("() ") for word in re.split(r"\bor\b", named)]
    page = (ROOT / "docs" / "rdma.md").read_text()
    table = page[page.index("| left out |") :]
    told = re.findall("`([^`]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert told == words
