# SPDX-License-Identifier: Apache-2.0
"""The demonstration of training: how it ends when it cannot go on."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
from tests.watching import wait
from typer.testing import CliRunner

from tensorwire.bench.suites.train import demo, local


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_sigterm_leaves_nothing_behind(tmp_path: Path, folders: dict[str, Path]) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tensorwire.bench.suites.train.demo",
            "--plot",
            str(tmp_path / "demo.png"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **{name: str(folder) for name, folder in folders.items()}},
    ) as process:
        temporary = folders["TMPDIR"]
        wait(lambda: any(temporary.glob("tensorwire-train-*")), [temporary], process)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "ended by SIGTERM" in said
    assert "Traceback" not in said
    assert [list(folder.iterdir()) for folder in folders.values()] == [[], []]
    assert not (tmp_path / "demo.png").exists()


def test_a_cluster_that_fails_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise local.ClusterError(3, "worker 1 failed with exit code 3")

    monkeypatch.setattr(local, "run", fail)
    app = typer.Typer()
    app.command()(demo.demo)
    done = CliRunner().invoke(app, [f"--plot={tmp_path}/demo.png"])
    assert done.exit_code == 3
    assert done.stderr.splitlines()[-1] == "tensorwire train: worker 1 failed with exit code 3"
