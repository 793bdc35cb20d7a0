# SPDX-License-Identifier: Apache-2.0
"""KServe's inference protocol, which Triton speaks too: tensors in ``raw_input_contents``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tests.protobuf.conftest import Generated
from tests.rpc.pairings import PAIRINGS, Pairing, local

import tensorwire
from tensorwire import protobuf
from tensorwire.protobuf import Attached

BATCH = np.arange(3 * 100_000, dtype=np.float32).reshape(3, 100_000)
MASK = np.array([1, 0, 1], np.uint8)


def described(code: Generated, *arrays: Any, **fields: Any) -> Any:
    """A request for ``arrays``, without their bytes."""
    request = code.inference.ModelInferRequest(model_name="double", **fields)
    for index, array in enumerate(arrays):
        request.inputs.add(name=f"INPUT{index}", datatype="FP32", shape=array.shape)
    request.parameters["sequence_id"].int64_param = 7
    return request


def ordinary(code: Generated, *arrays: Any, **fields: Any) -> Any:
    request = described(code, *arrays, **fields)
    request.raw_input_contents.extend(array.tobytes() for array in arrays)
    return request


class CodedModel:
    """Doubles its inputs, which it sees as views."""

    def __init__(self, code: Generated) -> None:
        self.code = code

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        message = request.message
        assert message.parameters["sequence_id"].int64_param == 7
        reply = self.code.inference.ModelInferResponse(model_name=message.model_name, id=message.id)
        doubled = []
        for tensor, raw in zip(message.inputs, request["raw_input_contents"], strict=True):
            dtype = np.uint8 if np.prod(tensor.shape) == raw.nbytes else np.float32
            doubled.append(np.frombuffer(raw, dtype).reshape(tensor.shape) * dtype(2))
            reply.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        attached = Attached(reply)
        attached["raw_output_contents"] = doubled
        return attached

    def ModelStreamInfer(
        self, requests: Iterable[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        for request in requests:
            reply = Attached(self.code.inference.ModelStreamInferResponse())
            if not request.message.inputs:
                reply.message.error_message = "no inputs"
            else:
                answer = self.ModelInfer(request, context)
                reply.message.infer_response.CopyFrom(answer.message)
                reply["infer_response", "raw_output_contents"] = answer["raw_output_contents"]
            yield reply


class OrdinaryModel:
    """The same as seen by everybody else."""

    def __init__(self, code: Generated) -> None:
        self.model = CodedModel(code)

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self.model.ModelInfer(Attached(request), context).plain()

    def ModelStreamInfer(
        self, requests: Iterable[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        for reply in self.model.ModelStreamInfer(map(Attached, requests), context):
            yield reply.plain()


@pytest.fixture(params=["coded", "ordinary"], scope="module")
def model(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(params=PAIRINGS, ids=str, scope="module")
def channel(request: pytest.FixtureRequest, code: Generated, model: str) -> Iterator[Any]:
    pairing: Pairing = request.param
    add = code.inference_grpc.add_GRPCInferenceServiceServicer_to_server

    def prepare(server: Any) -> None:
        if model == "coded":
            views = ["raw_input_contents"]
            protobuf.add_to_server(add, CodedModel(code), server, views=views)
        else:
            add(OrdinaryModel(code), server)

    with (
        local(pairing.server, prepare=prepare) as server,
        pairing.channel(server.target) as channel,
    ):
        yield channel


def test_ordinary_clients(channel: Any, code: Generated) -> None:
    stub = code.inference_grpc.GRPCInferenceServiceStub(channel)
    reply = stub.ModelInfer(ordinary(code, BATCH, MASK, id="1"), timeout=20)
    assert (reply.id, reply.outputs[0].shape) == ("1", [3, 100_000])
    assert reply.raw_output_contents == [(BATCH * 2).tobytes(), (MASK * 2).tobytes()]


def test_clients_with_the_codec(channel: Any, code: Generated) -> None:
    make = code.inference_grpc.GRPCInferenceServiceStub
    stub = protobuf.stub(make, channel, views=["raw_output_contents"])
    request = Attached(described(code, BATCH, MASK, np.zeros((0, 3), np.float32), id="2"))
    request["raw_input_contents"] = [tensorwire.publish(BATCH), MASK, np.zeros((0, 3), np.float32)]
    reply = stub.ModelInfer(request, timeout=20)
    assert reply.message.id == "2"
    assert reply.message.raw_output_contents == [b"", b"", b""]
    first = np.frombuffer(reply["raw_output_contents", 0], np.float32)
    assert (first.reshape(reply.message.outputs[0].shape) == BATCH * 2).all()
    assert reply["raw_output_contents", 1] == (MASK * 2).tobytes()
    assert reply["raw_output_contents", 2] == b""


def test_streams(channel: Any, code: Generated) -> None:
    make = code.inference_grpc.GRPCInferenceServiceStub
    stub = protobuf.stub(make, channel, views=True)
    request = Attached(described(code, BATCH))
    request["raw_input_contents"] = [BATCH]
    replies = list(
        stub.ModelStreamInfer(
            iter([request, code.inference.ModelInferRequest(), ordinary(code, MASK)]), timeout=20
        )
    )
    first, second, third = replies
    view = first["infer_response", "raw_output_contents", 0]
    assert (np.frombuffer(view, np.float32) == (BATCH * 2).ravel()).all()
    assert second.message.error_message == "no inputs"
    assert not second.message.HasField("infer_response")
    assert third["infer_response", "raw_output_contents"] == [(MASK * 2).tobytes()]
