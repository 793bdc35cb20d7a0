# SPDX-License-Identifier: Apache-2.0
"""The RDMA-TensorFlow guide's settings that are not sizes; the core reads those."""

from __future__ import annotations

import logging

from tensorwire import environment
from tensorwire.environment import SettingError
from tensorwire.observe.host import named_devices, rdma_devices

log = logging.getLogger("tensorwire")

ENABLED = "TF_RDMA_ENABLED"
DEVICES = "TF_RDMA_DEV_NAME"
FORBID = "TENSORWIRE_FORBID"


def wanted() -> bool:
    """Whether TF_RDMA_ENABLED leaves tensorwire on.

    Looks at all settings, so that a wrong one is refused before anything starts: SettingError names
    the variable and what is permitted.
    """
    environment.tell_unknown()
    if environment.read(ENABLED) == "false":
        return False
    environment.read("TENSORWIRE_TF_ARENA")
    environment.read("TENSORWIRE_TF_COLLECTIVES")
    environment.read("TENSORWIRE_TF_PLAN")
    environment.settings()
    _check_devices(rdma_devices())
    return True


def why_stock() -> str | None:
    """The setting that leaves every tensor to TensorFlow's own gRPC; None where none does. Of
    settings that were not refused."""
    from tensorwire.rpc.choice import policy

    if environment.read(ENABLED) == "false":
        return f"{ENABLED}=false"
    chosen = policy(None, ())
    if chosen.required == "grpc":
        return chosen.origin
    return None if chosen.data_plane else f"{FORBID}={environment.read(FORBID)}"


def _check_devices(present: tuple[str, ...]) -> None:
    """Of TF_RDMA_DEV_NAME, where that is what counts."""
    if not (names := environment.read(DEVICES)):
        return
    if not present:
        log.warning(
            "%s=%s: this host has no RDMA device; tensors go by shared memory or TCP",
            DEVICES,
            names,
        )
        return
    if not {*named_devices()} <= {*present}:
        raise SettingError(
            f"{DEVICES}={names!r} is not permitted: set the name of a device of this host: "
            f"{', '.join(present)}"
        )
