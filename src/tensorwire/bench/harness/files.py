# SPDX-License-Identifier: Apache-2.0
"""The files that a command writes at its end. Whether they can be written is asked before it
begins; if they cannot after all, that is one sentence."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path


def check_file(path: Path) -> None:
    """ValueError when no file can be written there."""
    try:
        if not path.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {path.parent}: make it, or name another file")
        if path.is_dir():
            raise ValueError(f"{path} is a folder: name a file in it")
        target = Path(os.path.realpath(path))
        new = not target.exists()
        if not new and not target.is_file():
            return  # opening a pipe waits for its reader, and closing it tells that one of the end
        # Rights do not tell: root has all of them, also where nothing can be written.
        target.open("ab").close()
        if new:
            target.unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {path} ({error.strerror}): name another file") from None


def check_kept(path: Path) -> None:
    """The same for a file of ``keep``, whose folder is made now."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot make the folder {path.parent} ({error.strerror}): name another file"
        ) from None
    check_file(path)


def write(path: Path, make: Callable[[Path], object]) -> None:
    """``make(path)``, which writes the file. ValueError when that is not possible."""
    try:
        make(path)
    except OSError as error:
        raise ValueError(f"cannot write to {path} ({error.strerror or error})") from None


def keep(path: Path, text: str) -> None:
    """Replaces the file: whoever reads it meanwhile gets the whole old one, or the whole new one.
    Makes its folder. What is no file, as a pipe or /dev/null, is written to. OSError."""
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def save(path: Path | None, make: Callable[[Path], object]) -> bool:
    """``write``, where there is a path. When that is not possible, it is told on standard error;
    returns False then, and the command should end with code 1."""
    if path is not None:
        try:
            write(path, make)
        except ValueError as error:
            print(f"tensorwire: {error}", file=sys.stderr, flush=True)
            return False
    return True


def check_plot(path: Path) -> None:
    """The same for a plot, whose ending is its format."""
    check_file(path)
    if find_spec("matplotlib") is None:
        raise ValueError("needs matplotlib: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    ending = path.suffix.removeprefix(".").lower()
    if ending and ending not in formats:
        raise ValueError(
            f"{path} has an ending that is no format of plots: use one of {', '.join(formats)}"
        )
