# SPDX-License-Identifier: Apache-2.0
"""Numbers of the C ABI that Python writes down again: they are those of its headers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grpc

from tensorwire.collective import arrays, calls

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ROOT / "core" / "tensorwire"
SOURCES = sorted((ROOT / "src" / "tensorwire").rglob("*.py"))


def numbers(header: str, prefix: str = "TW_") -> dict[str, int]:
    text = (HEADERS / header).read_text()
    found = re.findall(rf"^  {prefix}(\w+) = (\d+)\b", text, re.MULTILINE)
    assert found, f"{header} writes its numbers in another way"
    return {name: int(number) for name, number in found}


def constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            targets: list[ast.expr] = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        if isinstance(node.value, ast.Constant):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value.value


def test_codes() -> None:
    codes = numbers("values.h", "TW_CODE_")
    assert codes == {code.name: code.value[0] for code in grpc.StatusCode}
    found = 0
    for source in SOURCES:
        for name, value in constants(ast.parse(source.read_text())):
            if (code := name.lstrip("_")) in codes and isinstance(value, int):
                assert value == codes[code], f"{name} of {source.relative_to(ROOT)}"
                found += 1
    assert found > 20


def test_types_reductions_and_operations_of_groups() -> None:
    known = numbers("collective.h")
    types = {name.upper().removesuffix("FN"): number for name, number in arrays.TYPES.items()}
    reductions = {name.upper(): number for name, number in calls.OPS.items()}
    operations = {
        name: number for name in known if isinstance(number := getattr(calls, name, None), int)
    }
    assert len(operations) == 9
    assert {**types, **reductions, **operations} == known


def test_runs_of_a_batch() -> None:
    binding = (ROOT / "binding" / "batches.cpp").read_text()
    layout = (ROOT / "src" / "tensorwire" / "remote" / "layout.py").read_text()
    assert "kMaxRows = 1 << 24;" in binding
    assert "MAX_RUNS: Final = 1 << 24\n" in layout
