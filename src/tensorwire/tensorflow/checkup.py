# SPDX-License-Identifier: Apache-2.0
"""What ``tensorwire doctor`` says about TensorFlow. Looks without importing it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from tensorwire import plugins
from tensorwire.observe.doctor import Finding
from tensorwire.tensorflow import build, settings
from tensorwire.tensorflow.errors import BuildError

BUILD = "python -m tensorwire.tensorflow.build"


def examine() -> list[Finding]:
    """Whether TensorFlow is here, can be accelerated, and the plugin is built."""
    version = installed_version()
    if version is None:
        return [Finding("TensorFlow", "not installed", "ok", "")]
    return [_release(version), *_plugin(version), _engine()]


def installed_version() -> str | None:
    """None when TensorFlow is not installed; empty when nobody knows its version."""
    if find_spec("tensorflow") is None:
        return None
    owners = metadata.packages_distributions().get("tensorflow", [])
    return metadata.version(owners[0]) if owners else ""


def _release(version: str) -> Finding:
    supported = f"{plugins.text(build.OLDEST)} to {plugins.text(build.NEWEST)} are supported"
    release = plugins.release(version) if version else build.NEWEST
    if release < build.OLDEST:
        meaning = f"too old for tensorwire: {supported}"
        return Finding("TensorFlow", version, "warn", meaning, "pip install -U tensorflow")
    meaning = "" if release <= build.NEWEST else f"not tested with tensorwire yet: {supported}"
    return Finding("TensorFlow", version or "unknown", "warn" if meaning else "ok", meaning)


def folder() -> Path | None:
    """Where TensorFlow is installed, hence has its libraries."""
    spec = find_spec("tensorflow")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _plugin(version: str) -> Iterator[Finding]:
    here = folder()
    built = build.found(version, here) if here is not None else []
    if built:
        yield Finding("TensorFlow plugin", "built", "ok", f"in {built[-1].parent}")
        return
    try:
        words = build.compiler()
    except BuildError as error:
        mend = "apt-get install g++  # or dnf install gcc-c++"
        yield Finding("C++ compiler", "none", "warn", str(error), mend)
    else:
        yield Finding("C++ compiler", shlex.join(words), "ok", "builds the TensorFlow plugin")
    yield Finding("TensorFlow plugin", "not built", "ok", f"is built at first use, or by {BUILD}")


def _engine() -> Finding:
    try:
        settings.wanted()
        stock = settings.why_stock()
    except ValueError as error:
        wrong = str(error).partition("=")[0]  # each of these begins with NAME=value
        mend = f"unset {wrong}  # or correct it"
        return Finding("TensorFlow engine", "none", "fail", str(error), mend)
    if stock is not None:
        return Finding("TensorFlow engine", "stock gRPC", "ok", f"because {stock}")
    return Finding("TensorFlow engine", "tensorwire", "ok", "under tensorwire run, or enable()")
