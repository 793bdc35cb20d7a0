# SPDX-License-Identifier: Apache-2.0
"""JAX programs in stages: a jaxpr cut by the scopes of ``jax.named_scope``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from jax.extend import core

import jax
from tensorwire.graph import places
from tensorwire.graph.places import Machines, Operation, ScopeError
from tensorwire.graph.program import Program, Stage, Value

_CALLS = frozenset(
    (
        *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
    )
)
"""Primitives that call a jaxpr once, with their own operands."""
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The parameters of those that have it."""
_JAXS_OWN = frozenset(["rematted_computation"])
"""Scopes that JAX puts around those of the program: what ``jax.checkpoint`` computes again."""


def takes(graph: object) -> bool:
    return isinstance(graph, core.ClosedJaxpr)


@dataclass(frozen=True)
class _Ref:
    """A value of the whole program, by its number."""

    number: int


@dataclass(frozen=True)
class _Equation:
    """An equation with operands and results of the whole program. An operand that is no _Ref is the
    value itself."""

    equation: Any
    machine: str | None
    operands: Sequence[Any]
    results: Sequence[_Ref]

    def takes(self) -> Iterator[_Ref]:
        return (each for each in self.operands if isinstance(each, _Ref))


@dataclass
class _Flat:
    """A jaxpr without the calls in it."""

    find: Callable[[str], str | None]
    debug: Any
    """Without it JAX warns of a jaxpr."""
    equations: list[_Equation] = field(default_factory=list)
    avals: list[Any] = field(default_factory=list)

    def fresh(self, aval: Any) -> _Ref:
        self.avals.append(aval)
        return _Ref(len(self.avals) - 1)

    def add(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], scopes: tuple[str, ...]
    ) -> list[Any]:
        """Its results."""
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for equation in jaxpr.eqns:
            inner = (*scopes, *_scopes(equation))
            operands = [read(atom) for atom in equation.invars]
            called = self._called(equation, inner)
            if called is not None:
                found = self.add(called.jaxpr, called.consts, operands, inner)
            else:
                found = [self.fresh(var.aval) for var in equation.outvars]
                machine = self._place(equation, inner)
                self.equations.append(_Equation(equation, machine, operands, found))
            known.update(zip(equation.outvars, found, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _called(self, equation: Any, scopes: tuple[str, ...]) -> Any:
        """The jaxpr that an equation calls, where that has operations of other machines."""
        if equation.primitive.name not in _CALLS:
            return None
        found = next((equation.params[name] for name in _CALLED if name in equation.params), None)
        jaxpr: Any = found
        if not hasattr(jaxpr, "eqns"):
            return None
        called = jaxpr if hasattr(jaxpr, "consts") else core.ClosedJaxpr(jaxpr, ())
        if len(called.jaxpr.invars) != len(equation.invars):
            return None
        machines = {machine for machine, _ in self._machines(called.jaxpr, scopes)}
        return called if machines - {None, self.find("/".join(scopes))} else None

    def _machines(
        self, jaxpr: Any, scopes: tuple[str, ...]
    ) -> Iterator[tuple[str | None, tuple[str, ...]]]:
        for equation in jaxpr.eqns:
            inner = (*scopes, *_scopes(equation))
            yield self.find("/".join(inner)), inner
            for each in _jaxprs(equation.params):
                yield from self._machines(each, inner)

    def _place(self, equation: Any, scopes: tuple[str, ...]) -> str | None:
        own = self.find("/".join(scopes))
        inside: dict[str, tuple[str, ...]] = {}
        for each in _jaxprs(equation.params):
            for machine, where in self._machines(each, scopes):
                if machine is not None:
                    inside.setdefault(machine, where)
        if own is not None:
            inside.setdefault(own, scopes)
        if len(inside) > 1:
            names = " and ".join("/".join(where) for where in inside.values())
            raise ScopeError(
                f"a boundary inside {equation.primitive.name}: {names} are on different machines; "
                "tensors cannot cross machines there, so end the loop or the call at the boundary"
            )
        return next(iter(inside), None)


def _scopes(equation: Any) -> tuple[str, ...]:
    """The named scopes of an equation; transformations (jvp, transpose) keep them."""
    stack = equation.source_info.name_stack.stack
    names = (each.name for each in stack if type(each).__name__ == "Scope")
    return tuple(name for name in names if name not in _JAXS_OWN)


def _jaxprs(params: Any) -> Iterator[Any]:
    for value in params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(each, "eqns"):
                yield getattr(each, "jaxpr", each)


def program(graph: Any, machines: Machines | None = None) -> Program:
    """A jaxpr cut where a value's machine changes.

    graph: what ``jax.make_jaxpr(function)(*arguments)`` gives. The inputs of the program are called
    ``in0``, ``in1``, ... in the order of the leaves of the arguments, its results ``out0``,
    ``out1``, ...; results that are the same value have it under each of their names.

    machines: by the path of a scope (``encoder/attention``); without it, the outermost scope is the
    machine. An equation outside of all scopes is where its result is used.

    Each stage is compiled by ``jax.jit``. ScopeError: a boundary inside ``scan``, ``while``,
    ``cond`` or a call that cannot be opened, no scope at all, or a result that is a constant.
    """
    find = _outermost if machines is None else places.finder(machines, "/")
    flat = _Flat(find, graph.jaxpr.debug_info)
    inputs = [flat.fresh(var.aval) for var in graph.jaxpr.invars]
    results = flat.add(graph.jaxpr, graph.consts, inputs, ())
    made = {ref: at for at, each in enumerate(flat.equations) for ref in each.results}
    operations = [
        Operation(
            str(each.equation.primitive),
            each.machine,
            [made[ref] for ref in each.takes() if ref in made],
        )
        for each in flat.equations
    ]
    where = places.settle(operations)
    turns = places.rounds(operations, where)
    groups: dict[tuple[int, str], list[_Equation]] = {}
    for each, machine, turn in zip(flat.equations, where, turns, strict=True):
        groups.setdefault((turn, machine), []).append(each)
    names: dict[_Ref, str] = {ref: f"in{number}" for number, ref in enumerate(inputs)}
    called: dict[_Ref, list[str]] = {}
    for number, result in enumerate(results):
        if not isinstance(result, _Ref):
            raise ScopeError(f"result {number} is a constant: return what the stages compute")
        called.setdefault(result, []).append(f"out{number}")
    group_of = {ref: key for key, group in groups.items() for each in group for ref in each.results}
    needed = {ref for ref in results if isinstance(ref, _Ref)}
    for key, group in groups.items():
        needed.update(r for each in group for r in each.takes() if group_of.get(r, key) != key)
    values: dict[str, Value] = {}
    order = sorted(groups)
    passed: dict[tuple[int, str], list[_Ref]] = {}
    for ref in inputs:
        if ref in called:  # it goes through a stage that takes it, or through the first one
            takers = (key for key in order if any(ref in each.takes() for each in groups[key]))
            passed.setdefault(next(takers, order[0]), []).append(ref)
    stages = [
        _stage(flat, *key, groups[key], passed.get(key, ()), needed, names, called, values)
        for key in order
    ]
    return Program(
        "jax",
        tuple(names[ref] for ref in inputs),
        tuple(f"out{number}" for number in range(len(results))),
        tuple(stages),
        values,
    )


def _outermost(path: str) -> str | None:
    return path.partition("/")[0] or None


def _stage(
    flat: _Flat,
    turn: int,
    machine: str,
    group: Sequence[_Equation],
    passed: Sequence[_Ref],
    needed: Set[_Ref],
    names: dict[_Ref, str],
    called: Mapping[_Ref, Sequence[str]],
    values: dict[str, Value],
) -> Stage:
    """Equations as one function. Those of its results that are needed elsewhere get names, and join
    ``values``. passed: inputs that it gives back. called: what results of the program are called;
    other stages know one that they take by the first of its names."""
    inside = {ref for each in group for ref in each.results}
    taken = [ref for each in group for ref in each.takes() if ref not in inside]
    inputs = list(dict.fromkeys([*taken, *passed]))
    outputs = [(name, ref) for ref in passed for name in called[ref]]
    for number, each in enumerate(group):
        for ref in each.results:
            if ref not in needed:
                continue
            which = f".{each.results.index(ref)}" if len(each.results) > 1 else ""
            name = f"{machine}.{turn}.{each.equation.primitive}.{number}{which}"
            aval = flat.avals[ref.number]
            shape = tuple(n if isinstance(n, int) else None for n in aval.shape)
            own = called.get(ref, [name])
            names[ref] = own[0]
            values[own[0]] = Value(shape, str(aval.dtype))
            outputs += ((each_name, ref) for each_name in own)

    def run(*given: Any) -> list[Any]:
        known: dict[_Ref, Any] = dict(zip(inputs, given, strict=True))
        for each in group:
            operands = [known[op] if isinstance(op, _Ref) else op for op in each.operands]
            results = _alone(each.equation, operands, flat.debug)
            known.update(zip(each.results, results, strict=True))
        return [known[ref] for _, ref in outputs]

    return Stage(
        machine,
        turn,
        tuple(names[ref] for ref in inputs),
        tuple(name for name, _ in outputs),
        jax.jit(run),
    )


def _alone(equation: Any, operands: Sequence[Any], debug: Any) -> list[Any]:
    """The results of one equation."""
    given = {
        var: value
        for var, value in zip(equation.invars, operands, strict=True)
        if not isinstance(var, core.Literal)
    }
    jaxpr = core.Jaxpr((), [*given], equation.outvars, [equation], equation.effects, debug)
    results: list[Any] = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*given.values())
    return results
