# SPDX-License-Identifier: Apache-2.0
"""``_core.pyi`` says what the built module has: names, parameters with their defaults, properties,
and results where these are of one built-in type."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from nanobind.stubgen import StubGen

from tensorwire import _core

STUB = (Path(__file__).parents[1] / "src" / "tensorwire" / "_core.pyi").read_text()
PLAIN = {"None", "bool", "bytes", "float", "int", "str"}
"""Other types say less in the module than in the stub, where people write them."""
Facts = dict[str, str]


def built() -> str:
    generator = StubGen(_core)
    generator.put(_core)
    return str(generator.get())


def parameters(arguments: ast.arguments) -> str:
    """The names of parameters that can be given by their names, and all defaults."""
    positional = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    words = []
    for place, (parameter, default) in enumerate(zip(positional, defaults, strict=True)):
        by_name = place >= len(arguments.posonlyargs) and parameter.arg != "self"
        name = parameter.arg if by_name else "_"
        words.append(name if default is None else f"{name}={ast.unparse(default)}")
    return ", ".join(words)


def facts(body: list[ast.stmt], prefix: str = "") -> Facts:
    """What each name is."""
    found: Facts = {}
    for node in body:
        if isinstance(node, ast.ClassDef) and "TypedDict" not in map(ast.unparse, node.bases):
            found[prefix + node.name] = "class"
            found |= facts(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            kind = "property" if node.decorator_list else "function"
            result = ast.unparse(node.returns) if node.returns else ""
            plain = result if result in PLAIN else "..."
            found[prefix + node.name] = f"{kind} ({parameters(node.args)}) -> {plain}"
        elif isinstance(node, ast.AnnAssign) and not prefix and "TypeAlias" not in ast.dump(node):
            found[ast.unparse(node.target)] = "value"
    return found


def differences(stub: str, module: str) -> list[str]:
    said, there = facts(ast.parse(stub).body), facts(ast.parse(module).body)
    for name in ("Buffer", "SharedMemory"):  # which have no such function before Python 3.12
        said.pop(f"{name}.__buffer__", None)
    said.pop("__version__", None)  # stubs leave out what each module has
    return [
        f"{name}: {said.get(name)} in the stub, {there.get(name)} in the module"
        for name in sorted(said.keys() | there.keys())
        if said.get(name) != there.get(name)
    ]


def test_the_stub_is_that_of_the_module() -> None:
    assert differences(STUB, built()) == []
    assert len(facts(ast.parse(STUB).body)) > 100


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("def hello() -> bytes", "def hello_() -> bytes"),
        ("def hello() -> bytes", "def hello() -> str"),
        ("timeout: float | None = 0.0", "timeout: float | None = 1.0"),
        ("session: bytes, caller: str", "session: bytes, who: str"),
        ("    @property\n    def nbytes", "    def nbytes"),
        ("def audit_close() -> None: ...", ""),
        ("READ: Final[int]", ""),
        ("data: BytesLike, /", "data: BytesLike"),
    ],
)
def test_a_difference_is_found(change: str, to: str) -> None:
    assert change in STUB
    assert differences(STUB.replace(change, to, 1), built())
