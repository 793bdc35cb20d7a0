# SPDX-License-Identifier: Apache-2.0
"""The headers of the C ABI are C, not only C++: foreign code of any language reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[1] / "core"
HEADERS = [CORE / "tensorwire.h", *sorted(CORE.glob("tensorwire/*.h"))]


@pytest.mark.parametrize("language", ["-xc -std=c11", "-xc++ -std=c++11"])
def test_each_header_compiles_on_its_own(language: str) -> None:
    sources = [f'#include "{header.relative_to(CORE)}"' for header in HEADERS]
    options = ["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    for source in sources:
        done = subprocess.run(
            ["c++", *language.split(), *options, "-I", CORE, "-"],
            input=f"{source}\n",
            stderr=subprocess.PIPE,
            text=True,
        )
        assert done.returncode == 0, f"{source}\n{done.stderr}"
