# SPDX-License-Identifier: Apache-2.0
"""The scripts that set up and check: what they leave alone, and that they are never silent."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def program(path: Path, *lines: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def test_everything_is_checked_in_an_empty_home(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    program(tmp_path / "scripts" / "system-packages")
    program(
        tmp_path / "bin" / "make",
        'echo "make $2 in $HOME with $(ls -A "$HOME")"',
        'echo "$XDG_CACHE_HOME $PYENV_ROOT $PIP_CONFIG_FILE"',
        'touch "$HOME/left-by-$2"',
    )
    home = tmp_path / "home"
    config = home / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True)
    config.touch()
    (tmp_path / "tmp").mkdir()
    known = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(
        [tmp_path / ".ci" / "run"],
        env={**known, "HOME": str(home)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    made = [line for line in done.stdout.splitlines() if line.startswith("make ")]
    empty = made[0].split()[3]
    assert made[0] == f"make demo in {empty} with "
    assert made[-1].startswith(f"make test in {empty} ")
    assert Path(empty).parent == tmp_path / "tmp"
    assert f"{empty}/.cache {home}/.pyenv {config}" in done.stdout.splitlines()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [path.name for path in home.iterdir()] == [".config"]


@pytest.mark.parametrize(
    "failing", ["demo", "lint", "docs", "tsan", "fuzz", "frameworks", "test-verbs"]
)
def test_a_stage_that_fails_ends_the_run(tmp_path: Path, failing: str) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    program(tmp_path / "scripts" / "system-packages")
    program(tmp_path / "bin" / "make", f'echo "made $2"; [ "$2" != {failing} ]')
    done = subprocess.run(
        [tmp_path / ".ci" / "run"],
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)},
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode != 0
    made = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("made ")]
    beside = {"lint": "docs", "tsan": "browser"}
    assert made[-1] == beside.get(failing, failing)
    assert failing in made


@pytest.mark.parametrize(
    "command",
    [
        [".ci/run"],
        ["scripts/telling", "what", "bin/make", "", "docs"],
        ["scripts/in-parts", "bin/core_tests"],
    ],
    ids=lambda command: command[0],
)
def test_ctrl_c_ends_what_runs_in_the_background_with_all_that_it_has_started(
    tmp_path: Path, command: list[str]
) -> None:
    for name in (".ci/run", "scripts/telling", "scripts/in-parts"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    program(tmp_path / "scripts" / "system-packages")
    waits = f"{{ sleep 25 & echo $! >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait; }}"
    program(
        tmp_path / "bin" / "make",
        f'case "$2" in lint) exec sleep 25;; docs) {waits};; esac',
    )
    program(tmp_path / "bin" / "core_tests", f'[ "$1" = --count ] && echo 1 || {waits}')
    begun = subprocess.Popen(
        [tmp_path / command[0], *command[1:]],
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    with begun:
        end = time.monotonic() + 20
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        death = os.pidfd_open(int((tmp_path / "pid").read_text()))
        os.killpg(begun.pid, signal.SIGINT)
    try:
        assert select.select([death], [], [], 10)[0] == [death]
    finally:
        os.close(death)
    assert begun.returncode == -signal.SIGINT


@pytest.mark.parametrize("how", ["exit 3", "kill -SEGV $$", "kill -KILL $PPID"])
def test_a_part_that_fails_is_named_whatever_ended_it(tmp_path: Path, how: str) -> None:
    """The last is the death of the shell that waits for it: another one does the rest."""
    program(tmp_path / "bin" / "nproc", "echo 2")
    program(
        tmp_path / "core_tests",
        'case "$1" in --count) echo "[doctest] cases: 3"; exit;; esac',
        'echo "TEST CASE:  case $3"; echo "[doctest] passed $3"',
        f'case "$3" in --first=2) echo "core/a.cc:1: ERROR: it did"; {how};; esac',
    )
    done = subprocess.run(
        [ROOT / "scripts" / "in-parts", tmp_path / "core_tests"],
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    told = done.stdout.splitlines()
    for passed in (1, 3):
        at = told.index(
            f"==== cases {passed} to {passed} of 3 (doctest counts all of them as its own)"
        )
        assert told[at + 1] == f"[doctest] passed --first={passed}"
    at = told.index("==== cases 2 to 2 of 3: failed")
    assert told[at + 1] == "TEST CASE:  case --first=2"
    assert re.fullmatch(
        r"FAILED cases 2 to 2 of 3, status (3|139|unknown): case --first=2", told[-1]
    )


def test_the_installation_of_system_packages_is_told(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    program(tools / "apt-get", f'echo "$@" >> {tmp_path}/calls')
    for name in ("bash", "basename", "dirname", "sed", "sleep"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    unshare = shutil.which("unshare") or "unshare"
    as_root = [] if os.geteuid() == 0 else [unshare, "--user", "--map-root-user"]
    done = subprocess.run(
        [*as_root, ROOT / "scripts" / "system-packages", "build"],
        env={"PATH": str(tools)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    update, install = (tmp_path / "calls").read_text().splitlines()
    assert update.startswith("update")
    assert {"g++", "cmake", "ninja-build"} <= set(install.split())
    told = done.stdout.splitlines()
    assert told[0].startswith("installing system packages: g++ cmake")
    assert "the lists of packages ..." in told
    assert "system packages ..." in told


@pytest.mark.parametrize(("run", "status"), [(90, 0), (89, 1)])
def test_too_little_of_the_core_that_ran_is_a_failure(
    tmp_path: Path, run: int, status: int
) -> None:
    """Of 100 lines. Tests do not count."""
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "coverage", tmp_path / "scripts")
    files = [
        {
            "filename": str(tmp_path / "core" / name),
            "summary": {
                "lines": {"count": lines, "covered": covered},
                "branches": {"count": 10, "covered": 5},
            },
        }
        for name, lines, covered in [
            ("wire/frame.cc", 50, run - 50),
            ("wire/hello.h", 40, 40),
            ("transport/verbs/verbs.cc", 10, 10),
            ("test/wire/frame.cc", 1000, 0),
        ]
    ]
    (tmp_path / "exported").write_text(json.dumps({"data": [{"files": files}]}))
    tools = tmp_path / "tools"
    program(tools / "clang++", f'echo "{tools}/${{1#-print-prog-name=}}"')
    program(tools / "llvm-profdata", ":")
    program(tools / "llvm-cov", f"cat {tmp_path}/exported")
    done = subprocess.run(
        [sys.executable, script, "core", tools / "clang++", tmp_path, "core_tests"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    assert done.stderr == ("less than 90 % of the lines ran\n" if status else "")
    table = {line.split("  ")[0]: line.split() for line in done.stdout.splitlines()}
    assert table.keys() == {"core/", "transport/verbs", "wire", "all"}
    assert table["all"][1:] == [f"{run}.0", "%", "of", "100", "50.0", "%", "of", "30"]
    assert table["transport/verbs"][1] == "100.0"


@pytest.mark.parametrize("failing", [False, True])
def test_what_could_not_be_tried_is_told_with_its_reason(tmp_path: Path, failing: bool) -> None:
    """Each case once, whichever part it was in, and before what the failed parts said."""
    program(
        tmp_path / "core_tests",
        'case "$1" in --count) echo "[doctest] cases: 4"; exit;; esac',
        'echo "[doctest] test cases: 1"',
        'printf "NOT TRIED: no device\\tcopies\\n"',
        'printf "NOT TRIED: no device\\treads <verbs>\\n"',
        'printf "NOT TRIED: one CPU\\tpolls\\n"',
        f"exit {int(failing)}",
    )
    done = subprocess.run(
        [ROOT / "scripts" / "in-parts", tmp_path / "core_tests"], capture_output=True, text=True
    )
    assert done.returncode == failing, done.stderr
    told = done.stdout.splitlines()
    at = told.index("==== NOT TRIED, or in part: 3 cases")
    assert told[at + 1 : at + 3] == ["2: no device: copies; reads <verbs>", "1: one CPU: polls"]
    if failing:
        assert "failed" in told[at + 3]
    else:
        assert told[at + 3 :] == []


def test_nothing_is_told_where_all_was_tried(tmp_path: Path) -> None:
    program(tmp_path / "core_tests", 'echo "[doctest] cases: 4"')
    done = subprocess.run(
        [ROOT / "scripts" / "in-parts", tmp_path / "core_tests"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "NOT TRIED" not in done.stdout


WITHOUT_A_GIL = """
import sys
from importlib import import_module
from pathlib import Path

sys.modules["grpc"] = sys.modules["msgspec"] = None
for path in sys.argv[1:]:
    import_module(".".join(Path(path).with_suffix("").parts))
"""


def test_what_runs_without_a_gil_needs_no_package_that_has_no_wheel_for_that() -> None:
    """Few machines have such a Python, so that most changes are not tried with it."""
    makefile = (ROOT / "Makefile").read_text()
    names = re.search(r"^FREE_THREADED_TESTS = .*tests/test_%\.py,(.+)\)$", makefile, re.MULTILINE)
    assert names, "the Makefile names them in another way"
    files = [f"tests/test_{name}.py" for name in names[1].split()]
    subprocess.run([sys.executable, "-c", WITHOUT_A_GIL, *files], cwd=ROOT, check=True, timeout=60)
