# SPDX-License-Identifier: Apache-2.0
"""A local cluster of processes: what each is told, how all of them end, and that none stays."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launch.launcher import PATIENCE, gone, wait_for

from tensorwire import launch
from tensorwire.launch import Task, jobs, leftovers, processes


class Lines:
    """Takes the output of a run; ``of(job, index)`` are a task's lines."""

    def __init__(self) -> None:
        self.seen: defaultdict[tuple[str, int, str], list[str]] = defaultdict(list)

    def __call__(self, task: Task, stream: str, line: bytes) -> None:
        self.seen[task.job, task.index, stream].append(line.decode().rstrip("\n"))

    def of(self, job: str, index: int, stream: str = "stdout") -> list[str]:
        return self.seen[job, index, stream]


def run(spec: str, *command: str, **options: object) -> tuple[int, Lines]:
    lines = Lines()
    ended = launch.run(
        launch.cluster(spec),
        command,
        output=lines,
        timeout=PATIENCE,
        **options,  # type: ignore[arg-type]
    )
    return ended.code, lines


def test_each_process_is_told_the_cluster_and_its_place() -> None:
    script = 'echo "{job} {index} {ps_hosts} {worker_hosts}"; echo $TF_CONFIG'
    code, lines = run("ps=1,worker=2", "sh", "-c", script, serving=())
    assert code == 0
    told = {place: lines.of(*place) for place in (("ps", 0), ("worker", 0), ("worker", 1))}
    configs = {place: json.loads(words[1]) for place, words in told.items()}
    jobs = configs["ps", 0]["cluster"]
    assert {job: len(hosts) for job, hosts in jobs.items()} == {"ps": 1, "worker": 2}
    assert len({*jobs["ps"], *jobs["worker"]}) == 3
    for (job, index), words in told.items():
        assert words[0] == f"{job} {index} {jobs['ps'][0]} {','.join(jobs['worker'])}"
        assert configs[job, index] == {"cluster": jobs, "task": {"type": job, "index": index}}


def test_streams_stay_apart_and_the_last_line_needs_no_end() -> None:
    code, lines = run("worker=1", "sh", "-c", "echo one; printf two; echo three >&2")
    assert code == 0
    assert lines.of("worker", 0) == ["one", "two"]
    assert lines.of("worker", 0, "stderr") == ["three"]


def test_much_output_arrives_whole() -> None:
    program = "for i in range(50_000): print(i, 'x' * 40)"
    code, lines = run("worker=2", sys.executable, "-c", program)
    assert code == 0
    for index in range(2):
        assert [int(line.split()[0]) for line in lines.of("worker", index)] == list(range(50_000))


def test_lines_are_prefixed(capfd: pytest.CaptureFixture[str]) -> None:
    cluster = launch.cluster("ps=1,worker=1")
    ended = launch.run(cluster, ["sh", "-c", "echo to {job}; echo no >&2"], serving=())
    assert ended == launch.Ended(0)
    found = capfd.readouterr()
    assert sorted(found.out.splitlines()) == ["[ps 0]     to ps", "[worker 0] to worker"]
    assert sorted(found.err.splitlines()) == ["[ps 0]     no", "[worker 0] no"]


def test_a_command_may_be_made_for_each_task_and_other_braces_stay() -> None:
    lines = Lines()
    ended = launch.run(
        launch.cluster("a=1,b=1"),
        lambda task: ["echo", task.address, "{index}"] if task.job == "a" else ["echo", '{"x": 1}'],
        output=lines,
        timeout=PATIENCE,
    )
    assert ended.code == 0
    assert lines.of("a", 0)[0].endswith(" {index}")
    assert lines.of("b", 0) == ['{"x": 1}']


def test_the_environment_is_added_to() -> None:
    code, lines = run("w=1", "sh", "-c", "echo $COLOUR $HOME", environment={"COLOUR": "red"})
    assert (code, lines.of("w", 0)) == (0, [f"red {os.environ['HOME']}"])


def test_tasks_have_no_rank_of_a_launcher_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_JOB_ID": "9",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "TENSORWIRE_STORE": "a:1",
        "TENSORWIRE_REJOIN": "1",
    }
    for name, value in outside.items():
        monkeypatch.setenv(name, value)
    program = (
        "import os; from tensorwire.launch.place import find; place = find(os.environ); "
        "print(place.rank, place.size, place.served, place.again, os.environ['SLURM_JOB_ID'])"
    )
    code, lines = run("worker=2", sys.executable, "-c", program)
    assert code == 0
    for index in range(2):
        assert lines.of("worker", index) == [f"{index} 2 False False 9"]


def test_serving_processes_end_once_the_others_have() -> None:
    code, _ = run("ps=2,worker=1", "sh", "-c", "test {job} = worker || exec sleep 1000")
    assert code == 0


@pytest.mark.parametrize(
    ("spec", "serving"),
    [
        ("ps=1,worker=2", {"ps"}),
        ("chief=1,ps=1,worker=2", {"ps", "worker"}),
        ("chief=1,worker=1", set()),
        ("worker=2", set()),
    ],
)
def test_who_serves(spec: str, serving: set[str]) -> None:
    assert launch.cluster(spec).serving == serving


@pytest.mark.parametrize(
    ("command", "expected", "says"),
    [
        ("exit 7", 7, "worker 1 failed with exit code 7"),
        ("kill -9 $$", 137, "worker 1 was ended by SIGKILL"),
    ],
)
def test_one_failure_ends_all(
    command: str, expected: int, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"case {{job}}{{index}} in worker1) {command};; *) exec sleep 1000;; esac"
    code, _ = run("ps=1,worker=2", "sh", "-c", script)
    assert code == expected
    assert says in capfd.readouterr().err


def test_the_first_that_failed_is_named_with_its_last_lines(tmp_path: Path) -> None:
    script = f"""
    echo "2026-01-01 00:00:00.000001: I tensorflow/core/platform/cpu.cc:1] banner" >&2
    if [ {{index}} = 1 ]; then
      until [ -e {tmp_path}/trapped ]; do sleep 0.01; done
      seq 100 >&2; echo "ValueError: the cause" >&2; exit 3
    fi
    trap 'echo "a consequence" >&2; exit 4' TERM
    : > {tmp_path}/trapped
    while :; do sleep 0.01; done
    """
    lines = Lines()
    ended = launch.run(
        launch.cluster("worker=2"), ["sh", "-c", script], output=lines, timeout=PATIENCE
    )
    assert ended.code == 3
    why = ended.why.splitlines()
    assert why[0] == "worker 1 failed with exit code 3"
    assert why[-1] == "    ValueError: the cause"
    assert len(why) == 1 + processes.LAST_LINES
    assert "a consequence" in lines.of("worker", 0, "stderr")


def test_the_first_that_failed_is_known_however_late_that_is_seen(tmp_path: Path) -> None:
    """worker 1 ends before worker 0 does, and nobody looks until both have."""
    script = f"""
    if [ {{job}} = talker ]; then echo go; exit; fi
    echo $$ > {tmp_path}/pid{{index}}
    until [ -e {tmp_path}/end{{index}} ]; do sleep 0.01; done
    exit 1{{index}}
    """
    pids: list[int] = []

    def output(task: Task, stream: str, line: bytes) -> None:
        for index in (1, 0):
            pids.append(int(wait_for(tmp_path / f"pid{index}")))
            (tmp_path / f"end{index}").touch()
            assert gone(pids[-1])

    ended = launch.run(
        launch.cluster("worker=2,talker=1"), ["sh", "-c", script], output=output, timeout=PATIENCE
    )
    assert len(pids) == 2
    assert ended == launch.Ended(11, "worker 1 failed with exit code 11")


def test_without_pidfd_ends_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert run("worker=2", "sh", "-c", "exit {index}")[0] == 1


def test_the_banner_of_tensorflow_is_no_cause() -> None:
    cuda = "Attempting to register factory for plugin cuDNN when one has already been registered"
    script = f"""
    echo "2026-01-01 00:00:00.000001: E external/local_xla/x.cc:9261] Unable to register cuDNN \
factory: {cuda}" >&2
    echo "E0000 00:00:1.1 1 cuda_fft.cc:467] Unable to register cuFFT factory: {cuda}" >&2
    echo "2026-01-01 00:00:00.000001: W tensorflow/core/x.cc:1] warning" >&2
    echo "WARNING: All log messages before absl::InitializeLog() is called ..." >&2
    echo "I0000 00:00:1.1 1 port.cc:153] oneDNN custom operations are on." >&2
    echo "the cause" >&2
    exit 3
    """
    ended = launch.run(
        launch.cluster("worker=1"), ["sh", "-c", script], output=Lines(), timeout=PATIENCE
    )
    assert ended.why.splitlines() == ["worker 0 failed with exit code 3", "    the cause"]


def test_a_serving_process_that_fails_ends_all() -> None:
    code, _ = run("ps=1,worker=1", "sh", "-c", "test {job} = worker && exec sleep 1000; exit 3")
    assert code == 3


def test_a_command_that_is_not_there() -> None:
    code, lines = run("worker=1", "/no/such/program")
    assert code == 127
    assert lines.of("worker", 0, "stderr") == [
        "cannot run '/no/such/program': No such file or directory"
    ]


def test_who_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    script = (
        f"if [ {{job}} = ps ]; then trap '' TERM; echo $$ > {deaf}; while :; do sleep 1; done; fi;"
        f"until [ -s {deaf} ]; do sleep 0.01; done; exit 5"
    )
    code, _ = run("ps=1,worker=1", "sh", "-c", script, grace=0.2)
    assert code == 5
    assert gone(int(deaf.read_text()))


def test_what_a_task_has_started_ends_with_it(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code, _ = run("worker=1", "sh", "-c", f"sleep 1000 & echo $! > {child}")
    assert code == 0
    assert gone(int(child.read_text()))


SERVES_UNTIL_KILLED = """
import os, signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import tensorwire
server = tensorwire.server(ThreadPoolExecutor(1))
server.add_insecure_port("127.0.0.1:0")
server.start()
print(*Path(os.environ["XDG_RUNTIME_DIR"]).iterdir(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_is_killed_leaves_no_socket(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders["XDG_RUNTIME_DIR"]))
    code, lines = run("worker=1", sys.executable, "-c", SERVES_UNTIL_KILLED)
    assert code == 137
    assert "/tensorwire-link-" in lines.of("worker", 0)[0]
    assert list(folders["XDG_RUNTIME_DIR"].iterdir()) == []


def test_time_is_up() -> None:
    lines = Lines()
    cluster = launch.cluster("ps=1")
    ended = launch.run(cluster, ["sleep", "1000"], output=lines, timeout=0.1)
    assert ended == launch.Ended(launch.TIMED_OUT, "0.1 s have passed")


def test_from_another_thread() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run("worker=2", "true")[0]))
    thread.start()
    thread.join(PATIENCE)
    assert codes == [0]


def test_an_output_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[bool] = []
    monkeypatch.setattr(leftovers, "remove", lambda: removed.append(True))

    def output(task: Task, stream: str, line: bytes) -> None:
        if stream == "stdout" or line != b"one\n":
            raise BrokenPipeError
        (tmp_path / "seen").touch()

    # The launcher has read what stderr holds, which has no end yet, when stdout fails.
    script = f"""
    printf 'one\\nunfinished' >&2
    until [ -e {tmp_path}/seen ]; do sleep 0.01; done
    echo; exec sleep 1000
    """
    with pytest.raises(BrokenPipeError):
        launch.run(launch.cluster("w=1"), ["sh", "-c", script], output=output, timeout=PATIENCE)
    assert removed == [True]


def test_a_line_whose_end_comes_in_two_parts() -> None:
    lines = Lines()
    cluster = launch.cluster("w=1")
    running = processes._Running(cluster, frozenset(), lines, 0.0)
    reader, writer = os.pipe()
    try:
        with open(reader, "rb") as file:
            pipe = processes._Pipe(cluster.tasks[0], "stdout", file)
            for part in (b"one\r", b"\n", b"\ntwo\r", b"three\r\n"):
                os.write(writer, part)
                running._read(pipe)
    finally:
        os.close(writer)
        running.close()
    assert [line.rstrip("\r") for line in lines.of("w", 0)] == ["one", "", "two", "three"]


def test_free_ports_are_free_and_not_for_clients() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = launch.free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        assert port < lowest
        with socket.socket() as listener:
            listener.bind((jobs.HOST, port))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "'' is not job=count"),
        ("ps", "'ps' is not job=count"),
        ("ps=0", "'ps=0' is not job=count"),
        ("ps=-1", "'ps=-1' is not job=count"),
        ("Ps=1", "'Ps=1' is not job=count"),
        ("ps=1,,worker=1", "'' is not job=count"),
        ("ps=1,ps=2", "job 'ps' is there twice"),
        ("worker=257", "at most 256"),
    ],
)
def test_a_wrong_spec_is_refused(spec: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        launch.cluster(spec)


@given(st.text(alphabet="psw=,0123 ²_-", max_size=30))
def test_any_spec_is_a_cluster_or_a_value_error(spec: str) -> None:
    try:
        found = launch.cluster(spec)
    except ValueError:
        return
    text = ",".join(f"{job}={len(tasks)}" for job, tasks in found.jobs.items())
    assert launch.cluster(text).jobs.keys() == found.jobs.keys()


def test_hosts_of_a_job_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no job 'chief', only ps, worker"):
        run("ps=1,worker=1", "echo", "{chief_hosts}")
    with pytest.raises(ValueError, match="no job 'chief'"):
        run("worker=1", "true", serving=["chief"])


def test_others_go_on_when_one_fails_and_it_is_started_again(tmp_path: Path) -> None:
    """Worker 0 ends once worker 1 has been started again, which fails once more when worker 0 has
    ended and so let its lock go."""
    program = """
import fcntl, os, pathlib, sys
here = pathlib.Path(sys.argv[2])
def wait_for(name):
    while not (here / name).exists():
        os.sched_yield()
if sys.argv[1] == "0":
    lock = open(here / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (here / "locked").touch()
    wait_for("again")
    sys.exit(0)
wait_for("locked")
if "AGAIN" in os.environ:
    (here / "again").touch()
    lock = open(here / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("was there again", flush=True)
sys.exit(3)
"""
    command = (sys.executable, "-c", program, "{index}", str(tmp_path))
    code, lines = run("worker=2", *command, restarts=1, restarted={"AGAIN": "1"})
    assert (code, lines.of("worker", 1)) == (0, ["was there again"])


def test_the_last_one_that_fails_ends_a_run_that_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    code, _ = run("worker=2", sys.executable, "-c", "import sys; sys.exit(3)", restarts=0)
    assert code == 3
    assert "the others go on" in capfd.readouterr().err


@pytest.mark.parametrize(("spec", "restarts"), [("ps=1,worker=2", 0), ("ps=1,worker=1", 1)])
def test_who_only_serves_does_not_go_on(spec: str, restarts: int) -> None:
    script = "test {job} = ps && exec sleep 1000; exit 7"
    assert run(spec, "sh", "-c", script, restarts=restarts)[0] == 7
