# SPDX-License-Identifier: Apache-2.0
"""What crosses scopes of JAX programs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("jax") is None:
    pytest.skip("there is no JAX", allow_module_level=True)

import jax.numpy as jnp
import numpy as np
from tests.graph.jax_machine import WIDTH, arguments, given, loss, program

import jax
from jax import export
from tensorwire import graph


def test_a_training_step() -> None:
    """Of the backward pass each equation is where the forward one was. What is in no scope, the
    mask, is where it is used."""
    made = program()
    assert [(edge.source, edge.target, edge.shape, edge.dtype) for edge in made.edges()] == [
        ("first", "last", (8, WIDTH), "float32"),
        ("last", "first", (8, WIDTH), "float32"),
    ]
    assert [edge.round for edge in made.edges()] == [0, 1]
    wanted = jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(*arguments(3)))
    found = made(**given(made, 3))
    assert made.outputs == tuple(f"out{number}" for number in range(5))
    for name, each in zip(made.outputs, wanted, strict=True):
        np.testing.assert_allclose(found[name], each, rtol=1e-4, atol=1e-3)


def test_scopes_within_calls() -> None:
    """Functions that are compiled or differentiated in their own way are opened; a mapping names
    parts of scopes."""

    @jax.jit  # type: ignore[untyped-decorator, unused-ignore]
    def net(x: jax.Array) -> jax.Array:
        with jax.named_scope("net"):
            with jax.named_scope("encoder"):
                x = jax.checkpoint(lambda y: jax.nn.relu(y) * 2)(x)
            with jax.named_scope("decoder"):
                return jnp.sum(x, axis=0)

    jaxpr = jax.make_jaxpr(net)(jnp.ones((4, 8)))
    assert graph.edges(jaxpr) == []  # all of it is in the scope net
    (edge,) = graph.edges(jaxpr, machines={"net/encoder": "a", "net": "b"})
    assert (edge.source, edge.target, edge.shape, edge.nbytes) == ("a", "b", (4, 8), 128)
    made = graph.program(jaxpr, machines={"net/encoder": "a", "net": "b"})
    assert np.array_equal(made(in0=jnp.ones((4, 8)))["out0"], np.full(8, 8.0))


def test_sizes_that_are_not_known() -> None:
    (batch,) = export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32)
    jaxpr = jax.make_jaxpr(loss)(arguments(0)[0], shape)
    (edge,) = graph.edges(jaxpr)
    assert (edge.shape, edge.way) == ((None, WIDTH), "described")


def test_a_boundary_inside_a_loop_is_refused() -> None:
    def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        with jax.named_scope("a"):
            x = x * 2
        with jax.named_scope("b"):
            return x + 1, None

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.scan(body, x, None, length=3)[0]

    with pytest.raises(graph.ScopeError, match="a boundary inside scan: a and b"):
        graph.edges(jax.make_jaxpr(loop)(jnp.ones(4)))

    def inside(x: jax.Array) -> jax.Array:
        with jax.named_scope("a"):
            x = jax.lax.fori_loop(0, 3, lambda _, y: y * 2, x)
        with jax.named_scope("b"):
            return x + 1

    (edge,) = graph.edges(jax.make_jaxpr(inside)(jnp.ones(4)))
    assert (edge.source, edge.target, edge.per) == ("a", "b", "step")


def test_programs_that_cannot_be_cut() -> None:
    with pytest.raises(graph.ScopeError, match="no operation of the program has a machine"):
        graph.edges(jax.make_jaxpr(lambda x: x + 1)(1.0))

    def constant(x: jax.Array) -> tuple[jax.Array, float]:
        with jax.named_scope("a"):
            return x + 1, 2.0

    with pytest.raises(graph.ScopeError, match="result 1 is a constant"):
        graph.edges(jax.make_jaxpr(constant)(1.0))


def test_results_that_are_one_value() -> None:
    """Each place among the results has its own name, also of a value that crosses."""

    def net(x: jax.Array, y: jax.Array) -> Any:
        with jax.named_scope("a"):
            x = x * y
        with jax.named_scope("b"):
            total = jnp.sum(x)
        return total, x, total, x

    made = graph.program(jax.make_jaxpr(net)(jnp.ones(4), jnp.ones(4)))
    assert made.outputs == ("out0", "out1", "out2", "out3")
    assert made.outputs_of("a") == ("out1", "out3")
    assert made.outputs_of("b") == ("out0", "out2")
    (edge,) = made.edges()
    assert (edge.source, edge.target, edge.shape) == ("a", "b", (4,))
    found = made(in0=jnp.arange(4.0), in1=jnp.ones(4))
    assert [found[name].tolist() for name in made.outputs] == [6.0, [0, 1, 2, 3]] * 2


def test_results_that_are_inputs() -> None:
    """They are had where the input is taken; what nobody takes, in the first stage."""

    def net(x: jax.Array, y: jax.Array, state: jax.Array) -> Any:
        with jax.named_scope("a"):
            x = x * 2
        with jax.named_scope("b"):
            return x + y, y, state, y

    made = graph.program(jax.make_jaxpr(net)(1.0, 2.0, 3.0))
    assert made.inputs == ("in0", "in1", "in2")
    assert made.outputs == ("out0", "out1", "out2", "out3")
    assert (made.inputs_of("a"), made.outputs_of("a")) == (("in0", "in2"), ("out2",))
    assert (made.inputs_of("b"), made.outputs_of("b")) == (("in1",), ("out0", "out1", "out3"))
    found = made(in0=1.0, in1=2.0, in2=3.0)
    assert [float(found[name]) for name in made.outputs] == [4.0, 2.0, 3.0, 2.0]
    assert [edge.source for edge in made.edges()] == ["a"]


def test_what_is_computed_again_is_where_it_was() -> None:
    """jax.checkpoint around what names its scopes itself."""

    def block(layer: jax.Array, x: jax.Array, name: str) -> jax.Array:
        with jax.named_scope(name):
            return jnp.tanh(x @ layer)

    def loss(layers: list[jax.Array], x: jax.Array) -> jax.Array:
        again = jax.checkpoint(block, static_argnums=2)
        for number, layer in enumerate(layers):
            x = again(layer, x, "net/enc" if number < 2 else "net/dec")
        with jax.named_scope("net/dec"):
            return jnp.sum(x**2)

    layers, x = [jnp.ones((8, 8))] * 4, jnp.ones((4, 8))
    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss))(layers, x)
    made = graph.program(jaxpr, machines={"net/enc": "enc", "net/dec": "dec"})
    assert {(edge.source, edge.target) for edge in made.edges()} == {("enc", "dec"), ("dec", "enc")}
    assert graph.program(jaxpr).machines == ("net",)
    wanted = jax.tree.leaves(jax.value_and_grad(loss)(layers, x))
    found = made(**dict(zip(made.inputs, [*layers, x], strict=True)))
    for name, each in zip(made.outputs, wanted, strict=True):
        np.testing.assert_allclose(found[name], each, rtol=1e-4, atol=1e-3)
