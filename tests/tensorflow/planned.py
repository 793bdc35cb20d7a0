# SPDX-License-Identifier: Apache-2.0
"""What tests of planned transfers share: steps until something is planned, and what was counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.tensorflow.conftest import PS, WORKER, Cluster, eventually

MOST_STEPS = 20
"""Until all is planned: what is wanted in one step may be agreed on within the next."""


class Counted:
    """How much the counters of a task have grown since this was made, or since ``again()``."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self._cluster, self._job = cluster, job
        self.again()

    def again(self) -> None:
        self._before = self._cluster.stats(self._job)

    def __getitem__(self, name: str) -> int:
        return self._cluster.stats(self._job)[name] - self._before[name]


def steps_until_planned(cluster: Cluster, step: Callable[[], None], tensors: int = 1) -> int:
    """Runs steps until so many tensors of one come to the worker as planned: how many steps."""
    for number in range(1, MOST_STEPS):
        counted = Counted(cluster, "worker")
        step()
        if counted["received_planned"] == tensors:
            return number
    raise AssertionError(f"{tensors} tensors were not planned within {MOST_STEPS} steps")


def steps_until(step: Callable[[], Any], holds: Callable[[], bool], what: str) -> None:
    """Runs steps until this holds: what is left of one is dropped when it is cleaned up, which is
    after it has returned, and what the other end says of it goes with the next one."""

    def one_more() -> bool:
        step()
        return holds()

    eventually(one_more, what)


def edge(tf: Any, run: Any, name: str, value: Any) -> tuple[Any, Callable[[], Any]]:
    """What sends ``value`` from the ps, and what makes operations that receive it on the worker;
    one without the other is possible."""
    (ps,) = (device for device in run.list_devices() if device.name.startswith("/job:ps/"))
    attributes = {
        "tensor_name": tf.compat.v1.AttrValue(s=name.encode()),
        "send_device": tf.compat.v1.AttrValue(s=ps.name.encode()),
        "send_device_incarnation": tf.compat.v1.AttrValue(i=ps.incarnation),
        "recv_device": tf.compat.v1.AttrValue(s=ps.name.replace("ps", "worker").encode()),
    }
    graph = tf.compat.v1.get_default_graph()
    kind = tf.compat.v1.AttrValue(type=value.dtype.as_datatype_enum)
    with tf.device(PS):
        send = graph.create_op("_Send", [value], [], name="send", attrs={**attributes, "T": kind})

    def receive() -> Any:
        with tf.device(WORKER):
            operation = graph.create_op(
                "_Recv",
                [],
                [value.dtype],
                name="receive",
                attrs={**attributes, "tensor_type": kind},
            )
            return operation.outputs[0]

    return send, receive
