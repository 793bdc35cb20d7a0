# SPDX-License-Identifier: Apache-2.0
"""What lines of processes are written to."""

from __future__ import annotations

import os
import sys

import pytest

from tensorwire import launch
from tensorwire.launch import output


class StandIn:
    """As of a notebook: it has the descriptor of the file that it stands in for."""

    encoding = "latin-1"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        text.encode(self.encoding)
        self.text += text

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 1


def test_output_goes_to_what_stands_in_for_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StandIn()
    monkeypatch.setattr(sys, "stdout", file)
    tasks = launch.cluster("w=1").tasks
    launch.Prefixed(tasks)(tasks[0], "stdout", "\u2588\n".encode())
    assert file.text == "[w 0] \\u2588\n"


def give_up(_seconds: float) -> bool:
    return False


def test_a_write_never_waits_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may say that it takes something, and then takes a part of that only."""
    monkeypatch.setattr(output, "LOOK_SECONDS", 0.0)
    for length in range(1, 65):
        reader, writer = os.openpty()
        with open(writer, "w") as sink:
            while output.write(sink, b"y" * length + b"\n", give_up):
                pass
            assert sink.isatty()
        os.close(reader)


def test_a_write_does_not_wait_where_another_process_took_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()

    class Room:
        """Sees room that is gone when it has been seen."""

        def register(self, _descriptor: int, _events: int) -> None: ...

        def poll(self, _milliseconds: float) -> bool:
            return True

    monkeypatch.setattr("select.poll", Room)
    with open(writer, "w") as sink:
        while output.write(sink, b"y" * 99 + b"\n", give_up):
            pass
        assert os.get_blocking(writer)
    with open(reader, "rb") as file:
        written = file.read()
    assert len(written) > 99
    assert set(written.splitlines()[:-1]) == {b"y" * 99}
