# SPDX-License-Identifier: Apache-2.0
"""What ``tensorwire doctor`` says about TensorFlow: every state that a host can be in."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tensorwire import plugins
from tensorwire.observe.doctor import Finding
from tensorwire.tensorflow import build, checkup


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler, sources, an empty cache, and no settings. Returns the compiler."""
    sources, cxx = tmp_path / "plugin", tmp_path / "cxx"
    sources.mkdir()
    (sources / "one.cc").touch()
    cxx.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; touch "$2"\n')
    cxx.chmod(0o755)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(cxx))
    for name in ("TF_RDMA_ENABLED", "TENSORWIRE_TRANSPORT", "TENSORWIRE_FORBID"):
        monkeypatch.delenv(name, raising=False)
    return cxx


def examine(version: str | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    monkeypatch.setattr(checkup, "installed_version", lambda: version)
    return {finding.subject: finding for finding in checkup.examine()}


def test_no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = examine(None, monkeypatch).values()
    assert (finding.value, finding.verdict) == ("not installed", "ok")


@pytest.mark.parametrize(
    ("version", "verdict", "says"),
    [
        ("2.15.1", "ok", ""),
        ("2.21.0", "ok", ""),
        ("2.14.0", "warn", "too old for tensorwire: 2.15 to 2.21 are supported"),
        ("3.0.0", "warn", "not tested with tensorwire yet"),
    ],
)
def test_releases(version: str, verdict: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = examine(version, monkeypatch)["TensorFlow"]
    assert (finding.value, finding.verdict) == (version, verdict)
    assert says in finding.meaning


def test_before_and_after_the_build(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = examine("2.21.0", monkeypatch)
    assert before["C++ compiler"].value == str(place)
    assert before["TensorFlow plugin"].value == "not built"
    monkeypatch.setattr(checkup, "folder", lambda: Path("/tf"))
    library = build.plugin(build.TensorFlow("2.21.0", "g", (), Path("/tf")))
    after = examine("2.21.0", monkeypatch)
    assert "C++ compiler" not in after
    assert (after["TensorFlow plugin"].value, after["TensorFlow plugin"].meaning) == (
        "built",
        f"in {library.parent}",
    )
    assert examine("2.20.0", monkeypatch)["TensorFlow plugin"].value == "not built"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    finding = examine("2.21.0", monkeypatch)["C++ compiler"]
    assert finding.verdict == "warn"
    assert finding.mend.startswith("apt-get install g++")


@pytest.mark.parametrize(
    ("variable", "value", "engine", "verdict", "says"),
    [
        ("TF_RDMA_ENABLED", "", "tensorwire", "ok", "under tensorwire run"),
        ("TF_RDMA_ENABLED", "false", "stock gRPC", "ok", "because TF_RDMA_ENABLED=false"),
        ("TF_RDMA_ENABLED", "perhaps", "none", "fail", "set true, false, 1 or 0"),
        ("TENSORWIRE_TF_ARENA", "x", "none", "fail", "set auto, traced or off"),
        ("TENSORWIRE_TRANSPORT", "grpc", "stock gRPC", "ok", "because TENSORWIRE_TRANSPORT=grpc"),
        ("TENSORWIRE_TRANSPORT", "tcp", "tensorwire", "ok", "under tensorwire run"),
        ("TENSORWIRE_FORBID", "shm,verbs,tcp", "stock gRPC", "ok", "because TENSORWIRE_FORBID="),
    ],
)
def test_the_engine(
    variable: str,
    value: str,
    engine: str,
    verdict: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, value)
    finding = examine("2.21.0", monkeypatch)["TensorFlow engine"]
    assert (finding.value, finding.verdict) == (engine, verdict)
    assert says in finding.meaning


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_the_version_is_that_of_the_package() -> None:
    version = checkup.installed_version()
    assert version
    assert plugins.release(version) >= build.OLDEST
