# SPDX-License-Identifier: Apache-2.0
"""Payloads of a recorded trace."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import tensorwire
from tensorwire import trace
from tensorwire.bench.suites.tf_grpc.replay import MOST_MESSAGES, of_trace
from tensorwire.observe import profile
from tensorwire.observe.messages import Buffer
from tensorwire.observe.trace import as_dict
from tensorwire.rpc import segments
from tensorwire.transports import why_not

PAYLOADS = [
    (10, 10 << 10, 1 << 20),
    (5 << 20,),
    (7,),
    (5 << 20, 10, 20, 2 << 20, 40, 40),
    (5000,) * 8,
    (300_000, 2),
]
# 10 and 20 went in one frame.
REPLAYED = [*PAYLOADS[:3], (5 << 20, 15, 15, 2 << 20, 40, 40), *PAYLOADS[4:]]


def written(folder: Path, links: list[dict[str, Any]]) -> Path:
    path = folder / "steps.json"
    path.write_text(json.dumps({"links": links, "groups": []}))
    return path


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_a_program_has_sent(tmp_path: Path, transport: Any) -> None:
    if (reason := why_not(transport)) is not None:
        pytest.skip(reason)
    handler: grpc.RpcMethodHandler[Any, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda request, context: b"", request_deserializer=segments(list)
    )
    server = tensorwire.server(ThreadPoolExecutor(2))
    handlers = grpc.method_handlers_generic_handler("tests.Replay", {"Take": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    trace.keep(10_000)
    try:
        with tensorwire.insecure_channel(f"127.0.0.1:{port}", transport=transport) as channel:
            take = channel.unary_unary("/tests.Replay/Take", request_serializer=tuple)
            for payload in PAYLOADS:
                take([np.ones(size, np.uint8) for size in payload])
            found = channel.trace()
            assert found is not None
    finally:
        trace.keep(0)
        server.stop(None).wait()
    workload = of_trace(written(tmp_path, [as_dict(found, events=True)]))
    assert list(workload.payloads) == REPLAYED
    assert workload.name == "trace steps.json"


def event(time: int, step: str, message: int, segment: int, nbytes: int, **more: Any) -> Any:
    usual = {"direction": "sent", "stream": 1, "id": 0}
    own = {"time_ns": time, "step": step, "message": message, "segment": segment, "bytes": nbytes}
    return {**usual, **own, **more}


def test_messages_of_all_links_in_their_order(tmp_path: Path) -> None:
    one = [
        event(1, "DATA", 1, 0, 99),  # its MESSAGE was not kept
        event(5, "MESSAGE", 2, 1, 8),
        event(6, "MESSAGE", 3, 1, 9, direction="received"),
        event(7, "MESSAGE", 4, 2, 0),
        event(8, "RTS", 4, 1, 100),
        event(9, "RTS", 4, 0, 50),
        event(9, "FIN", 4, 0, 0),
        event(10, "RTS", 4, 1, 100),
        event(11, "MESSAGE", 5, 1, 0),  # an empty one
    ]
    other = [event(6, "MESSAGE", 2, 3, 9)]
    path = written(tmp_path, [{"events": one}, {"events": other}])
    assert of_trace(path).payloads == ((8,), (3, 3, 3), (50, 200))


def test_a_long_trace_is_cut(tmp_path: Path) -> None:
    events = [event(each, "MESSAGE", each, 1, 1 + each % 3) for each in range(MOST_MESSAGES + 5)]
    assert len(of_trace(written(tmp_path, [{"events": events}])).payloads) == MOST_MESSAGES


def test_a_profile_is_replayed_too(tmp_path: Path) -> None:
    """Of stock gRPC there is nothing else."""
    sent = [
        profile.Sent(1, 1, "grpc", "a", (Buffer(8, "sendmsg"), Buffer(9, "sendmsg"))),
        profile.Sent(2, 1, "shm", "b", (Buffer(1 << 20, "EAGER"),)),
    ]
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps(profile.as_dict(profile.Profile("sent", sent, 0, None))))
    assert of_trace(path).payloads == ((8, 9), (1 << 20,))


def test_what_is_no_trace_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        of_trace(tmp_path / "absent")
    with pytest.raises(ValueError, match="no message with a payload: record it by"):
        of_trace(written(tmp_path, [{}]))
    (tmp_path / "text").write_text("[]")
    with pytest.raises(ValueError, match="is no trace"):
        of_trace(tmp_path / "text")
