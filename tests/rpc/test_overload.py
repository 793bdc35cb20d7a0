# SPDX-License-Identifier: Apache-2.0
"""More calls than a server can serve: what nobody waits for any more is not run."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from tests.rpc.pairings import DATA_PLANE, Pairing, local
from tests.rpc.service import LIMIT_SECONDS, path

QUEUED = 20
_APART = (("grpc.use_local_subchannel_pool", 1),)


def dropped(server: Any) -> int:
    return sum(int(link["calls_dropped"]) for link in server.stats())


@pytest.mark.parametrize("how", ["DEADLINE_EXCEEDED", "CANCELLED"])
def test_calls_that_ended_in_the_queue_are_not_run(pairing: Pairing, how: str) -> None:
    timeout = 0.2 if how == "DEADLINE_EXCEEDED" else None
    with local(pairing.server, workers=1) as server, pairing.channel(server.target) as channel:
        diary = server.service.diary
        pass_gate = channel.unary_unary(path("pass_gate"))
        first = pass_gate.future(b"gate")
        diary.read("gate started")
        queued = [pass_gate.future(f"queued{n}".encode(), timeout=timeout) for n in range(QUEUED)]
        for call in queued:
            if timeout is None:
                call.cancel()
            assert call.code() is grpc.StatusCode[how]
        # Answered without a worker, and on the same connection: what came before it is known.
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            channel.unary_unary("/no/Method")(b"", timeout=LIMIT_SECONDS)
        server.service.gates["gate"].set()
        assert first.result(LIMIT_SECONDS) == b"passed"
        assert channel.unary_unary(path("echo"))(b"next", timeout=LIMIT_SECONDS) == b"next"
        assert not [n for n in range(QUEUED) if diary.has(f"queued{n} started")]
        if pairing in DATA_PLANE:
            assert dropped(server.server) == QUEUED


@pytest.mark.parametrize("pairing", DATA_PLANE, ids=str)
def test_who_starts_many_calls_keeps_only_itself_waiting(pairing: Pairing) -> None:
    with (
        local(pairing.server, workers=1) as server,
        pairing.channel(server.target, options=_APART) as greedy,
        pairing.channel(server.target, options=_APART) as modest,
    ):
        diary, gates = server.service.diary, server.service.gates
        first = greedy.unary_unary(path("pass_gate")).future(b"gate")
        diary.read("gate started")
        for n in range(QUEUED):
            gates[f"queued{n}"].set()
        queued = [
            greedy.unary_unary(path("pass_gate")).future(f"queued{n}".encode())
            for n in range(QUEUED)
        ]
        one = modest.unary_unary(path("pass_gate")).future(b"one")
        for channel in (greedy, modest):  # answered without a worker: all before it is known
            with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
                channel.unary_unary("/no/Method")(b"", timeout=LIMIT_SECONDS)
        gates["gate"].set()
        diary.read("one started")
        assert sum(diary.has(f"queued{n} started") for n in range(QUEUED)) <= 2
        gates["one"].set()
        assert [call.result(LIMIT_SECONDS) for call in (first, one, *queued)] == [b"passed"] * (
            QUEUED + 2
        )
