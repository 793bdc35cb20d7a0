# SPDX-License-Identifier: Apache-2.0
"""What commands say of themselves, and what is imported for that."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from rich.text import Text
from typer import rich_utils
from typer.testing import CliRunner, Result

from tensorwire.bench.harness import handover
from tensorwire.cli import app, root
from tensorwire.cli.group import TRANSPORTS, Group
from tensorwire.transports import names

COMMANDS = (
    *("run", "train", "trace", "profile", "doctor", "graph", "report"),
    *("bench rpc", "bench tensorflow", "bench collectives", "bench compare"),
    *("bench p2p-latency", "bench mimic"),
)
GROUPS = ("", "bench")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ("bench", "train", "doctor")),
        (("bench",), ("rpc", "tensorflow", "collectives")),
        (("bench", "rpc"), ("--transport", "--sizes", "--rounds", "--peers", "Examples", "--json")),
        (("bench", "tensorflow"), ("--sizes", "--cases", "Examples", "Exit codes", "--json")),
        (("bench", "collectives"), ("--cases", "--ranks", "--dtype", "--peers", "Examples")),
        (("bench", "compare"), ("BEFORE.json", "--limit", "Examples", "Exit codes", "--json")),
        (("report",), ("RUN.json", "--output", "-o", "Examples", "Exit codes")),
        (("run",), ("[OPTIONS] -- ", "--launch", "Examples", "Exit codes")),
        (("train",), ("--compare", "resnet152", "Examples", "Exit codes", "--json")),
        (
            ("graph",),
            ("PROGRAM[:NAME]", "--machines", "--depth", "Examples", "Exit codes", "--json"),
        ),
        (("doctor",), ("TARGET", "Examples", "Exit codes", "--json")),
    ],
)
def test_help(arguments: tuple[str, ...], expected: tuple[str, ...]) -> None:
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    for word in expected:
        assert word in result.output


@pytest.mark.parametrize("command", [*GROUPS, *COMMANDS])
def test_short_help(command: str) -> None:
    assert run(*command.split(), "-h").output == run(*command.split(), "--help").output


@pytest.mark.parametrize("command", ["bench remote", "bench collectives", "tune collectives"])
def test_no_default_is_cut_in_a_terminal(command: str) -> None:
    arguments = [*command.split(), "--help"]
    assert "…" not in CliRunner().invoke(app, arguments, env={"COLUMNS": "80"}).output


def examples(group: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Of all commands, each with the one whose help has it."""
    for name in group.summaries:
        command = group.load(name)
        if hasattr(command, "summaries"):
            yield from examples(command, f"{name} ")
            continue
        for text in re.findall(r"\[bold\](.*?)\[/\]", command.epilog or ""):
            yield f"{path}{name}", text


EXAMPLES = [
    pytest.param(text, id=text) for _, text in dict.fromkeys(examples(typer.main.get_command(app)))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_right(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They parse, and those that measure a suite come as far as to its start."""
    words = shlex.split(text)
    words = words[words.index("tensorwire") + 1 :] if "tensorwire" in words else []
    command: Any = typer.main.get_command(app)
    rest = [*words]
    while rest and hasattr(command, "summaries"):
        command = command.load(rest.pop(0))
    if not words:
        return  # of a program that a variable is given to
    started: list[object] = []

    def measured(*given: object) -> int:
        started.append(given)
        return 0

    monkeypatch.setattr(handover, "measured", measured)
    alone = words[0] == "bench" and words[1] not in ("compare", "tensorflow")
    elsewhere = {"--serve", "--connect", "cuda"}  # it needs another process, or a device
    if alone and not elsewhere & {*words}:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert len(started) == 1
    else:
        command.make_context("tensorwire", rest).close()


def test_shells_complete_the_command() -> None:
    """In bash, with the script that the command prints for it."""
    command = shutil.which("tensorwire", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert command is not None
    program = """
    eval "$("$0" --show-completion)"
    complete -p tensorwire >&2
    COMP_WORDS=(tensorwire bench "$1") COMP_CWORD=2
    _tensorwire_completion "$0"
    echo "${COMPREPLY[@]}"
    """
    words = ["bash", "-c", program, command, "rp"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "-F _tensorwire_completion tensorwire" in done.stderr
    assert done.stdout == "rpc\n"


IMPORTED = """
import sys
from tensorwire.cli import main
sys.argv[0] = "tensorwire"
try:
    main()
finally:
    print(*sys.modules, sep="\\n", file=sys.stderr)
"""
HEAVY = {
    *("asyncio", "grpc", "markdown_it", "matplotlib", "msgspec", "multiprocessing", "numpy"),
    *("pydantic", "pygments", "rich.markdown", "rich.progress", "rich.syntax", "rich.traceback"),
    "tensorflow",
}
FIRST = {"tensorwire", "tensorwire.cli", "tensorwire.cli.root"}
OWN = FIRST | {"tensorwire.cli.commands", "tensorwire.cli.group"}


def printed(*arguments: str, **variables: str) -> tuple[str, set[str]]:
    """What this command prints, and the modules that it has imported at its end."""
    environment = {name: text for name, text in os.environ.items() if name not in root.LOOKS}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        env=environment | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | variables,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout, set(done.stderr.split())


def imported(*arguments: str) -> set[str]:
    text, found = printed(*arguments)
    assert "Usage: tensorwire " in text
    return found


@pytest.mark.parametrize("option", ["--help", "-h", "--version", "-V"])
def test_what_the_command_says_of_itself_needs_no_typer(option: str) -> None:
    text, found = printed(option)
    assert ("Usage: tensorwire [OPTIONS]" if "h" in option else installed("tensorwire")) in text
    assert {name for name in found if name.split(".")[0] == "tensorwire"} == FIRST
    assert {name.split(".")[0] for name in found} & {*HEAVY, "click", "rich", "typer"} == set()


@pytest.mark.parametrize("columns", [root.NARROWEST, 80, 127, 200])
def test_the_first_help_looks_as_typers(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every character and how it is painted."""
    for name in root.LOOKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rich_utils, "FORCE_TERMINAL", True)
    variables = {"COLUMNS": str(columns), "TERM": "xterm"}
    result = CliRunner().invoke(app, ["--help"], prog_name="tensorwire", env=variables)
    first, typers = (
        Text.from_ansi(text) for text in (root.text(columns, coloured=True) + "\n", result.output)
    )
    assert first.plain == typers.plain
    console = Console()
    for i, letter in enumerate(first.plain):
        if letter != " ":
            styles = [text.get_style_at_offset(console, i) for text in (first, typers)]
            assert styles[0] == styles[1], first.plain[: i + 1]


@pytest.mark.parametrize(
    "variables",
    [{"COLUMNS": "60"}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"PYTHONIOENCODING": "ascii"}],
)
def test_help_that_looks_otherwise_is_typers(variables: dict[str, str]) -> None:
    text, found = printed("--help", **variables)
    assert "tensorwire [OPTIONS]" in text
    assert {name for name in found if name.split(".")[0] == "tensorwire"} == OWN
    assert found & HEAVY == set()


@pytest.mark.parametrize("command", ["bench", *COMMANDS])
def test_the_help_of_a_command_imports_no_other(command: str) -> None:
    found = imported(*command.split(), "--help")
    assert found & HEAVY == set()
    if command not in NAMING:
        assert "tensorwire._core" not in found
    parents = command.split()[:-1]
    files = {name for name in found if name.startswith("tensorwire.cli.")} - OWN
    files -= {"tensorwire.cli.options", *(f"tensorwire.cli.{name}" for name in parents)}
    # What several commands share.
    files -= {f"tensorwire.cli.bench.{name}" for name in ("figures", "tf_grpc", "ranks")}
    assert files == {"tensorwire.cli." + command.replace(" ", ".").replace("-", "_")}


def naming(group: Any, path: str = "") -> Iterator[str]:
    """The commands with an option whose help names the transports."""
    for name in group.summaries:
        command = group.load(name)
        if hasattr(command, "summaries"):
            yield from naming(command, f"{path}{name} ")
        elif any(TRANSPORTS in (getattr(each, "help", None) or "") for each in command.params):
            yield f"{path}{name}"


# Their help loads the core, which has the table of transports.
NAMING = [*naming(typer.main.get_command(app))]


@pytest.mark.parametrize("command", NAMING)
def test_the_help_names_every_transport(command: str) -> None:
    assert ", ".join(names()) in run(*command.split(), "--help").output


def test_commands_name_transports() -> None:
    """Were there none, nothing would be compared."""
    wanted = {"doctor", "bench rpc", "bench tensorflow", "bench queue", "tune collectives"}
    assert wanted <= {*NAMING}


def test_what_help_does_without_can_still_be_imported() -> None:
    program = (
        "from typer.testing import CliRunner; from tensorwire.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "from rich.markdown import Markdown; from rich.traceback import Traceback\n"
        "print(Markdown.__name__, Traceback.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "Markdown Traceback\n"


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_tells_what_its_commands_tell(name: str) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, Group)
    if name:
        group = group.load(name)
    helps = {word: group.load(word).help.partition("\n\n")[0] for word in group.summaries}
    assert {word: " ".join(text.split()) for word, text in helps.items()} == group.summaries
