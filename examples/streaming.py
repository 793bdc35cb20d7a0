# SPDX-License-Identifier: Apache-2.0
"""Frames of a camera on a stream: a server sends, a viewer looks, and a slow viewer slows the
camera down instead of filling memory.

    python examples/streaming.py                           # a camera and a viewer, here
    python examples/streaming.py --library both            # over stock grpcio, too
    python examples/streaming.py --frames 50 --look-ms 20  # a viewer that takes its time
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

import tensorwire
from tensorwire import service

HEIGHT, WIDTH = 1080, 1920
CALL_SECONDS = 600
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Frame = np.ndarray[Any, Any]


@service.define(name="example.Camera")
class Camera:
    """What viewers can call."""

    def __init__(self, in_arena: bool) -> None:
        """in_arena: whether frames are born where viewers on this host can read them in place."""
        self._in_arena = in_arena
        self._seen = 0
        self.ahead = 0
        self.figures: dict[str, Any] = {}

    def watch(self, frames: int) -> Iterator[np.ndarray]:
        """A stream: each frame leaves when the viewer has room for it."""
        self._seen = 0
        for number in range(frames):
            frame = self._capture(number)
            self.ahead = max(self.ahead, number - self._seen)
            yield frame

    def seen(self, frames: int) -> None:
        """How many frames a viewer has looked at."""
        self._seen = frames

    def report(self, figures: dict[str, Any]) -> None:
        """The viewer has come to its end."""
        self.figures = figures

    def _capture(self, number: int) -> Frame:
        shape = (HEIGHT, WIDTH, 3)
        if not self._in_arena:
            return np.full(shape, number % 256, np.uint8)
        return tensorwire.publish(tensorwire.full(shape, number % 256, np.uint8, timeout=None))


def view(address: str, library: str, frames: int, look: float) -> None:
    """A viewer: adds up each frame, and takes ``look`` seconds for it at least."""
    channel: grpc.Channel
    if library == "grpcio":
        channel = grpc.insecure_channel(address, options=OPTIONS)
    else:
        channel = tensorwire.insecure_channel(address, options=OPTIONS)
    with channel:
        camera = service.client(Camera, channel, timeout=CALL_SECONDS, wait_for_ready=True)
        camera.seen(0)  # opens the way
        begin = time.perf_counter()
        for number, frame in enumerate(camera.watch(frames)):
            until = time.perf_counter() + look
            if frame.min() != number % 256 or frame.max() != number % 256:
                raise SystemExit(f"frame {number} is wrong")
            while time.perf_counter() < until:
                frame.max()  # looking once more
            if look:
                camera.seen(number + 1)
        camera.report(
            {
                "seconds": time.perf_counter() - begin,
                "path": str(channel.path()) if isinstance(channel, tensorwire.Channel) else "grpc",
            }
        )


def run(library: str, arguments: argparse.Namespace) -> float:
    """The camera here, the viewer in a process of its own; the seconds of the stream."""
    if library == "grpcio":
        server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
    else:
        server = tensorwire.server(ThreadPoolExecutor(4), options=OPTIONS)
    camera = Camera(library == "tensorwire")
    service.add_to_server(camera, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    command = [sys.executable, __file__, "--connect", address, "--library", library]
    command += ["--frames", str(arguments.frames), "--look-ms", str(arguments.look_ms)]
    viewer = subprocess.Popen(command)
    try:
        print(f"{library}: the camera is at {address}", flush=True)
        if viewer.wait() != 0:
            raise SystemExit(f"the viewer failed (exit code {viewer.returncode})")
    finally:
        viewer.kill()  # if it has ended, it does not mind
        server.stop(None).wait()
    seconds: float = camera.figures["seconds"]
    rate = arguments.frames / seconds
    print(f"{library}: frames went by {camera.figures['path']}")
    print(
        f"{library}: {arguments.frames} frames of {HEIGHT} x {WIDTH}: {rate:.0f} in a second, "
        f"{rate * HEIGHT * WIDTH * 3 / 1e9:.2f} GB/s"
    )
    if arguments.look_ms:
        print(f"{library}: the camera was at most {camera.ahead} frames ahead of its viewer")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=300, help="of the stream (300)")
    parser.add_argument("--look-ms", type=float, default=0, help="at each frame, at least (0)")
    parser.add_argument(
        "--library",
        choices=("tensorwire", "grpcio", "both"),
        default="tensorwire",
        help="what carries the stream",
    )
    parser.add_argument("--connect", metavar="ADDRESS", help="be the viewer of that camera")
    arguments = parser.parse_args()
    if arguments.connect:
        look = arguments.look_ms / 1e3
        view(arguments.connect, arguments.library, arguments.frames, look)
        return
    libraries = ("tensorwire", "grpcio") if arguments.library == "both" else (arguments.library,)
    seconds = [run(library, arguments) for library in libraries]
    if len(seconds) == 2:
        print(f"the stream takes grpcio {seconds[1] / seconds[0]:.1f} times as long")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except grpc.RpcError as error:
        raise SystemExit(f"{error.code().name}: {error.details()}") from None
