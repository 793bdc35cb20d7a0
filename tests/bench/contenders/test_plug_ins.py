# SPDX-License-Identifier: Apache-2.0
"""Contenders of other packages: the one of the documentation runs, and broken ones are told."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from tensorwire.bench.harness import contenders
from tensorwire.bench.suites.collectives import contender as collectives
from tensorwire.bench.suites.rpc import contender as rpc
from tensorwire.bench.suites.tensorflow import contender as tensorflow

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "benchmarks.md"


def example(name: str) -> str:
    """The block of the guide that stands below that comment."""
    blocks = re.findall(
        rf"<!-- contender: {re.escape(name)} -->\n\n```\w+\n(.*?)```", GUIDE.read_text(), re.DOTALL
    )
    (block,) = blocks
    return str(block)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the guide's package, as pip leaves it."""
    (tmp_path / "pipe_bench.py").write_text(example("pipe_bench.py"))
    head, _, entries = example("entry point").partition("\n")
    group = head.removeprefix("[project.entry-points.").strip('"]')
    about = tmp_path / "pipe_bench-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pipe-bench\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{entries.replace(chr(34), '')}")
    return tmp_path


def bench(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorwire", "bench", "rpc", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(path), "COLUMNS": "200"},
    )


@pytest.mark.timeout(120)
def test_the_contender_of_the_guide_runs(installed: Path) -> None:
    done = bench(
        *("--peers", "pipe", "--no-limits", "--transport", "tcp", "--origin", "ordinary"),
        *("--sizes", "8,64K", "--rounds", "2", "--seconds", "0.001", "--json"),
        path=installed,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["environment"]["notes"] == []
    assert report["environment"]["versions"]["pipe-bench"] == "1.0"
    rows = [row for row in report["rows"] if row["contender"] == "pipe"]
    assert {(row["transport"], row["case"], row["size"], row["reads"]) for row in rows} == {
        ("unix", "request", size, reads) for size in (8, 65536) for reads in (False, True)
    }
    assert all(row["ratio"] > 0 for row in rows)
    details = [each for each in report["details"]["rows"] if each["contender"] == "pipe"]
    assert [len(each["samples_us"]) for each in details] == [2] * 4
    assert min(details[0]["samples_us"][0]) >= round(details[0]["min_us"], 3)


def test_what_is_not_installed_is_told_with_what_there_is(tmp_path: Path) -> None:
    done = bench("--peers", "pipe", path=tmp_path)
    assert done.returncode == 2
    told = " ".join(re.sub("[│╭╮╰╯─]", " ", done.stderr).split())
    assert (
        "no contender is called 'pipe'; there are flight, gloo, grpc-aio, grpcio, memcpy," in told
    )
    assert "install the package that brings it" in told


def test_a_name_that_two_packages_have_is_wrong_usage(installed: Path) -> None:
    other = installed / "other_bench-1.0.dist-info"
    shutil.copytree(installed / "pipe_bench-1.0.dist-info", other)
    metadata = (other / "METADATA").read_text()
    (other / "METADATA").write_text(metadata.replace("pipe-bench", "other-bench"))
    done = bench("--peers", "all", path=installed)
    assert done.returncode == 2
    assert "both bring a contender 'pipe': uninstall one of them" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_file_of_ours_has_an_entry_point() -> None:
    folder = ROOT / "src" / "tensorwire" / "bench" / "contenders"
    suites = {"collectives": collectives, "rpc": rpc, "tensorflow": tensorflow}
    for suite, module in suites.items():
        stems = {file.stem for file in (folder / suite).glob("*.py")} - {"__init__"}
        files = {stem.replace("_", "-") for stem in stems}
        assert files <= set(contenders.names(module.GROUP))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["no_such_module:Pipe"], r"'pipe' of no_such_module:Pipe cannot be loaded .*: install"),
        (["tensorwire.signals:Pipe"], "cannot be loaded .*has no attribute 'Pipe'"),
        (["tensorwire.signals:folder"], r"is no subclass of .*rpc\.contender\.Contender"),
        (["a:A", "b:B"], "a:A and b:B both bring a contender 'pipe': uninstall one"),
        ([], "there are none, not even tensorwire's own: install tensorwire anew"),
    ],
)
def test_a_package_that_is_broken_is_named(
    monkeypatch: pytest.MonkeyPatch, values: list[str], why: str
) -> None:
    found = EntryPoints([EntryPoint("pipe", value, rpc.GROUP) for value in values])
    monkeypatch.setattr(contenders, "entry_points", lambda group: found)
    contenders.installed.cache_clear()
    try:
        with pytest.raises(ValueError, match=why):
            rpc.find("pipe")
    finally:
        contenders.installed.cache_clear()
