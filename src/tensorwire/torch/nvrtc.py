# SPDX-License-Identifier: Apache-2.0
"""NVRTC, which makes kernels for CUDA devices, from a package of pip: the linker does not look
there, and the runtime takes one that the process has loaded.

The plugin calls ``load`` when the first tensor of a device comes.
"""

from __future__ import annotations

import ctypes
import logging
from importlib.util import find_spec
from pathlib import Path

log = logging.getLogger("tensorwire")


def found(release: str) -> Path | None:
    """The library of the installed packages that is for this release of CUDA, as ``"12.4"``: code
    of a newer one may be too new for the driver."""
    spec = find_spec("nvidia")
    name = f"libnvrtc.so.{release.partition('.')[0]}*"
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(f"*/lib/{name}")):
            return path
    return None


def load() -> None:
    """Does nothing without such a package, or where PyTorch is not for CUDA. Without NVRTC arrays
    are reduced in the host's memory."""
    import torch

    path = found(str(torch.version.cuda)) if torch.version.cuda else None
    if path is None:
        return
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("NVRTC cannot be loaded: %s", error)
