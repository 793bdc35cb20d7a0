# SPDX-License-Identifier: Apache-2.0
"""A channel that may choose: when the wire is out it goes on by TCP, and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.rpc.pairings import ROOT, process
from tests.verbs import kernel

pytestmark = pytest.mark.skipif(
    not (kernel.DEVICES / "rxe1").exists(), reason="needs two devices (--net veth)"
)

SHORT = {"TENSORWIRE_VERBS_TIMEOUT": "16", "TENSORWIRE_VERBS_RETRY_COUNT": "2"}

CLIENT = """
import json, sys, grpc, tensorwire
channel = tensorwire.insecure_channel(sys.argv[1], forbid=("shm",))
echo = channel.unary_unary("/test.Raw/echo")
def call():
    try:
        assert echo(b"x" * 50_000, timeout=20) == b"x" * 50_000
        return "OK"
    except grpc.RpcError as error:
        return error.code().name
def say(*codes):
    path = channel.path()
    print(json.dumps([codes, path.transport, path.reasons]), flush=True)
codes = [call()]
while channel.stats()["opened"] == 0:  # a link that is late leaves the first calls to gRPC
    codes.append(call())
say(*codes)
sys.stdin.readline()
codes = []
while len(codes) < 10 and codes[-1:] != ["OK"]:
    codes.append(call())
say(*codes)
"""


def test_calls_go_on_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHORT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TENSORWIRE_VERBS_DEVICE", "rxe1")
    with (
        process(kind="tensorwire") as (target, _),
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, target],
            cwd=ROOT,
            env={**os.environ, "TENSORWIRE_VERBS_DEVICE": "rxe0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client,
    ):
        assert client.stdin is not None
        assert client.stdout is not None
        codes, transport, reasons = json.loads(client.stdout.readline())
        assert (set(codes), transport) == ({"OK"}, "verbs"), reasons
        with kernel.cut():
            client.stdin.write("\n")
            client.stdin.flush()
            codes, transport, reasons = json.loads(client.stdout.readline())
        assert set(codes[:-1]) <= {"UNAVAILABLE"}  # what was under way; never anything else
        assert (codes[-1], transport) == ("OK", "tcp")
        assert reasons["verbs"]
