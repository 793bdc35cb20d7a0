# SPDX-License-Identifier: Apache-2.0
"""Builds the plugin for the PyTorch that is installed: see tensorwire.plugins."""

from __future__ import annotations

import logging
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tensorwire import plugins
from tensorwire.plugins import BuildError, UnsupportedError, core_headers

log = logging.getLogger("tensorwire")

FRAMEWORK = "PyTorch"
SOURCES = Path(__file__).resolve().parent / "plugin"
MODULE = "tensorwire_torch"
LIBRARY = f"lib{MODULE}.so"
OLDEST, NEWEST = (2, 4), (2, 14)
"""Releases of PyTorch that are supported; a newer one is tried."""
LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so")
COMPILER_MACROS = ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
"""Of pybind11: modules that agree on them see each other's types."""


@dataclass(frozen=True)
class PyTorch:
    """The installed PyTorch, and Python, as far as the build depends on them.

    folder: of the package. headers: Python's.
    """

    version: str
    git_version: str
    python: str
    macros: tuple[str, ...]
    folder: Path
    headers: Path


def installed() -> PyTorch:
    """Imports PyTorch and looks at it. UnsupportedError when there is none."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnsupportedError(
            f"{sys.executable} has no PyTorch: pip install 'tensorwire[torch]'"
        ) from None
    pairs = {name: getattr(torch._C, f"_PYBIND11_{name}", None) for name in COMPILER_MACROS}
    macros = [f'-DPYBIND11_{name}="{value}"' for name, value in pairs.items() if value is not None]
    macros.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    return PyTorch(
        str(torch.__version__),
        str(torch.version.git_version),
        sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag or "",
        tuple(macros),
        Path(torch.__file__).resolve().parent,
        Path(sysconfig.get_paths()["include"]),
    )


def check(torch: PyTorch) -> None:
    """UnsupportedError for a release that is too old, or a Python without headers; a warning for a
    release that is not tested yet."""
    found = plugins.release(torch.version)
    supported = f"{plugins.text(OLDEST)} to {plugins.text(NEWEST)} are supported"
    if found < OLDEST:
        raise UnsupportedError(
            f"PyTorch {torch.version} is too old: {supported}; pip install -U torch"
        )
    if found > NEWEST:
        log.warning("PyTorch %s is not tested yet: %s", torch.version, supported)


def plugin(torch: PyTorch) -> Path:
    """The library for ``torch``, built now if need be; other processes wait for it meanwhile.

    Says on standard error what takes time. Raises UnsupportedError and BuildError.
    """
    check(torch)
    include = torch.folder / "include"
    library = plugins.Plugin(
        framework=FRAMEWORK,
        version=torch.version,
        library=LIBRARY,
        abi=(torch.git_version, torch.python, *torch.macros),
        libraries=tuple(torch.folder / "lib" / name for name in LIBRARIES),
        flags=(
            "-std=c++20",
            *torch.macros,
            f"-I{include}",
            f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}",
            f"-I{torch.headers}",
        ),
        link=(f"-L{torch.folder / 'lib'}", *(f"-l:{name}" for name in LIBRARIES)),
        sources=SOURCES,
        headers=core_headers(),
    )
    found = library.found()
    if found is not None:
        return found
    if not (torch.headers / "Python.h").is_file():
        raise BuildError(
            "PyTorch's plugin is compiled at first use and needs Python's headers, which are not "
            f"in {torch.headers}: install python3-dev (apt-get), or python3-devel (dnf)"
        )
    return library.built()


if __name__ == "__main__":
    try:
        print(plugin(installed()))
    except (BuildError, UnsupportedError) as error:
        sys.exit(f"tensorwire: {error}")
