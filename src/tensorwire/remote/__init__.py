# SPDX-License-Identifier: Apache-2.0
"""A remote machine as a memory device: tensors of another process, read and written one-sidedly.

``host`` lets the peers of a server at memory of this process; ``connect`` reaches another one's.
"""

from tensorwire.remote.batch import Batch, Prepared
from tensorwire.remote.device import Device, connect, connect_async
from tensorwire.remote.errors import (
    AlreadyExistsError,
    ChannelClosedError,
    DeadlineExceededError,
    NotFoundError,
    PeerLostError,
    PermissionDeniedError,
    RemoteError,
    ResourceExhaustedError,
)
from tensorwire.remote.exposed import Exposed
from tensorwire.remote.handle import Handle, Rights
from tensorwire.remote.host import Host, HostStats
from tensorwire.remote.operation import Operation
from tensorwire.remote.path import Path
from tensorwire.remote.receiver import Receiver, receiver
from tensorwire.remote.sender import Sender, sender, sender_async
from tensorwire.remote.service import host
from tensorwire.remote.signals import Add, Set, Signal, SignalUpdate, wait_any
from tensorwire.remote.tensor import RemoteTensor

__all__ = [
    "Add",
    "AlreadyExistsError",
    "Batch",
    "ChannelClosedError",
    "DeadlineExceededError",
    "Device",
    "Exposed",
    "Handle",
    "Host",
    "HostStats",
    "NotFoundError",
    "Operation",
    "Path",
    "PeerLostError",
    "PermissionDeniedError",
    "Prepared",
    "Receiver",
    "RemoteError",
    "RemoteTensor",
    "ResourceExhaustedError",
    "Rights",
    "Sender",
    "Set",
    "Signal",
    "SignalUpdate",
    "connect",
    "connect_async",
    "host",
    "receiver",
    "sender",
    "sender_async",
    "wait_any",
]
