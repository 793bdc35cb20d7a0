# SPDX-License-Identifier: Apache-2.0
"""A file of the plugin that needs no TensorFlow, alone with a program that drives it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tensorwire.tensorflow import build

SOURCES = Path(build.__file__).parent / "plugin"


def compiled(folder: Path, file: str, main: str) -> Path:
    """``file`` of the plugin and the text of ``main.cc``, compiled in ``folder``."""
    (folder / "main.cc").write_text(main)
    sources = [str(folder / "main.cc"), str(SOURCES / file)]
    flags = ["-std=c++17", f"-I{SOURCES}", "-o", str(folder / "program")]
    subprocess.run([*build.compiler(), *sources, *flags], check=True, timeout=120)
    return folder / "program"
