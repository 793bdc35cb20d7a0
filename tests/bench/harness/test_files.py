# SPDX-License-Identifier: Apache-2.0
"""Whether files can be written, before anything is measured for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorwire.bench.harness import files


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("kept")
    files.check_file(there)
    assert there.read_text() == "kept"
    files.check_file(tmp_path / "new.json")
    assert list(tmp_path.iterdir()) == [there]


def test_a_link_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "new.json")
    files.check_file(link)
    assert list(tmp_path.iterdir()) == [link]
    link.unlink()
    link.symlink_to("/proc/new.json")
    with pytest.raises(ValueError, match="cannot write to"):
        files.check_file(link)


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    files.check_file(tmp_path / "pipe")
    files.check_file(Path("/dev/null"))


def test_a_file_that_cannot_be_written_after_all(capsys: pytest.CaptureFixture[str]) -> None:
    full = Path("/dev/full")
    files.check_file(full)
    assert not files.save(full, lambda path: path.write_text("figures"))
    assert capsys.readouterr().err == (
        "tensorwire: cannot write to /dev/full (No space left on device)\n"
    )
    assert files.save(None, lambda path: path.write_text("figures"))


def test_a_name_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.check_file(Path("new.json"))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/no/such/new.json", "there is no folder /no/such: make it, or name another file"),
        ("/dev/null/new.json", "there is no folder /dev/null: make it, or name another file"),
        ("/proc", "/proc is a folder: name a file in it"),
        ("/proc/new.json", "cannot write to /proc/new.json (No such file or directory): name"),
        ("/proc/version", "cannot write to /proc/version ("),
        ("/tmp/" + "a" * 300, "(File name too long): name another file"),
    ],
)
def test_a_file_that_cannot_be_written(path: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        files.check_file(Path(path))
    assert says in str(caught.value)


def test_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.png", "a.SVG", "a"):
        files.check_plot(tmp_path / name)
    with pytest.raises(ValueError, match=r"use one of .*png"):
        files.check_plot(tmp_path / "a.jsn")
    with pytest.raises(ValueError, match="cannot write to"):
        files.check_plot(Path("/proc/a.png"))
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install"):
        files.check_plot(tmp_path / "a.png")


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.keep(pipe, "a table")
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"a table"
    finally:
        os.close(reader)
