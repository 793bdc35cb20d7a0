# SPDX-License-Identifier: Apache-2.0
"""What a signal leaves behind, whenever it comes."""

from __future__ import annotations

import ast
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorwire import signals

ROOT = Path(__file__).resolve().parents[1]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def with_signal_after(function: Callable[..., Any], number: signal.Signals) -> Callable[..., Any]:
    def replaced(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        signal.raise_signal(number)
        return result

    return replaced


@pytest.mark.parametrize("number", CODES)
def test_a_folder_that_a_signal_finds_being_made_does_not_stay(
    number: signal.Signals, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folders["TMPDIR"]))
    monkeypatch.setattr(tempfile, "mkdtemp", with_signal_after(tempfile.mkdtemp, number))
    with pytest.raises(SystemExit) as ended, signals.ending(), signals.folder("tw-"):
        raise AssertionError("goes on")
    assert ended.value.code == CODES[number]
    assert list(folders["TMPDIR"].iterdir()) == []


@pytest.mark.parametrize("number", CODES)
def test_a_folder_that_a_signal_finds_being_removed_does_not_stay(
    number: signal.Signals, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folders["TMPDIR"]))
    monkeypatch.setattr(os, "unlink", with_signal_after(os.unlink, number))

    def fill() -> None:
        with signals.ending(), signals.folder("tw-") as name:
            for file in ("one", "two"):
                (Path(name) / file).touch()

    with pytest.raises(SystemExit) as ended:
        fill()
    assert ended.value.code == CODES[number]
    assert list(folders["TMPDIR"].iterdir()) == []


def test_without_a_signal_handlers_are_what_they_were() -> None:
    before = [signal.getsignal(number) for number in CODES]
    with signals.folder("tw-") as name:
        assert Path(name).is_dir()
        assert [signal.getsignal(number) for number in CODES] == before
    assert not Path(name).exists()
    assert [signal.getsignal(number) for number in CODES] == before


def test_no_lock_is_taken_by_way_of_a_condition() -> None:
    """A condition's own ``with`` runs Python code, in which Ctrl-C may come: the lock would be held
    for ever. That of a lock is one step."""
    found = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        nodes = [*ast.walk(ast.parse(file.read_text()))]
        made = {
            ast.unparse(target).rpartition(".")[2]
            for node in nodes
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func).endswith("Condition")
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        }
        found += [
            f"{file.relative_to(ROOT)}:{node.lineno}"
            for node in nodes
            if isinstance(node, (ast.With, ast.AsyncWith))
            for item in node.items
            if ast.unparse(item.context_expr).rpartition(".")[2] in made
        ]
    assert not found
