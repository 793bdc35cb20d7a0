# SPDX-License-Identifier: Apache-2.0
"""The RDMA-TensorFlow guide's settings that are not sizes; the core reads those."""

from __future__ import annotations

import logging
import os
import re

from tensorwire import environment
from tensorwire.environment import SettingError
from tensorwire.observe.host import rdma_devices

log = logging.getLogger("tensorwire")

SWITCH = {"": True, "true": True, "1": True, "false": False, "0": False}
TRANSPORTS = {"shm", "verbs", "tcp"}
ARENA = ("auto", "traced", "off")
DEVICES = re.compile(
    r"[A-Za-z0-9_.-]{1,63}(:[0-9]{1,3})?( *, *[A-Za-z0-9_.-]{1,63}(:[0-9]{1,3})?)*"
)


def wanted() -> bool:
    """Whether TF_RDMA_ENABLED leaves tensorwire on.

    Looks at all settings, so that a wrong one is refused before anything starts: SettingError names
    the variable and what is permitted.
    """
    environment.tell_unknown()
    switch = os.environ.get("TF_RDMA_ENABLED", "")
    if switch.lower() not in SWITCH:
        raise SettingError(_refusal("TF_RDMA_ENABLED", switch, "true or false"))
    if not SWITCH[switch.lower()]:
        return False
    arena = os.environ.get("TENSORWIRE_TF_ARENA", "")
    if arena and arena not in ARENA:
        raise SettingError(_refusal("TENSORWIRE_TF_ARENA", arena, "auto, traced or off"))
    _check_devices(os.environ.get("TF_RDMA_DEV_NAME", ""), rdma_devices())
    environment.settings()
    return True


def why_stock() -> str | None:
    """The setting that leaves every tensor to TensorFlow's own gRPC; None where none does. Of
    settings that were not refused."""
    if not SWITCH[os.environ.get("TF_RDMA_ENABLED", "").lower()]:
        return "TF_RDMA_ENABLED=false"
    if os.environ.get("TENSORWIRE_TRANSPORT") == "grpc":
        return "TENSORWIRE_TRANSPORT=grpc"
    forbidden = os.environ.get("TENSORWIRE_FORBID", "")
    if set(re.split("[, ]", forbidden)) >= TRANSPORTS:
        return f"TENSORWIRE_FORBID={forbidden}"
    return None


def _check_devices(names: str, present: tuple[str, ...]) -> None:
    """Of TF_RDMA_DEV_NAME, which counts where TENSORWIRE_VERBS_DEVICE is not set."""
    if not names or os.environ.get("TENSORWIRE_VERBS_DEVICE"):
        return
    if not DEVICES.fullmatch(names):
        permitted = "names of RDMA devices, such as mlx5_0 or mlx5_0:1,mlx5_1:1"
        raise SettingError(_refusal("TF_RDMA_DEV_NAME", names, permitted))
    if not present:
        log.warning(
            "TF_RDMA_DEV_NAME=%s: this host has no RDMA device; tensors go by shared memory or TCP",
            names,
        )
        return
    for entry in names.split(","):
        if entry.partition(":")[0].strip() not in present:
            permitted = f"the name of a device of this host: {', '.join(present)}"
            raise SettingError(_refusal("TF_RDMA_DEV_NAME", names, permitted))


def _refusal(name: str, value: str, permitted: str) -> str:
    return f"{name}={value!r} is not permitted: set {permitted}"
