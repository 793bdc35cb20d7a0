# SPDX-License-Identifier: Apache-2.0
"""Signals, fork, import and the end of the interpreter, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from tests.rpc.pairings import ROOT, process
from tests.transports import HERE

PRELUDE = """
import os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import grpc
import tensorwire
from tests.rpc.pairings import Pairing, local
from tests.rpc.service import Service, path

def serve(kind="tensorwire"):
    pool = ThreadPoolExecutor(4)
    server = {"stock": grpc, "tensorwire": tensorwire}[kind].server(pool)
    server.add_generic_rpc_handlers((Service().handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"
"""


def run(
    code: str, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *arguments],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def output(*arguments: Any, **options: Any) -> str:
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stderr
    assert "nanobind: leaked" not in done.stderr
    return done.stdout.strip()


# ---------------------------------------------------------------------------------------- signals

INTERRUPTED = """
    kind, transport, use, port = sys.argv[1:]
    channel = Pairing("tensorwire", kind, transport).channel(port)
    wait, recall = channel.unary_unary(path("wait")), channel.unary_unary(path("recall"))
    listen = channel.stream_unary(path("listen"))
    def requests():
        yield b"it"
        threading.Event().wait()
    calls = {
        "unary": lambda: wait(b"it"),
        "with_call": lambda: wait.with_call(b"it"),
        "future": lambda: wait.future(b"it").result(),
        "code": lambda: wait.future(b"it").code(),
        "stream_unary": lambda: listen(requests()),
        "stream": lambda: next(channel.stream_stream(path("chat"))(requests_of_nothing())),
    }
    def requests_of_nothing():
        threading.Event().wait()
        yield b""
    def interrupt():
        if use == "stream":
            channel.unary_unary(path("echo"))(b"x")
        else:
            recall(b"it started")
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        calls[use]()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    if use != "stream" and transport != "grpc":  # grpcio cancels when the garbage is collected
        print(recall(b"it"), flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("use", ["unary", "with_call", "future", "code", "stream_unary", "stream"])
@pytest.mark.parametrize("transport", ["shm", "tcp", "grpc"])
def test_interrupt_ends_a_blocked_call(transport: str, use: str) -> None:

    with process(kind="tensorwire") as (target, _):
        said = output(INTERRUPTED, "tensorwire", transport, use, target).splitlines()
    # What the server's handler saw of its call's end: it waits for it, or for requests.
    seen = "b'RpcError'" if use == "stream_unary" else "b'active=False'"
    told = use != "stream" and transport != "grpc"
    assert said == ["interrupted", *([seen] if told else [])]


def test_interrupt_that_another_thread_gets() -> None:
    """The interpreter's main thread is not woken by it, as by one that comes just before it falls
    asleep."""
    said = output(
        """
        def interrupt():
            time.sleep(0.2)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        server, _ = serve()
        threading.Thread(target=interrupt).start()
        try:
            server.wait_for_termination()
        except KeyboardInterrupt:
            print("interrupted")
        server.stop(None)
        """
    )
    assert said == "interrupted"


def test_interrupt_of_a_server_that_waits() -> None:
    said = output(
        """
        server, _ = serve()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            server.wait_for_termination()
        except KeyboardInterrupt:
            print("interrupted")
        server.stop(None)
        """
    )
    assert said == "interrupted"


# ----------------------------------------------------------------------------------------- memory

SHORT_OF_MEMORY = """
    import resource
    channel = tensorwire.insecure_channel(sys.argv[1], transport="tcp")
    zeros = channel.unary_unary(path("zeros"))
    size = 64 << 20
    def limited(more):
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + more if more else -1, -1))
    assert len(zeros(b"1000")) == 1000
    for call in (zeros, lambda request: zeros.future(request).result()):
        limited(size + (size >> 1))  # enough to receive it, not enough to hand it over
        try:
            call(str(size).encode())
        except MemoryError:
            print("MemoryError")
        limited(0)
        assert len(call(b"1000")) == 1000
"""


def test_a_reply_that_python_has_no_memory_for() -> None:
    with process(kind="tensorwire") as (target, _):
        said = output(
            SHORT_OF_MEMORY, target, env={"TENSORWIRE_POOL_BYTES": "0", "MALLOC_ARENA_MAX": "1"}
        )
    assert said.split() == ["MemoryError", "MemoryError"]


# ------------------------------------------------------------------------------------------- fork


def forked(code: str, support: str | None, *arguments: str) -> list[str]:
    """Runs ``code``, which prints what it sees; its children end by os._exit.

    On a busy machine grpcio itself hangs now and then in a child, in the making of a channel, with
    the GIL held: then it is run again.
    """
    for _ in range(3):
        said = _forked(code, support, *arguments)
        if "a child hangs" not in said:
            return said
    pytest.fail("a child hangs each time")


def _forked(code: str, support: str | None, *arguments: str) -> list[str]:
    with process(kind="tensorwire") as (target, _):
        return output(
            """
            target = sys.argv[1]
            def child(work):
                sys.stdout.flush()
                pid = os.fork()
                if pid == 0:
                    signal.alarm(12)
                    try:
                        work()
                    except grpc.RpcError as error:
                        print(error.code().name, error.details())
                    except BaseException as error:
                        print("unexpected", repr(error))
                    finally:
                        sys.stdout.flush()
                        os._exit(0)
                status = os.waitpid(pid, 0)[1]
                if status == signal.SIGALRM:
                    print("a child hangs", flush=True)
                    os._exit(0)
                assert status == 0
            """
            + textwrap.indent(textwrap.dedent(code), " " * 12),
            target,
            *arguments,
            env={} if support is None else {"GRPC_ENABLE_FORK_SUPPORT": support},
        ).splitlines()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_inherited_channel(transport: str) -> None:
    said = forked(
        """
        channel = tensorwire.insecure_channel(target, transport=sys.argv[2])
        echo = channel.unary_unary(path("echo"))
        print(echo(b"parent"))
        stream = channel.stream_stream(path("chat"))(iter([b"1", b"2"]))
        print(next(stream))
        child(lambda: echo(b"child"))
        child(lambda: echo.with_call(b"child"))
        child(lambda: print(echo.future(b"child").result()))
        child(lambda: next(stream))
        child(lambda: print(stream.code()))
        child(channel.close)
        print(list(stream), echo(b"parent again"))
        """,
        "0",
        transport,
    )
    assert said[:2] == ["b'parent'", "b'1'"]
    assert len(said) == 8
    for line in said[2:7]:
        assert line.startswith("FAILED_PRECONDITION"), line
        assert "fork" in line
    assert said[7] == "[b'2'] b'parent again'"


def test_inherited_channel_whose_calls_go_by_grpc() -> None:
    """Also where grpcio could go on using its own."""
    said = forked(
        """
        channel = tensorwire.insecure_channel(target, transport="grpc")
        echo = channel.unary_unary(path("echo"))
        print(echo(b"parent"))
        child(lambda: echo(b"child"))
        child(lambda: print(echo.future(b"child").result()))
        print(echo(b"parent again"))
        """,
        "1",
    )
    assert said[0] == "b'parent'"
    assert [line.partition(" ")[0] for line in said[1:3]] == ["FAILED_PRECONDITION"] * 2
    assert said[3:] == ["b'parent again'"]


SUPPORT = [None, "1"]
"""Of grpcio for fork(): by its core, and by its Python part, too."""


@pytest.mark.parametrize("support", SUPPORT)
@pytest.mark.parametrize("transport", ["shm", "tcp", "grpc"])
def test_new_channel_in_a_child(support: str | None, transport: str) -> None:
    said = forked(
        """
        with tensorwire.insecure_channel(target, transport=sys.argv[2]) as closed:
            closed.unary_unary(path("echo"))(b"parent")
        channel = tensorwire.insecure_channel(target, transport=sys.argv[2])
        print(channel.unary_unary(path("echo"))(b"parent"))
        def work():
            with tensorwire.insecure_channel(target, transport=sys.argv[2]) as mine:
                print(mine.unary_unary(path("echo"))(b"child"), mine.path().transport)
        for _ in range(5):
            child(work)
        print(channel.unary_unary(path("echo"))(b"parent"))
        """,
        support,
        transport,
    )
    assert said == ["b'parent'", *[f"b'child' {transport}"] * 5, "b'parent'"]


@pytest.mark.parametrize("support", SUPPORT)
def test_new_server_in_a_child(support: str | None) -> None:
    said = forked(
        """
        channel = tensorwire.insecure_channel(target)
        print(channel.unary_unary(path("echo"))(b"parent"))
        def work():
            with local("tensorwire") as mine:
                with tensorwire.insecure_channel(mine.target) as own:
                    print(own.unary_unary(path("echo"))(b"child"), own.path().transport)
        child(work)
        child(work)
        """,
        support,
    )
    assert said == ["b'parent'", "b'child' shm", "b'child' shm"]


def test_new_channel_in_a_child_where_grpc_cannot_work() -> None:
    """grpcio would hang: the error says what to do."""
    said = forked(
        """
        channel = tensorwire.insecure_channel(target)
        print(channel.unary_unary(path("echo"))(b"parent"))
        child(lambda: tensorwire.insecure_channel(target).unary_unary(path("echo"))(b"x"))
        child(lambda: tensorwire.server(ThreadPoolExecutor(1)))
        """,
        "0",
    )
    assert said[0] == "b'parent'"
    for line in said[1:]:
        assert line.startswith("FAILED_PRECONDITION")
        assert "GRPC_ENABLE_FORK_SUPPORT=0" in line
    assert len(said) == 3


def test_channel_that_was_made_but_not_used_before_the_fork() -> None:
    said = forked(
        """
        channel = tensorwire.insecure_channel(target)
        child(lambda: print(channel.unary_unary(path("echo"))(b"child"), channel.path().transport))
        print(channel.unary_unary(path("echo"))(b"parent"))
        """,
        "0",
    )
    assert said == ["b'child' shm", "b'parent'"]


def test_callbacks_in_a_child() -> None:
    """The thread that runs them is the parent's; the child gets its own."""
    said = forked(
        """
        def once(who):
            done = threading.Event()
            with tensorwire.insecure_channel(target) as channel:
                future = channel.unary_unary(path("pass_gate")).future(who)
                future.add_done_callback(lambda f: done.set())
                channel.unary_unary(path("open_gate"))(who)
                print(done.wait(20))
        once(b"parent")
        child(lambda: once(b"child"))
        """,
        "1",
    )
    assert said == ["True", "True"]


# ----------------------------------------------------------------------------- import and exit


def test_import_loads_nothing() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, tensorwire\n"
            "print({'grpc', 'numpy', 'msgspec', 'tensorwire._core'} & set(sys.modules))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "set()"


def test_every_public_name_can_be_imported() -> None:
    import tensorwire

    for name in tensorwire.__all__:
        assert getattr(tensorwire, name) is not None
        assert name in dir(tensorwire)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tensorwire.nothing


@pytest.mark.parametrize("transport", HERE)
def test_exit_with_everything_open(transport: str) -> None:
    """Channel, server, a future with a callback and a stream in progress: it just ends."""
    said = output(
        """
        server, target = serve()
        channel = tensorwire.insecure_channel(target, transport=sys.argv[1])
        print(channel.unary_unary(path("echo"))(b"x"))
        future = channel.unary_unary(path("echo")).future(b"x")
        future.add_done_callback(lambda f: None)
        stream = channel.unary_stream(path("endless"))(b"y")
        print(next(stream))
        """,
        transport,
    )
    assert said.splitlines() == ["b'x'", "b'y'"]


def test_exit_while_an_open_is_under_way() -> None:
    """Nobody answers at the target: it is a socket that only listens."""
    said = output(
        """
        import socket
        silent = socket.create_server(("127.0.0.1", 0))
        channel = tensorwire.insecure_channel("127.0.0.1:%d" % silent.getsockname()[1])
        try:
            channel.unary_unary(path("echo"))(b"x", timeout=0.2)
        except grpc.RpcError as error:
            print(error.code().name)
        """
    )
    assert said == "DEADLINE_EXCEEDED"


def test_server_process_ends_by_sigterm() -> None:
    """The usual way: a handler that stops the server with a grace."""
    said = output(
        """
        server, target = serve()
        signal.signal(signal.SIGTERM, lambda *_: server.stop(5))
        os.kill(os.getpid(), signal.SIGTERM)
        server.wait_for_termination()
        print("stopped")
        """
    )
    assert said == "stopped"
