# SPDX-License-Identifier: Apache-2.0
"""The build of the plugin: what is compiled and how, when not again, what a user is told if it
fails. The compiler is a script that notes what it was asked for, TensorFlow an empty folder."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tensorwire import plugins
from tensorwire.tensorflow import BuildError, UnsupportedError, build
from tensorwire.tensorflow.build import LIBRARY, TensorFlow

PATIENCE = 30.0
SOURCES = ["five.cc", "four.cc", "one.cc", "six.cc", "three.cc", "two.cc"]

# Notes its arguments, one call in a line, and the sources that it was given. Fails for a source
# that says so, waits for a file to appear for one that names it, and makes what it was asked to
# make.
COMPILER = """#!/bin/sh
echo "$@" >> "$0.calls"
for word; do
  case "$word" in *.cc)
    for source in $(sed -n 's/^#include "\\(.*\\)"$/\\1/p' "$word"); do
      echo "$source" >> "$0.sources"
      if grep -q FAIL "$source"; then
        echo "In file included from $word"; echo "$source:3: error: no such thing"; exit 1; fi
      gate=$(sed -n 's/^WAIT //p' "$source")
      while [ -n "$gate" ] && [ ! -e "$gate" ]; do sleep 0.05; done
    done ;;
  esac
done
while [ "$1" != -o ]; do shift; done
echo made > "$2"
"""


class Bench:
    """A place with sources, a compiler and a cache, all of them small."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.sources = path / "plugin"
        self.headers = path / "core"
        self.cxx = path / "cxx"
        self.cache = path / "cache" / "tensorwire" / "tensorflow"
        for folder in (self.sources, self.headers):
            folder.mkdir()
        for name in (*SOURCES, "one.h"):
            (self.sources / name).write_text(f"// {name}\n")
        (self.headers / "tensorwire.h").write_text("// version 1\n")
        (self.headers / "tensorwire").mkdir()
        (self.headers / "tensorwire" / "call.h").write_text("// version 1\n")
        self.cxx.write_text(COMPILER)
        self.cxx.chmod(0o755)
        monkeypatch.setenv("CXX", str(self.cxx))
        monkeypatch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        flags = ("-I/tf/include", "-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17")
        self.tensorflow = TensorFlow("2.21.0", "v2.21.0-g1", flags, Path("/tf"))

    def plugin(self, **changes: object) -> Path:
        tensorflow = replace(self.tensorflow, **changes)  # type: ignore[arg-type]
        return build.plugin(tensorflow, sources=self.sources, headers=self.headers)

    def calls(self) -> list[list[str]]:
        calls = Path(f"{self.cxx}.calls")
        return [line.split() for line in calls.read_text().splitlines()] if calls.exists() else []

    def process(self) -> subprocess.Popen[str]:
        """Another process that builds the same."""
        program = (
            "import sys; from pathlib import Path; from tensorwire.tensorflow import build\n"
            f"tensorflow = build.TensorFlow({self.tensorflow.version!r}, "
            f"{self.tensorflow.git_version!r}, {self.tensorflow.flags!r}, Path('/tf'))\n"
            f"print(build.plugin(tensorflow, sources=Path({str(self.sources)!r}), "
            f"headers=Path({str(self.headers)!r})))"
        )
        return subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_calls(self, count: int) -> None:
        end = time.monotonic() + PATIENCE
        while len(self.calls()) < count:
            assert time.monotonic() < end, self.calls()
            time.sleep(0.01)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_all_sources_are_compiled_together_and_linked(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    library = bench.plugin()
    assert library.name == LIBRARY
    assert library.read_text() == "made\n"
    assert library.parent.parent == bench.cache
    *compilations, link = bench.calls()
    assert len(compilations) == 2
    given = Path(f"{bench.cxx}.sources").read_text().split()
    assert sorted(given) == [str(bench.sources / name) for name in SOURCES]
    for call in compilations:
        assert [word for word in call if word in bench.tensorflow.flags] == list(
            bench.tensorflow.flags
        )
        assert {f"-I{bench.headers}", "-fPIC", "-O2"} <= set(call)
        assert "-Werror" not in call
    objects = [word for word in link if word.endswith(".o")]
    assert objects == sorted(call[call.index("-o") + 1] for call in compilations)
    framework, everything = build.TENSORFLOW_LIBRARIES
    assert link.index("-L/tf") < link.index(framework) < link.index(everything)
    assert capsys.readouterr().err.count("building the plugin for TensorFlow 2.21.0") == 1
    assert [path.name for path in bench.cache.iterdir() if path.suffix != ".lock"] == [
        library.parent.name
    ]


def test_it_is_built_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    first = bench.plugin()
    calls = bench.calls()
    capsys.readouterr()
    assert bench.plugin() == first
    assert bench.calls() == calls
    assert capsys.readouterr().err == ""


def test_the_cache_needs_no_compiler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.plugin()
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert bench.plugin() == first


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "2.20.0"},
        {"git_version": "v2.21.0-g2"},
        {"flags": ("-I/tf/include", "-D_GLIBCXX_USE_CXX11_ABI=0", "--std=c++17")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_tensorflow_is_another_build(bench: Bench, changes: dict[str, object]) -> None:
    assert bench.plugin() != bench.plugin(**changes)
    assert len(bench.calls()) == 6


def test_one_build_serves_all_environments_of_one_tensorflow(bench: Bench) -> None:
    """Where it is installed does not matter; what its libraries are does."""

    def environment(name: str, content: bytes) -> dict[str, object]:
        folder = bench.path / name
        folder.mkdir()
        for option in build.TENSORFLOW_LIBRARIES:
            (folder / option.removeprefix("-l:")).write_bytes(content)
        return {
            "folder": folder,
            "flags": (f"-I{folder}/include", *bench.tensorflow.flags[1:]),
        }

    first = bench.plugin(**environment("a", b"one"))
    assert bench.plugin(**environment("b", b"one")) == first
    assert len(bench.calls()) == 3
    assert bench.plugin(**environment("c", b"two")) != first


@pytest.mark.parametrize(
    "name", ["plugin/one.cc", "plugin/one.h", "core/tensorwire.h", "core/tensorwire/call.h"]
)
def test_changed_sources_are_another_build(bench: Bench, name: str) -> None:
    first = bench.plugin()
    with (bench.path / name).open("a") as file:
        file.write("// more\n")
    assert bench.plugin() != first


def test_an_error_of_the_compiler(bench: Bench) -> None:
    unit = bench.sources / "two.cc"
    unit.write_text("FAIL\n")
    with pytest.raises(BuildError) as caught:
        bench.plugin()
    said = str(caught.value)
    assert f"does not compile with TensorFlow 2.21.0: {unit}:3: error: no such thing" in said
    written = Path(said.rpartition(" is in ")[2])
    text = written.read_text()
    assert "In file included from" in text
    assert text.startswith(f"$ {bench.cxx} ")
    assert [p.suffix for p in bench.cache.iterdir() if p.suffix not in (".lock", ".log")] == []

    unit.write_text("// better\n")
    assert bench.plugin().exists()


def test_a_compiler_that_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.sources / "one.cc").write_text(f"WAIT {bench.path}/never\n")
    monkeypatch.setattr(plugins, "BUILD_SECONDS", 0.2)
    with pytest.raises(BuildError, match=r"took longer than 0\.2 s: .*from_five\.cc"):
        bench.plugin()


def test_there_is_no_compiler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bench.path))
    monkeypatch.delenv("CXX")
    with pytest.raises(BuildError, match=r"install g\+\+ .*apt-get install g\+\+.*or set CXX"):
        bench.plugin()
    monkeypatch.setenv("CXX", "clang++-99 -m64")
    with pytest.raises(BuildError, match="CXX='clang"):
        bench.plugin()


def test_the_sources_are_missing(bench: Bench) -> None:
    for unit in bench.sources.glob("*.cc"):
        unit.unlink()
    with pytest.raises(BuildError, match="sources are missing"):
        bench.plugin()


@pytest.mark.parametrize("version", ["1.15.5", "2.14.1"])
def test_too_old_a_tensorflow(bench: Bench, version: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"TensorFlow {version} is too old: 2\.15 to 2\."):
        bench.plugin(version=version)
    assert bench.calls() == []


def test_a_new_tensorflow_is_tried(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tensorwire"):
        assert bench.plugin(version="2.99.0-rc1").exists()
    assert "TensorFlow 2.99.0-rc1 is not tested yet" in caplog.text


def test_a_cache_that_cannot_be_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(bench.cxx))
    with pytest.raises(BuildError, match="set XDG_CACHE_HOME to a folder that you may write to"):
        bench.plugin()


@pytest.mark.parametrize("name", ["", "..", "build", f"build/{LIBRARY}"])
def test_what_others_may_have_written_is_not_loaded(bench: Bench, name: str) -> None:
    """Nor is it after its permissions were mended from outside: the advice is to remove it."""
    library = bench.plugin()
    path = (bench.cache / name.replace("build", library.parent.name)).resolve()
    path.chmod(0o777)
    with pytest.raises(BuildError, match=f"others may have written {path}, .*rm -r {path.parent}"):
        bench.plugin()
    assert len(bench.calls()) == 3


def test_a_folder_of_caches_that_others_may_write_to(bench: Bench) -> None:
    bench.plugin()
    above = bench.cache.parent.parent
    above.chmod(0o777)
    with pytest.raises(BuildError, match=f"others may write to {above}, .*set XDG_CACHE_HOME"):
        bench.plugin()
    above.chmod(0o1777)  # as /tmp: nobody can put another folder in place of one's own
    assert bench.plugin().exists()


def test_a_link_in_the_cache_is_not_followed(bench: Bench) -> None:
    library = bench.plugin()
    library.rename(bench.path / "planted.so")
    library.symlink_to(bench.path / "planted.so")
    with pytest.raises(BuildError, match=f"others may have written {library}"):
        bench.plugin()


def test_a_umask_that_lets_the_group_write(bench: Bench) -> None:
    before = os.umask(0o002)
    try:
        library = bench.plugin()
        assert bench.plugin() == library
    finally:
        os.umask(before)
    for path in (library, library.parent, bench.cache, bench.cache.parent, bench.cache.parents[1]):
        assert path.stat().st_mode & 0o022 == 0, path


@pytest.mark.parametrize("cut", [LIBRARY, build.DIGEST])
def test_a_copy_that_was_cut_short_is_built_again(bench: Bench, cut: str) -> None:
    library = bench.plugin()
    content = library.read_bytes()
    os.truncate(library.parent / cut, 3)
    assert bench.plugin() == library
    assert library.read_bytes() == content
    assert len(bench.calls()) == 6
    (library.parent / cut).unlink()
    assert bench.plugin() == library
    assert len(bench.calls()) == 9


def test_a_full_disk_is_named(bench: Bench) -> None:
    bench.cxx.write_text("#!/bin/sh\necho made | cat > /dev/full\n")
    with pytest.raises(BuildError) as caught:
        bench.plugin()
    assert str(caught.value).startswith("no space is left where the TensorFlow plugin is built: ")
    assert f"in {bench.cache} and in {tempfile.gettempdir()}" in str(caught.value)
    assert "set XDG_CACHE_HOME and TMPDIR" in str(caught.value)


def test_processes_that_start_together_share_one_build(bench: Bench) -> None:
    gate = bench.path / "gate"
    (bench.sources / "one.cc").write_text(f"WAIT {gate}\n")
    processes = [bench.process() for _ in range(3)]
    said = [first_line(process) for process in processes]
    bench.wait_for_calls(1)
    gate.touch()
    libraries = {process.communicate(timeout=PATIENCE)[0].strip() for process in processes}
    assert sum("building the plugin" in line for line in said) == 1
    assert sum("waiting for the plugin" in line for line in said) == 2
    assert [Path(library).name for library in libraries] == [LIBRARY]
    assert len(bench.calls()) == 3


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_a_builder_that_is_killed_leaves_nothing_that_hinders(bench: Bench) -> None:
    gate = bench.path / "gate"
    (bench.sources / "one.cc").write_text(f"WAIT {gate}\n")
    process = bench.process()
    bench.wait_for_calls(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert list(bench.cache.glob("*.building-*"))
    gate.touch()
    assert bench.plugin().exists()
    assert not list(bench.cache.glob("*.building-*"))


def test_waiting_for_another_process_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.sources / "one.cc").write_text(f"WAIT {bench.path}/never\n")
    process = bench.process()
    try:
        bench.wait_for_calls(1)
        monkeypatch.setattr(plugins, "BUILD_SECONDS", 0.2)
        with pytest.raises(BuildError, match="another process has been building"):
            bench.plugin()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def test_what_is_there_for_a_version(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SOURCES", bench.sources)
    monkeypatch.setattr(build, "core_headers", lambda: bench.headers)
    here, elsewhere = bench.tensorflow.folder, bench.path
    assert build.found("2.21.0", here) == []
    library = bench.plugin()
    assert build.found("2.21.0", here) == [library]
    assert build.found("2.20.0", here) == []
    (elsewhere / "libtensorflow_cc.so.2").write_text("of another build")
    assert build.found("2.21.0", elsewhere) == []
    os.truncate(library, 1)
    assert build.found("2.21.0", here) == []
