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
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tensorwire.bench.harness import handover
from tensorwire.cli import app
from tensorwire.cli.group import Group
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
OWN = {"tensorwire", "tensorwire.cli", "tensorwire.cli.group"}


def imported(*arguments: str) -> set[str]:
    """The modules that this command has imported at its end."""
    command = [sys.executable, "-c", IMPORTED, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "Usage: " in done.stdout
    return set(done.stderr.split())


def test_the_help_of_all_imports_no_command() -> None:
    found = imported("--help")
    assert {name for name in found if name.split(".")[0] == "tensorwire"} == OWN
    assert found & HEAVY == set()


@pytest.mark.parametrize("command", ["bench", *COMMANDS])
def test_the_help_of_a_command_imports_no_other(command: str) -> None:
    found = imported(*command.split(), "--help")
    assert found & HEAVY == set()
    assert "tensorwire._core" not in found
    parents = command.split()[:-1]
    files = {name for name in found if name.startswith("tensorwire.cli.")} - OWN
    files -= {"tensorwire.cli.options", *(f"tensorwire.cli.{name}" for name in parents)}
    # What several commands share.
    files -= {f"tensorwire.cli.bench.{name}" for name in ("figures", "tf_grpc", "ranks")}
    assert files == {"tensorwire.cli." + command.replace(" ", ".").replace("-", "_")}


@pytest.mark.parametrize("command", ["train", "doctor", "bench rpc", "bench tensorflow"])
def test_the_help_names_every_transport(command: str) -> None:
    group: Any = typer.main.get_command(app)
    for name in command.split():
        group = group.load(name)
    (option,) = (each for each in group.params if each.name == "transport")
    assert set(names()) <= set(re.findall(r"\w+", option.help))


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
