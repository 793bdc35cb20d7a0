# SPDX-License-Identifier: Apache-2.0
"""NVRTC of a package of pip, for which a library of the same name stands in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import ctypes, sys
import torch
from tensorwire.torch import nvrtc

def loaded():
    try:
        ctypes.CDLL("libnvrtc.so.12")
    except OSError:
        return False
    return True

torch.version.cuda = None  # as in a build for the CPU
nvrtc.load()
assert not loaded()
torch.version.cuda = "12.4"
nvrtc.load()
print(nvrtc.found("12.4"), nvrtc.found("11.8"), loaded())
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")
def test_a_package_is_found(tmp_path: Path) -> None:
    libraries = {
        release: tmp_path / "nvidia" / package / "lib" / f"libnvrtc.so.{release}"
        for release, package in ((12, "cuda_nvrtc"), (13, "cu13"))
    }
    for path in libraries.values():
        path.parent.mkdir(parents=True)
        link = ["c++", "-shared", "-x", "c++", "-", f"-Wl,-soname,{path.name}", "-o", str(path)]
        subprocess.run(link, input=b"int stands_in = 1;", check=True)
    (tmp_path / "nvidia" / "__init__.py").touch()  # else a real package would be preferred
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(libraries[12]), "None", "True"]
