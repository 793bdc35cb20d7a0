# SPDX-License-Identifier: Apache-2.0
"""``tensorwire run`` and the programs under it, with a plugin that does nothing: what is injected,
who inherits it, what ends a program, and what is printed at its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tensorflow.tiny import Tiny

from tensorwire.tensorflow.run import SITE

pytestmark = pytest.mark.timeout(180)
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")

COMMAND = [sys.executable, "-c", "from tensorwire.cli import main; main()", "run"]
PATIENCE = 100


class Programs:
    """Runs programs by the command. A sitecustomize of the user's own, behind the injected one,
    says that it has run, and makes the tiny plugin the one that is built."""

    def __init__(self, path: Path) -> None:
        self.tiny = Tiny(path)
        site = path / "site"
        site.mkdir()
        text = self.tiny.prologue() + "import os; os.environ['USERS_OWN'] = 'has run'\n"
        (site / "sitecustomize.py").write_text(text)
        folders = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**self.tiny.environment, "PYTHONPATH": os.pathsep.join(folders)}

    def run(
        self, program: str, *options: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *options, "--", sys.executable, "-c", program],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("run"))


PROGRAM = """
import os, subprocess, sys
import tensorflow as tf
import tensorwire.tensorflow
assert tensorwire.tensorflow.enabled()
assert "exec_module" not in vars(tf.__spec__.loader)
assert os.environ["USERS_OWN"] == "has run"
try:
    tf.distribute.Server({"a": ["127.0.0.1:0"]})
except tf.errors.NotFoundError as error:
    print("+tensorwire" in str(error))
if len(sys.argv) == 1:
    child = "import tensorflow, tensorwire.tensorflow; print(tensorwire.tensorflow.enabled())"
    subprocess.run([sys.executable, "-c", child], check=True)
"""


@needs_tensorflow
def test_servers_of_a_program_and_its_children_get_tensorwire(programs: Programs) -> None:
    done = programs.run(PROGRAM, "--stats")
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n"), done.stderr
    tables = re.findall(
        r"tensorwire in process (\d+), TensorFlow [\d.]+:\n((?:  .*\n)+)", done.stderr
    )
    assert len({pid for pid, _ in tables}) == 2
    for _, lines in tables:
        assert (
            lines == "  started                      1\n  received: over tcp, copied  12  3.0 MiB\n"
        )


@needs_tensorflow
def test_children_of_multiprocessing(programs: Programs, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "def child():\n"
        "    import tensorflow, tensorwire.tensorflow\n"
        "    print(tensorwire.tensorflow.enabled(), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(); process.join()\n"
    )
    done = subprocess.run(
        [*COMMAND, sys.executable, str(script)],
        env=programs.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@needs_tensorflow
def test_without_a_compiler(programs: Programs, tmp_path: Path) -> None:
    broken = {"CXX": "/no/such/compiler", "XDG_CACHE_HOME": str(tmp_path)}
    program = (
        "import tensorflow as tf\n"
        "print(tf.distribute.Server({'a': ['127.0.0.1:0']}, start=False).target)"
    )
    done = programs.run(program, **broken)
    assert (done.returncode, done.stdout) == (1, "")
    assert "tensorwire: TensorFlow's plugin is compiled at first use and needs" in done.stderr
    assert "--fallback" in done.stderr
    assert "Traceback" not in done.stderr

    done = programs.run(program, "--fallback", **broken)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("grpc://")
    assert "tensorwire: going on with stock gRPC: TensorFlow's plugin is compiled" in done.stderr


IMPORTED_IN_A_THREAD = """
import threading
print("begins")
thread = threading.Thread(target=__import__, args=("tensorflow",))
thread.start()
thread.join()
print("goes on")
"""


@needs_tensorflow
def test_a_wrong_setting_ends_a_program_that_imports_tensorflow_in_a_thread(
    programs: Programs,
) -> None:
    """Even with --fallback. SystemExit would end that thread alone, without a word."""
    done = programs.run(IMPORTED_IN_A_THREAD, "--fallback", TF_RDMA_ENABLED="perhaps")
    assert (done.returncode, done.stdout) == (1, "begins\n")
    why = "tensorwire: TF_RDMA_ENABLED='perhaps' is not permitted: set true, "
    assert done.stderr.count(why) == 1
    done = programs.run(IMPORTED_IN_A_THREAD)
    assert (done.returncode, done.stdout) == (0, "begins\ngoes on\n"), done.stderr


# The thread looks for TensorFlow while the main thread imports it, and so waits for that.
ENABLED_MEANWHILE = """
import sys, threading
import tensorwire.tensorflow
from tensorwire.tensorflow import build, protocol, settings
settings.wanted()  # the thread can import nothing while a finder is at work
looks = threading.Event()
installed = build.installed
def found():
    looks.set()
    return installed()
build.installed = found
thread = threading.Thread(target=tensorwire.tensorflow.enable)
class Finder:
    def find_spec(self, name, path, target=None):
        if name.startswith("tensorflow.") and thread.ident is None:
            thread.start()
            assert looks.wait(60)
sys.meta_path.insert(0, Finder())
import tensorflow
thread.join()
print(tensorwire.tensorflow.enabled(), tensorwire.tensorflow.stats()["started"])
"""


@needs_tensorflow
def test_a_thread_that_enables_it_while_another_one_imports_tensorflow(programs: Programs) -> None:
    done = programs.run(ENABLED_MEANWHILE)
    assert (done.returncode, done.stdout) == (0, "True 1\n"), done.stderr


@needs_tensorflow
def test_the_stock_engine(programs: Programs) -> None:
    """By the setting that no test of clusters has."""
    done = programs.run("import tensorflow", "--stats", TENSORWIRE_TRANSPORT="grpc")
    assert done.returncode == 0
    assert "stock gRPC, because TENSORWIRE_TRANSPORT=grpc\n" in done.stderr


# Waits where no signal handler of Python's can run, as a server does that serves for ever.
SERVER = """
import ctypes, os, sys
import tensorflow
if sys.argv[1:]:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print("child ended", flush=True)
        os.kill(os.getpid(), 15)
    else:
        os.kill(os.getpid(), 15)
lock = ctypes.create_string_buffer(64)
print("waiting", flush=True)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(lock)
"""


@contextlib.contextmanager
def started(programs: Programs, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Under ``tensorwire run --stats``; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, "--stats", sys.executable, "-c", program, *arguments],
        env=programs.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def check_ended_with_its_table(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGTERM
    assert errors.count("tensorwire in process") == 1
    assert f"tensorwire in process {process.pid}," in errors


@needs_tensorflow
@pytest.mark.parametrize("forks", [False, True], ids=["alone", "forked child"])
def test_what_sigterm_ends_prints_its_table(programs: Programs, forks: bool) -> None:
    with started(programs, SERVER, *["fork"] * forks) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == ("child ended\n" if forks else "waiting\n")
        if not forks:
            process.terminate()
        check_ended_with_its_table(process)


# An event loop that handles a signal has Python's wake-up pipe for itself.
EVENT_LOOP = """
import asyncio, signal, sys
async def main():
    if sys.argv[1] == "before":
        import tensorflow
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    if sys.argv[1] == "after":
        import tensorflow
    print("waiting", flush=True)
    await interrupted.wait()
    print("interrupted", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@needs_tensorflow
@pytest.mark.parametrize("imported", ["before", "after"])
def test_an_event_loop_that_handles_signals(programs: Programs, imported: str) -> None:
    with started(programs, EVENT_LOOP, imported) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        process.terminate()
        check_ended_with_its_table(process)


def test_a_program_without_tensorflow_is_left_alone(programs: Programs) -> None:
    done = programs.run("import sys; print('fine'); sys.exit(3)", "--stats")
    assert (done.returncode, done.stdout, done.stderr) == (3, "fine\n", "")


def test_a_python_that_has_no_tensorwire(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").touch()
    # An installed tensorwire may stand ahead of everything in PYTHONPATH.
    hidden = "import sys; sys.modules['tensorwire'] = None"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}; print('starts'); import tensorflow; print('goes on')"],
        env={**os.environ, "PYTHONPATH": f"{SITE}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (1, "starts\n")
    assert "tensorwire: cannot be imported by" in done.stderr


def test_tensorflow_that_fails_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise RuntimeError('broken')")
    program = (
        "for _ in range(2):\n"
        "    try:\n"
        "        import tensorflow\n"
        "    except RuntimeError as error:\n"
        "        print(error)\n"
        "try:\n"
        "    import tensorflow.no_such_part\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{SITE}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (0, "broken\n" * 3), done.stderr


def test_a_cluster_of_programs(programs: Programs) -> None:
    program = "import os; print(os.environ['TENSORWIRE_RUN'], '{job}', '{index}')"
    done = programs.run(program, "--launch", "a=1,b=1", "--stats")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[a 0] stats a 0", "[b 0] stats b 0"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--launch", "ps", "true"], 2, "'ps' is not job=count"),
        (["--launch", "ps=1", "echo", "{worker_hosts}"], 2, "no job 'worker'"),
        ([], 2, "Missing argument"),
        (["/no/such/program"], 127, "cannot run '/no/such/program': No such file"),
        (["--launch", "w=1", "sh", "-c", "exit 9"], 9, "w 0 failed with exit code 9"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, says: str) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == code
    assert says in done.stderr
