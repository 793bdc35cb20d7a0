# SPDX-License-Identifier: Apache-2.0
"""What peers did wrong reaches the log, in lines that they cannot shape."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tensorwire.launch import free_ports
from tensorwire.log import LOGGER, plain
from tensorwire.observe import audit


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain, with \u00e4 and \u6f22", "plain, with \u00e4 and \u6f22"),
        ("a\nERROR forged", r"a\nERROR forged"),
        ("\x1b[2J\x07\x7f\x9b", r"\x1b[2J\x07\x7f\x9b"),
        ("\u202eesrever\u2028\udc80", r"\u202eesrever\u2028\udc80"),
    ],
)
def test_plain(text: str, line: str) -> None:
    assert plain(text) == line


def test_text_of_peers_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    class Choice:
        def __str__(self) -> str:
            return "grpc\n(not shm)"

    with caplog.at_level(logging.INFO, "tensorwire"):
        LOGGER.info("%s: %s for %.1f s, %d times", "x\ny", Choice(), 1.25, 3)
    assert caplog.messages == [r"x\ny: grpc\n(not shm) for 1.2 s, 3 times"]


PROGRAM = """
import logging, socket, sys
from concurrent.futures import ThreadPoolExecutor
import tensorwire
from tensorwire.observe import audit

logging.basicConfig(format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
server = tensorwire.server(ThreadPoolExecutor(1), forbid="shm", data_port=int(sys.argv[1]))
server.add_insecure_port("127.0.0.1:0")
server.start()
print("listening", flush=True)
sys.stdin.readline()
server.stop(None)
"""


def test_incidents_are_logged_also_at_the_end_of_the_process() -> None:
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    for _ in range(9):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"\n" * 200)
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    lines = process.communicate("\n")[0].splitlines()
    assert process.returncode == 0
    assert len(lines) == 6
    for line in lines:
        assert line.startswith("WARNING tensorwire handshake, garbage: ipv4:127.0.0.1:")
    assert lines[-1].endswith("(3 more since the last line)")


def test_all_reasons_are_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    kind, documented = "", set()
    for row in page[page.index("## Audit trail") :].splitlines():
        cells = [cell.strip(" `") for cell in row.split("|")]
        if len(cells) == 5:
            kind = cells[1] or kind
            documented.add((kind, cells[2]))
    assert set(audit.counts()) == documented - {("kind", "reason"), ("---", "---")}
