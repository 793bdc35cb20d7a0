# SPDX-License-Identifier: Apache-2.0
"""Requests as TensorFlow Serving has them: a map of ``TensorProto``, whose bytes are views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from tests.rpc.pairings import PAIRINGS, Pairing, local

from tensorwire import protobuf
from tensorwire.protobuf import Attached

IMAGES = np.arange(200_000, dtype=np.float32).reshape(2, 100_000)
METHOD = "/tensorflow.serving.PredictionService/Predict"


@pytest.fixture(scope="module")
def classes() -> tuple[Any, Any]:
    """PredictRequest and PredictResponse, with those of their fields that hold tensors."""
    pytest.importorskip("tensorflow.core.framework.tensor_pb2")
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/predict.proto",
        package="tests.serving",
        syntax="proto3",
        dependency=["tensorflow/core/framework/tensor.proto"],
    )
    for name, tensors, number in (("Request", "inputs", 2), ("Response", "outputs", 1)):
        message = file.message_type.add(name=name)
        entry = message.nested_type.add(name=f"{tensors.capitalize()}Entry")
        entry.options.map_entry = True
        one, many, of = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
        entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
        tensor = ".tensorflow.TensorProto"
        entry.field.add(name="value", number=2, type=of, label=one, type_name=tensor)
        kind = f".tests.serving.{name}.{entry.name}"
        message.field.add(name=tensors, number=number, type=of, label=many, type_name=kind)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = [
        pool.FindMessageTypeByName(f"tests.serving.{name}") for name in ("Request", "Response")
    ]
    return GetMessageClass(found[0]), GetMessageClass(found[1])


def tensor_proto(array: Any) -> Any:
    import tensorflow

    return tensorflow.make_tensor_proto(array)


@pytest.fixture(params=["coded", "ordinary"])
def coded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "coded")


@pytest.fixture(params=PAIRINGS, ids=str)
def predict(
    request: pytest.FixtureRequest, classes: tuple[Any, Any], coded: bool
) -> Iterator[tuple[Any, Any]]:
    """A method of a model that negates, ordinary and with the codec."""
    pairing: Pairing = request.param
    requests, responses = classes

    def negate(request: Any, context: grpc.ServicerContext) -> Any:
        given = request if coded else Attached(request)
        images = given.message.inputs["images"]
        shape = [dim.size for dim in images.tensor_shape.dim]
        raw = given["inputs", "images", "tensor_content"]
        reply = Attached(responses())
        reply.message.outputs["scores"].dtype = images.dtype
        reply.message.outputs["scores"].tensor_shape.CopyFrom(images.tensor_shape)
        reply["outputs", "scores", "tensor_content"] = -np.frombuffer(raw, "f4").reshape(shape)
        return reply if coded else reply.plain()

    def add(servicer: Any, server: Any) -> None:
        handler = grpc.unary_unary_rpc_method_handler(
            servicer,
            request_deserializer=requests.FromString,
            response_serializer=responses.SerializeToString,
        )
        handlers = grpc.method_handlers_generic_handler(METHOD.split("/")[1], {"Predict": handler})
        server.add_generic_rpc_handlers((handlers,))

    def prepare(server: Any) -> None:
        if coded:
            protobuf.add_to_server(add, negate, server, views=["tensor_content"])
        else:
            add(negate, server)

    def stub(channel: Any) -> Any:
        return channel.unary_unary(METHOD, requests.SerializeToString, responses.FromString)

    with (
        local(pairing.server, prepare=prepare) as server,
        pairing.channel(server.target) as channel,
    ):
        yield stub(channel), protobuf.stub(stub, channel, views=True)


def test_tensors_in_a_map(predict: tuple[Any, Any], classes: tuple[Any, Any]) -> None:
    import tensorflow

    ordinary, with_views = predict
    request = classes[0](inputs={"images": tensor_proto(IMAGES)})
    scores = ordinary(request, timeout=20).outputs["scores"]
    assert (tensorflow.make_ndarray(scores) == -IMAGES).all()

    attached = Attached(classes[0]())
    attached["inputs", "images", "tensor_content"] = tensorflow.constant(IMAGES)
    images = attached.message.inputs["images"]
    images.MergeFrom(
        type(images)(dtype=1, tensor_shape={"dim": [{"size": n} for n in IMAGES.shape]})
    )
    assert attached.plain() == request
    reply = with_views(attached, timeout=20)
    view = reply["outputs", "scores", "tensor_content"]
    assert (np.frombuffer(view, np.float32).reshape(IMAGES.shape) == -IMAGES).all()
    assert (tensorflow.make_ndarray(reply.plain().outputs["scores"]) == -IMAGES).all()
