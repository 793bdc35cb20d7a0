# SPDX-License-Identifier: Apache-2.0
"""A TensorFlow server in a process of its own, for tests: forked for ``conftest.Cluster``.

Says ``ready``, then answers each line on standard input by one of JSON. It ends with its input.

``stats``: what went which way. ``drop``: from now on nobody who connects to the data port gets an
answer, as behind a firewall. ``cut``: the connections that others have to it end. Both answer how
many sockets that was about.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from tests.tensorflow.hostile import Hostile

import tensorflow as tf
import tensorwire.tensorflow as tt

SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: return 0 bytes of the packet


class SocketFilter(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def tcp_sockets() -> Iterator[socket.socket]:
    """Of this process, each for the time of its turn."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        with socket.socket(fileno=copy) as found:
            if found.family == socket.AF_INET and found.type == socket.SOCK_STREAM:
                yield found


def is_listening(found: socket.socket) -> bool:
    return found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


def data_ports(grpc_ports: Collection[int]) -> set[int]:
    ports = {found.getsockname()[1] for found in tcp_sockets() if is_listening(found)}
    return ports.difference(grpc_ports)


def drop(grpc_ports: Collection[int]) -> int:
    program = bytes(SocketFilter(1, DROP_ALL))
    count = 0
    for found in tcp_sockets():
        if is_listening(found) and found.getsockname()[1] not in grpc_ports:
            found.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
            count += 1
    return count


def cut(grpc_ports: Collection[int]) -> int:
    ports = data_ports(grpc_ports)
    count = 0
    for found in tcp_sockets():
        if not is_listening(found) and found.getsockname()[1] in ports:
            with suppress(OSError):  # the other end has closed it meanwhile
                found.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def main(order: dict[str, Any]) -> None:
    if order["late"]:
        tf.constant(1.0)  # TensorFlow has made its devices
    hostile = Hostile() if order["hostile"] else None
    if order["protocol"] != tt.STOCK_PROTOCOL:
        tt.enable()
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=4, intra_op_parallelism_threads=1
    )
    config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    servers = [
        tf.distribute.Server(
            order["cluster"],
            job_name=job,
            task_index=task,
            protocol=order["protocol"],
            config=config,
        )
        for job, task in order["tasks"]
    ]
    print("ready", len(servers), flush=True)
    grpc_ports = [int(order["cluster"][job][at].rsplit(":", 1)[1]) for job, at in order["tasks"]]
    answers: dict[str, Callable[[], Any]] = {
        "stats": tt.stats,
        "drop": partial(drop, grpc_ports),
        "cut": partial(cut, grpc_ports),
        **(hostile.words() if hostile else {}),
    }
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)
    os._exit(0)  # servers of TensorFlow cannot be shut down
