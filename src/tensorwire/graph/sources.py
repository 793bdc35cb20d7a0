# SPDX-License-Identifier: Apache-2.0
"""Graphs in files: what ``tensorwire graph`` is given."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from tensorwire import signals

GRAPH: Final = "graph"
"""What a Python file calls its graph, unless it is told another name."""
_PROTOS: Final = (".pb", ".pbtxt")


class SourceError(ValueError):
    """A file without a graph."""


def check(path: Path, name: str | None) -> None:
    """SourceError for a file that is none of a graph."""
    if path.is_dir():
        if not any((path / f"saved_model{ending}").is_file() for ending in _PROTOS):
            raise SourceError(f"{path} is a folder without a saved_model.pb")
    elif not path.is_file():
        raise SourceError(f"there is no file {path}")
    elif path.suffix not in (".py", *_PROTOS):
        raise SourceError(f"{path} is neither a Python file nor a .pb, a .pbtxt or a SavedModel")
    if name is not None and path.suffix != ".py":
        raise SourceError(f"{path} has no names: leave out :{name}")


def load(path: Path, name: str | None = None) -> Any:
    """The graph in a file.

    Of a Python file, which is run as a module that is not the main one: what it calls ``name``
    (``graph``), and where that can be called, what it returns without arguments. A ``.pb`` or
    ``.pbtxt`` is a TensorFlow GraphDef or SavedModel, as is a folder with one.

    Raises SourceError for a file that has none, and for a program that fails, with its traceback.
    """
    if path.is_dir():
        path = next(each for each in sorted(path.iterdir()) if each.stem == "saved_model")
    if path.suffix != ".py":
        return _proto(path)
    sys.path.insert(0, os.fspath(path.absolute().parent))
    name = name or GRAPH
    try:
        found = runpy.run_path(os.fspath(path), run_name="tensorwire_graph")
        value = found.get(name)
        if callable(value) and not _is_graph(value):
            value = value()
    except signals.Terminated:
        raise
    except (Exception, SystemExit) as error:
        raise SourceError(f"{path} failed:\n{_told(path, error)}") from error
    if name not in found:
        raise SourceError(f"{path} defines no {name}: define it, or name another, as {path}:NAME")
    return value


def _told(path: Path, error: BaseException) -> str:
    """The traceback of a program, from where it is its own."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != os.fspath(path):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()


def _is_graph(value: Any) -> bool:
    from tensorwire.graph import is_graph

    return is_graph(value)


def _proto(path: Path) -> Any:
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise SourceError(
            f"{path} is a graph of TensorFlow, and {sys.executable} has none: "
            "pip install 'tensorwire[tensorflow]'"
        ) from None
    from google.protobuf import message, text_format
    from tensorflow.core.protobuf import saved_model_pb2

    data = path.read_bytes()
    saved = saved_model_pb2.SavedModel()
    plain = tf.compat.v1.GraphDef()
    wanted = saved if path.stem == "saved_model" else plain
    try:
        if path.suffix == ".pbtxt":
            text_format.Parse(data.decode(), wanted)
        else:
            wanted.ParseFromString(data)
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        kind = type(wanted).__name__
        raise SourceError(f"{path} is no {kind} of TensorFlow: {error}") from None
    if wanted is plain:
        return plain
    if not saved.meta_graphs:
        raise SourceError(f"{path} has no graph")
    return saved.meta_graphs[0].graph_def
