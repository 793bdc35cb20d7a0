# SPDX-License-Identifier: Apache-2.0
"""gRPC-compatible channels and servers over shared memory, TCP and gRPC.

``insecure_channel``, ``secure_channel`` and ``server`` take the arguments of their namesakes in
``grpc`` and return objects of its interfaces, so that generated stubs and servicers work unchanged.
"""

from tensorwire.rpc.choice import Path
from tensorwire.rpc.client.channel import Channel, insecure_channel, secure_channel
from tensorwire.rpc.client.peer import Peer, peer_of
from tensorwire.rpc.payload import segments
from tensorwire.rpc.serving.server import Server, server
from tensorwire.rpc.status import CallEndedError, CallError

__all__ = [
    "CallEndedError",
    "CallError",
    "Channel",
    "Path",
    "Peer",
    "Server",
    "insecure_channel",
    "peer_of",
    "secure_channel",
    "segments",
    "server",
]
