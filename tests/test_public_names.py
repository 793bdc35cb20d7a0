# SPDX-License-Identifier: Apache-2.0
"""The modules that pages name can be imported by these names, and have what the pages say."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

REFERENCE = (Path(__file__).parents[1] / "docs" / "reference.md").read_text()
DOCUMENTED = re.findall(r"automodule:: (\S+)\n(?: +:members: (\w.*)\n)?", REFERENCE)


@pytest.mark.parametrize(("name", "members"), [*DOCUMENTED, ("tensorwire.audit", "counts")])
def test_a_documented_module(name: str, members: str) -> None:
    module = import_module(name)
    assert [each for each in re.findall(r"\w+", members) if not hasattr(module, each)] == []
    assert members or module.__all__


def test_the_reference_names_modules() -> None:
    assert len(DOCUMENTED) > 8
