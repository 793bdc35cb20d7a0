# SPDX-License-Identifier: Apache-2.0
"""What crosses the machines of a TensorFlow graph in steps that have run: in a cluster, or dry,
with the tasks of a cluster as devices of one process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorwire.graph import places
from tensorwire.graph.edge import Edge, Per, merged
from tensorwire.graph.places import Machines, ScopeError

v1 = tf.compat.v1

_SENDS: Final = ("_Send", "_HostSend")
_RECEIVES: Final = ("_Recv", "_HostRecv")
_CONTROL: Final = re.compile(r"(.*)/ctrl/_\d+")
"""What TensorFlow sends where an operation only waits for another one."""


def task(device: str) -> str:
    """``ps:0`` of ``/job:ps/replica:0/task:0/device:CPU:0``; empty where there is none."""
    found = re.search(r"/job:(\w+)", device)
    if not found or found[1] == "localhost":
        return ""
    number = re.search(r"/task:(\d+)", device)
    return f"{found[1]}:{number[1] if number else 0}"


def shape_of(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def in_loops(nodes: Mapping[str, tuple[str, Sequence[str]]]) -> set[str]:
    """Which of the nodes are in a loop of control flow: each has its type, and the names of those
    whose results it takes or waits for."""
    frames: dict[str, int] = {}
    users: dict[str, list[str]] = {}
    for name, (_, inputs) in nodes.items():
        for each in inputs:
            users.setdefault(each, []).append(name)
    left = [name for name, (_, inputs) in nodes.items() if not inputs]
    frames.update(dict.fromkeys(left, 0))
    while left:
        name = left.pop()
        inside = frames[name] - (nodes[name][0] in ("Exit", "RefExit"))
        for user in users.get(name, ()):
            deep = max(0, inside) + (nodes[user][0] in ("Enter", "RefEnter"))
            if frames.get(user, -1) < deep and deep < 64:
                frames[user] = deep
                left.append(user)
    # The result of an Exit is outside.
    return {
        name for name, deep in frames.items() if deep - (nodes[name][0] in ("Exit", "RefExit")) > 0
    }


def trace(
    graph: Any,
    fetches: Sequence[Any],
    feeds: Mapping[Any, Any] | Callable[[int], Mapping[Any, Any]] | None = None,
    *,
    steps: int = 2,
    initialize: Sequence[Any] | None = None,
    session: Any = None,
    machines: Machines | None = None,
) -> list[Edge]:
    """As ``tensorwire.graph.trace``."""
    of_step = feeds if callable(feeds) else lambda _: feeds or {}
    if session is not None:
        return sent((_run(session, fetches, of_step(step)) for step in range(steps)), machines)
    if not isinstance(graph, (tf.Graph, v1.GraphDef)):
        raise TypeError(
            f"steps are run of a tf.Graph or a GraphDef, not of a {type(graph).__name__}: "
            "graph.edges takes what has no steps, such as a ConcreteFunction"
        )
    if initialize is None and isinstance(graph, tf.Graph):
        variables = graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)
        initialize = [variable.initializer for variable in variables]
    definition = v1.GraphDef()
    definition.CopyFrom(graph.as_graph_def() if isinstance(graph, tf.Graph) else graph)
    nodes = [
        *definition.node,
        *(node for function in definition.library.function for node in function.node_def),
    ]
    tasks = sorted({task(node.device) for node in nodes} - {""}, key=_workers_first)
    if not tasks:
        raise ScopeError("no operation of the graph is on a task: tf.device('/job:worker/task:0')")
    for node in nodes:
        node.device = f"/device:CPU:{tasks.index(task(node.device)) if task(node.device) else 0}"
    dry = tf.Graph()
    with dry.as_default():
        v1.import_graph_def(definition, name="")
    config = v1.ConfigProto(device_count={"CPU": len(tasks)})
    with v1.Session(graph=dry, config=config) as own:
        if initialize:
            own.run([_name(each) for each in initialize])
        ran = [
            _run(
                own,
                [_name(each) for each in fetches],
                {_name(key): value for key, value in of_step(step).items()},
            )
            for step in range(steps)
        ]
    for metadata in ran:
        _back(metadata, tasks)
    return sent(ran, machines)


def _workers_first(name: str) -> tuple[bool, str, int]:
    job, _, number = name.partition(":")
    return job == "ps", job, int(number)


def _name(element: Any) -> str:
    return element if isinstance(element, str) else str(element.name)


def _run(session: Any, fetches: Sequence[Any], feeds: Mapping[Any, Any]) -> Any:
    metadata = v1.RunMetadata()
    options = v1.RunOptions(output_partition_graphs=True, trace_level=v1.RunOptions.FULL_TRACE)
    session.run(list(fetches), dict(feeds), options=options, run_metadata=metadata)
    return metadata


def _back(metadata: Any, tasks: Sequence[str]) -> None:
    """Devices of this process become those of the cluster that they stood for."""

    def named(device: str) -> str:
        number = int(device.rpartition(":")[2])
        job, _, index = tasks[number].partition(":")
        return f"/job:{job}/replica:0/task:{index}/device:CPU:0"

    for graph in metadata.partition_graphs:
        for node in graph.node:
            node.device = named(node.device)
            for attribute in ("send_device", "recv_device"):
                if attribute in node.attr and node.op in (*_SENDS, *_RECEIVES):
                    device = node.attr[attribute].s.decode()
                    node.attr[attribute].s = named(device).encode()
    for device in metadata.step_stats.dev_stats:
        device.device = named(device.device)


def sent(steps: Iterable[Any], machines: Machines | None) -> list[Edge]:
    """What crossed machines in steps, by their ``RunMetadata``. ScopeError: one has no partitions
    or no trace."""
    found: dict[tuple[str, str, str], list[Edge]] = {}
    find = places.finder(machines, ":")
    for metadata in steps:
        if not metadata.partition_graphs or not metadata.step_stats.dev_stats:
            raise ScopeError(
                "the step was run without a trace of its partitions: pass RunOptions("
                "output_partition_graphs=True, trace_level=RunOptions.FULL_TRACE), or use "
                "tensorwire.graph.trace"
            )
        for edge in _sent(metadata, find):
            found.setdefault((edge.name, edge.source, edge.target), []).append(edge)
    return [merged(name, each) for (name, _, _), each in found.items()]


def _sent(metadata: Any, find: Callable[[str], str | None]) -> Iterable[Edge]:
    shapes: dict[tuple[str, str, int], list[tuple[int, ...]]] = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            for output in node.output:
                extents = tuple(each.size for each in output.tensor_description.shape.dim)
                key = (device.device, node.node_name, output.slot)
                shapes.setdefault(key, []).append(extents)
    for graph in metadata.partition_graphs:
        loops = in_loops(
            {node.name: (node.op, [_node(each) for each in node.input]) for node in graph.node}
        )
        for node in graph.node:
            if node.op not in _SENDS or node.attr["client_terminated"].b:
                continue
            ends = [
                find(task(node.attr[name].s.decode())) for name in ("send_device", "recv_device")
            ]
            source, target = ends
            if source is None or target is None or source == target:
                continue
            producer, _, output = node.input[0].partition(":")
            slot = int(output or 0)
            seen = shapes.get((node.device, producer, slot), [])
            per: Per = "iteration" if producer in loops else "step"
            waited = _CONTROL.fullmatch(producer)
            name = f"^{waited[1]}" if waited else f"{producer}:{slot}" if slot else producer
            dtype = tf.as_dtype(node.attr["T"].type).base_dtype.name
            each = [
                Edge(name, source, target, extents, dtype, "traced", per) for extents in set(seen)
            ]
            yield (
                merged(name, each)
                if each
                else Edge(name, source, target, None, dtype, "inferred", per)
            )


def _node(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]
