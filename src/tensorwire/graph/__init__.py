# SPDX-License-Identifier: Apache-2.0
"""Which tensors cross machines in each step of a program, planned once and sent accordingly.

The analyzer of J. Xue et al., "RPC Considered Harmful: Fast Distributed Deep Learning on RDMA"
(arXiv 1805.08430): what a data-flow graph tells of its tensors need not be asked for in each step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorwire.graph.edge import Edge
from tensorwire.graph.places import Machines, ScopeError
from tensorwire.graph.plan import Arena, Moved, Pair, Plan, PlanError, Transfer, plan
from tensorwire.graph.program import Program, Stage, Value

if TYPE_CHECKING:
    from tensorwire.graph.replay import Replay, ReplayError, StageLostError, StageTimeoutError

__all__ = [
    "Arena",
    "Edge",
    "Machines",
    "Moved",
    "Pair",
    "Plan",
    "PlanError",
    "Program",
    "Replay",
    "ReplayError",
    "ScopeError",
    "Stage",
    "StageLostError",
    "StageTimeoutError",
    "Transfer",
    "Value",
    "edges",
    "is_graph",
    "plan",
    "program",
    "trace",
]

_OF_REPLAY = ("Replay", "ReplayError", "StageLostError", "StageTimeoutError")


def edges(
    graph: Any, *, machines: Machines | None = None, fetches: Sequence[Any] | None = None
) -> list[Edge]:
    """Every tensor that crosses machines in a step of a program, without running it.

    graph: of TensorFlow a ``tf.Graph``, a ``GraphDef``, a ``ConcreteFunction``, or the
    ``RunMetadata`` of steps that have run; of PyTorch an ``ExportedProgram`` or a ``GraphModule``;
    of JAX a ``ClosedJaxpr`` (``jax.make_jaxpr``); or a ``Program``.

    machines: which machine a place is on, a function or a mapping of the beginnings of paths.
    Places are tasks of TensorFlow (``ps:0``), paths of PyTorch's modules
    (``layers.2.attention``), and scopes of JAX (``encoder/attention``). Without it, each task,
    each submodule of a split graph, and each outermost scope is a machine.

    fetches: of a graph of TensorFlow, the tensors and operations of a step, or their names; what
    they do not need is left out.

    Raises TypeError for another kind of graph, ScopeError for one that cannot be cut so.
    """
    if isinstance(graph, Program):
        return graph.edges()
    tensorflow = _of("tensorflow", graph)
    if tensorflow is not None:
        found: list[Edge] = tensorflow.edges(graph, machines, fetches)
        return found
    return program(graph, machines=machines).edges()


def program(graph: Any, *, machines: Machines | None = None) -> Program:
    """A program of PyTorch or JAX cut in stages, for ``Replay``; arguments and errors as in
    ``edges``."""
    for name in ("torch", "jax"):
        module = _of(name, graph)
        if module is not None:
            found: Program = module.program(graph, machines)
            return found
    raise TypeError(
        f"a {type(graph).__name__} is no graph: of TensorFlow it is a tf.Graph, a GraphDef, a "
        "ConcreteFunction or a RunMetadata, of PyTorch an ExportedProgram or a GraphModule, of JAX "
        "what jax.make_jaxpr gives"
    )


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
    """Runs some steps, and tells what crossed machines and in which shapes.

    graph: a ``tf.Graph`` or ``GraphDef`` with operations on tasks. fetches: what a step runs:
    tensors, operations, or their names. feeds: of each step, or a function of its number. Give
    steps the shapes that they have in practice: a tensor with two shapes ``varies``.

    session: one of a cluster, whose variables are there: the steps run there. Without it they run
    dry, in this process: each task is a device of a session of its own, after ``initialize`` (by
    default, of a ``tf.Graph``, all its variables). Operations without a device are on the first
    task that is no parameter server, as in the session of a worker.

    Raises ScopeError for a graph without tasks, TypeError for what has no steps, such as a
    ``ConcreteFunction``, which ``edges`` takes, and what TensorFlow raises.
    """
    from tensorwire.graph import tensorflow_steps

    return tensorflow_steps.trace(
        graph,
        fetches,
        feeds,
        steps=steps,
        initialize=initialize,
        session=session,
        machines=machines,
    )


def is_graph(graph: object) -> bool:
    """Whether ``edges`` takes it."""
    return isinstance(graph, Program) or any(
        _of(name, graph) for name in ("tensorflow", "torch", "jax")
    )


def _of(framework: str, graph: object) -> Any:
    """The module for a framework if the graph is one of its graphs: then it is loaded."""
    if framework not in sys.modules:
        return None
    module = import_module(f"{__name__}.{framework}")
    return module if module.takes(graph) else None


def __getattr__(name: str) -> Any:
    if name in _OF_REPLAY:
        return getattr(import_module(f"{__name__}.replay"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
