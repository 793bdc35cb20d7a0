# SPDX-License-Identifier: Apache-2.0
"""What a report tells of the host, before and after a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tensorwire.bench.harness import environment, noise
from tensorwire.observe import host


def test_what_users_of_other_benchmarks_look_for() -> None:
    told = environment.describe({"rounds": 3}, {"tensorwire": "own", "grpcio": "peer"})
    assert told["roles"] == {"tensorwire": "own", "grpcio": "peer"}
    assert told["settings"] == {"rounds": 3}
    assert told["huge_pages"] == {"private": host.huge_pages(), "shared": host.shared_huge_pages()}
    assert {"governors", "numa_nodes", "commit", "variables"} <= told.keys()
    assert told["noise"]["before"].keys() == {"spin", "copy_8m"}
    assert told["noise"]["after"] is None


def test_what_is_known_after_the_run() -> None:
    told = environment.describe({}, {})
    environment.ended(told, ["a note"], True)
    assert told["noise"]["after"].keys() == told["noise"]["before"].keys()
    assert (told["notes"], told["interrupted"]) == (["a note"], True)


def test_noise_is_time_and_spread() -> None:
    for figures in noise.check().values():
        assert figures["median_us"] > 0
        assert figures["spread"] >= 0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {}, ""),
        ({"spin": (200.0, 0.05)}, {"spin": (210.0, 0.2)}, ""),
        ({"spin": (200.0, 0.3)}, {}, "turns of spin were apart by 30% before"),
        ({"copy": (200.0, 0.9)}, {"copy": (250.0, 0.9)}, ""),
        ({"copy_8m": (9.0, 0.1)}, {"copy_8m": (11.25, 0.1)}, "copy_8m took 1.25x as long after"),
    ],
)
def test_a_host_that_is_not_quiet_is_told(
    before: dict[str, noise.Loop], after: dict[str, noise.Loop], told: str
) -> None:
    found = noise.verdict(before, after)
    assert told in found
    assert found.startswith("This host was not quiet: ") == bool(told)


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert environment.commit(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    git("tag", "v1")
    assert environment.commit(tmp_path) == git("rev-parse", "HEAD")
    # Figures are written into documents while others are still measured.
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/page.json"):
        (tmp_path / name).write_text("1")
        git("add", name)
    git("commit", "-q", "-m", "documents")
    (tmp_path / "README.md").write_text("2")
    (tmp_path / "docs" / "page.json").write_text("2")
    (tmp_path / "figures.json").write_text("what a run has written")
    assert environment.commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "new.py").touch()
    assert environment.commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    (tmp_path / "src" / "new.py").unlink()
    assert environment.commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("2")
    assert environment.commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"


def test_variables_are_those_that_set_libraries() -> None:
    wanted = dict.fromkeys(
        (
            *("GLOO_SOCKET_IFNAME", "HOROVOD_CYCLE_TIME", "LD_PRELOAD", "MPICH_ASYNC_PROGRESS"),
            *("MPIR_CVAR_CH4_NETMOD", "OMPI_MCA_btl", "OMP_NUM_THREADS", "RAY_memory_monitor"),
            *("TENSORWIRE_TRANSPORT", "TF_NUM_INTEROP_THREADS", "TP_VERBOSE_LOGGING", "UCX_TLS"),
            "XLA_FLAGS",
        ),
        "1",
    )
    others = {"HOME": "/root", "PASSWORD": "", "TENSORWIRE_TOKEN": "secret", "TF_CLI_ARGS": "-x"}
    assert environment.variables({**wanted, **others}) == wanted
