# SPDX-License-Identifier: Apache-2.0
"""Profiles of messages: of steps that are made up, and of a program."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.observe.test_trace import MAIN

from tensorwire.bench import inventories
from tensorwire.observe.messages import Buffer, Message
from tensorwire.observe.profile import (
    CLASSES,
    MOST_MESSAGES,
    Profile,
    as_dict,
    class_of,
    plot,
    print_profile,
    profile,
)
from tensorwire.observe.sockets import Connection, Sockets
from tensorwire.observe.trace import Event, LinkTrace, Step, link_trace

MIB = 1 << 20
FIRST_WINDOW = 65_535
"""Bytes that a sender of HTTP/2 has room for at first; larger messages may be cut."""
FRAMING = 255
"""Bytes at most of what gRPC sends beside payloads here: no tensor of the model is as small."""

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

import tensorwire
from tensorwire.rpc import segments

handler = grpc.unary_unary_rpc_method_handler(
    lambda request, context: b"", request_deserializer=segments(list)
)
server = tensorwire.server(ThreadPoolExecutor(2))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"Take": handler}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
for transport in ("shm", "tcp"):
    with tensorwire.insecure_channel(f"127.0.0.1:{port}", transport=transport) as channel:
        take = channel.unary_unary("/t/Take", request_serializer=tuple)
        for payload in ((10, 10 << 10, 1 << 20), (7,)):
            take([np.ones(size, np.uint8) for size in payload])
server.stop(None).wait()
sys.exit(5)
"""


STOCK = """
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
server = grpc.server(ThreadPoolExecutor(2))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"Take": handler}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    take = channel.unary_unary("/t/Take")
    for size in map(int, sys.argv[1:]):
        take(bytes(size))
server.stop(None).wait()
"""


def link(transport: str, *messages: tuple[int, tuple[tuple[Step, int], ...]]) -> LinkTrace:
    """Of messages that are announced at these times, with buffers that go by these steps."""
    events = []
    for number, (time, buffers) in enumerate(messages, 1):
        place = (time, "sent")
        events.append((*place, "MESSAGE", 1, number, len(buffers), 0, 0))
        for segment, (step, size) in enumerate(buffers):
            events.append((*place, step, 1, number, segment, size, 0))
    return link_trace(transport, "peer", len(events), events)


@pytest.mark.parametrize(
    ("size", "name"),
    [(1, "small"), (1023, "small"), (1024, "medium"), (MIB - 1, "medium"), (MIB, "large")],
)
def test_classes_are_those_of_the_paper(size: int, name: str) -> None:
    assert CLASSES[class_of(size)][0] == name


def made() -> Profile:
    return profile(
        [
            link("shm", (5, (("EAGER", 8), ("MAP", 4 * MIB))), (1, (("EAGER", 9),))),
            link("tcp", (3, (("DATA", 2 * MIB), ("EAGER", 1500)))),
        ],
        "sent",
    )


def test_a_profile_puts_buffers_together() -> None:
    told = as_dict(made())
    assert (told["messages"], told["bytes"], told["links_cut"]) == (3, 6 * MIB + 1517, 0)
    assert told["classes"] == [
        {"class": "small", "transport": "shm", "protocol": "eager", "buffers": 2, "bytes": 17},
        {"class": "medium", "transport": "tcp", "protocol": "eager", "buffers": 1, "bytes": 1500},
        {
            "class": "large",
            "transport": "shm",
            "protocol": "mapped",
            "buffers": 1,
            "bytes": 4 * MIB,
        },
        {
            "class": "large",
            "transport": "tcp",
            "protocol": "chunks",
            "buffers": 1,
            "bytes": 2 * MIB,
        },
    ]
    assert [(each["from"], each["transport"], each["buffers"]) for each in told["histogram"]] == [
        (8, "shm", 2),
        (1024, "tcp", 1),
        (2 * MIB, "tcp", 1),
        (4 * MIB, "shm", 1),
    ]
    assert told["channels"] == [
        {"transport": "shm", "messages": 2, "buffers": 3, "bytes": 4 * MIB + 17},
        {"transport": "tcp", "messages": 1, "buffers": 2, "bytes": 2 * MIB + 1500},
    ]
    trace = [(each["time_ns"], each["transport"], each["buffers"]) for each in told["trace"]]
    assert trace == [(1, "shm", [9]), (3, "tcp", [2 * MIB, 1500]), (5, "shm", [8, 4 * MIB])]


@given(st.lists(st.lists(st.integers(1, 1 << 30), min_size=1, max_size=5), max_size=20))
def test_classes_and_histogram_have_every_byte(sizes: list[list[int]]) -> None:
    messages = [
        (time, tuple(("DATA", size) for size in buffers)) for time, buffers in enumerate(sizes)
    ]
    told = as_dict(profile([link("tcp", *messages)], "sent"))  # type: ignore[arg-type]
    total, count = sum(map(sum, sizes)), sum(map(len, sizes))
    for part in ("classes", "histogram"):
        assert sum(each["bytes"] for each in told[part]) == total == told["bytes"]
        assert sum(each["buffers"] for each in told[part]) == count


def printed(found: Profile) -> str:
    text = io.StringIO()
    print_profile(found, Console(file=text, width=120))
    return text.getvalue()


def test_a_long_profile_lists_the_first_messages() -> None:
    found = profile([link("tcp", *[(each, (("DATA", 8),)) for each in range(2500)])], "sent")
    told = as_dict(found)
    assert told["messages"] == 2500
    assert [each["time_ns"] for each in told["trace"]] == list(range(MOST_MESSAGES))


def test_what_was_not_kept_is_told() -> None:
    events = [Event(1, "sent", "MESSAGE", 1, 1, 1, 8, 0)]
    whole = LinkTrace("tcp", "peer", 1, tuple(events), {"sent": {}, "received": {}})
    assert "--keep" not in printed(profile([whole], "sent"))
    cut = LinkTrace("tcp", "peer", 2, tuple(events), {"sent": {}, "received": {}})
    assert "Of 1 links only the last steps were kept" in printed(profile([cut, whole], "sent"))


def test_stock_grpc_is_one_of_the_channels() -> None:
    buffers = (Buffer(23, "sendmsg"), Buffer(2 * MIB, "sendmsg, zero copy"))
    connection = Connection(7, "10.0.0.1:80", False, 1, 2 * MIB + 23, [Message(2, buffers)])
    secured = Connection(7, "10.0.0.1:443", True, 3, 5000, [])
    sockets = Sockets(frozenset([7]), [connection, secured], 1, 2, 3)
    found = profile([link("shm", (1, (("EAGER", 8),)))], "sent", sockets)
    told = as_dict(found)
    assert [(each["transport"], each["bytes"]) for each in told["channels"]] == [
        ("grpc", 2 * MIB + 23),
        ("shm", 8),
    ]
    assert told["trace"][1] == {
        "time_ns": 2,
        "pid": 7,
        "transport": "grpc",
        "peer": "10.0.0.1:80",
        "buffers": [23, 2 * MIB],
    }
    assert told["grpc"]["left_out"] == {"connections": 1, "buffers": 2, "calls": 3}
    text = printed(found)
    for words in (
        "1 messages sent over grpc, 2,097,175 bytes in 2 buffers",
        "sendmsg, zero copy",
        "1 connections with TLS sent 5,000 bytes",
        "2 buffers of gRPC had no room",
        "1 connections had no room, and 3 calls",
    ):
        assert words in text


def test_why_stock_grpc_is_missing_is_told() -> None:
    found = profile([], "sent", None, "there is no loader")
    assert "there is no loader" in printed(found)
    assert as_dict(found)["grpc"] == {"recorded": False, "why": "there is no loader"}


def test_nothing_is_told() -> None:
    assert "No message with a payload was received" in printed(profile([], "received"))


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
@pytest.mark.parametrize("found", [made(), profile([], "sent")], ids=["some", "none"])
def test_a_picture(tmp_path: Path, found: Profile) -> None:
    plot(found, tmp_path / "sizes.svg")
    assert (tmp_path / "sizes.svg").read_text().startswith("<?xml")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "profile", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.timeout(180)
def test_the_messages_of_a_program(tmp_path: Path) -> None:
    program, output = tmp_path / "program.py", tmp_path / "profile.json"
    program.write_text(PROGRAM)
    done = command("--output", str(output), "--", sys.executable, str(program))
    assert done.returncode == 5, done.stderr
    assert "2 messages sent over shm" in done.stdout
    told = json.loads(output.read_text())
    channels = {each["transport"]: each for each in told["channels"]}
    for transport in ("shm", "tcp"):
        assert channels[transport]["bytes"] == 10 + (10 << 10) + MIB + 7
    assert 0 < channels["grpc"]["bytes"] < 10 << 10, "what opened the links, and none of their own"
    payloads = [
        (each["transport"], each["buffers"])
        for each in told["trace"]
        if each["transport"] != "grpc"
    ]
    assert payloads == [
        (transport, buffers)
        for transport in ("shm", "tcp")
        for buffers in ([10, 10 << 10, MIB], [7])
    ]
    large = {each["transport"]: each["protocol"] for each in told["classes"][-2:]}
    assert large == {"shm": "mapped", "tcp": "chunks"}
    received = command("--received", "--json", "--", sys.executable, str(program))
    again = json.loads(received.stdout)
    assert (again["direction"], again["bytes"]) == ("received", 2 * channels["shm"]["bytes"])
    assert not again["grpc"]["recorded"]


@pytest.mark.timeout(180)
def test_bands_of_a_model_over_stock_grpc() -> None:
    """The tensors of ResNet-50 that go whole from the start, each as a message: they are in the
    trace in their order, as far as its 2,000 messages go, and all of them in the classes and in the
    histogram."""
    of_model = [4 * tensor.elements for tensor in inventories.load("resnet50")]
    sent = [size for size in of_model if size < FIRST_WINDOW] * 10
    assert len(sent) > 1000, "there is an answer to each, so that not all are listed"
    done = command("--json", "--", sys.executable, "-c", STOCK, *map(str, sent))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["messages"] > len(told["trace"]) == MOST_MESSAGES
    traced = [size for each in told["trace"] for size in each["buffers"] if size > FRAMING]
    assert traced == sent[: len(traced)], "in their order"
    assert {*traced} == {*sent}
    payloads = Counter(1 << (size.bit_length() - 1) for size in sent)
    histogram = {each["from"]: each["buffers"] for each in told["histogram"]}
    assert {size: count for size, count in histogram.items() if size >= 256} == payloads
    medium = sum(size >= 1024 for size in sent)
    assert [each["buffers"] for each in told["classes"] if each["class"] == "medium"] == [medium]


def test_no_such_program() -> None:
    done = command("--", "/no/such/program")
    assert done.returncode == 127
    assert "cannot run '/no/such/program'" in done.stderr
