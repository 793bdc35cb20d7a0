"""The RDMA-TensorFlow guide's settings that are not sizes; the core reads those."""

from __future__ import annotations

import logging
import os
import re

from tensorwire.host import rdma_devices

log = logging.getLogger("tensorwire")

SWITCH = {"": True, "true": True, "1": True, "false": False, "0": False}
DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,63}")


def wanted() -> bool:
    """Whether TF_RDMA_ENABLED leaves tensorwire on.

    Looks at all settings, so that a wrong one is refused before anything starts: ValueError names
    the variable and what is permitted.
    """
    from tensorwire import _core

    switch = os.environ.get("TF_RDMA_ENABLED", "")
    if switch.lower() not in SWITCH:
        raise ValueError(_refusal("TF_RDMA_ENABLED", switch, "true or false"))
    if not SWITCH[switch.lower()]:
        return False
    _check_device(os.environ.get("TF_RDMA_DEV_NAME", ""), rdma_devices())
    try:
        _core.settings()
    except _core.StatusError as error:
        raise ValueError(error.args[1]) from None
    return True


def _check_device(name: str, present: tuple[str, ...]) -> None:
    if not name:
        return
    if not DEVICE.fullmatch(name):
        permitted = "the name of an RDMA device, such as mlx5_0"
        raise ValueError(_refusal("TF_RDMA_DEV_NAME", name, permitted))
    if present and name not in present:
        permitted = f"the name of a device of this host: {', '.join(present)}"
        raise ValueError(_refusal("TF_RDMA_DEV_NAME", name, permitted))
    if not present:
        log.warning(
            "TF_RDMA_DEV_NAME=%s: this host has no RDMA device; tensors go by shared memory or TCP",
            name,
        )


def _refusal(name: str, value: str, permitted: str) -> str:
    return f"{name}={value!r} is not permitted: set {permitted}"
