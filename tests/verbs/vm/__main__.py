# SPDX-License-Identifier: Apache-2.0
"""Runs a command over real kernel verbs (Soft-RoCE) in a virtual machine, thrown away afterwards.

    python -m tests.verbs.vm [options] -- COMMAND [ARGUMENT...]

The guest's root file system is this host's own, read-only, with a layer in memory above it: the
virtual environment, the compiled library and the tests are at the same paths, and nothing that is
written there reaches the host, save under --writable. Nothing is installed on the host and no root
is needed. The kernel and the emulator are packages of the host's distribution (Debian), kept in
$XDG_CACHE_HOME/tensorwire/verbs-vm.

examples:
    python -m tests.verbs.vm -- ibv_devinfo
    python -m tests.verbs.vm --net veth -- .venv/bin/python -m pytest tests/verbs
    python -m tests.verbs.vm --prepare          fills the cache, for later use without a network

exit code: the command's own; 124 when it ran past --limit, 125 when the machine failed, 126 when it
could not be made.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.verbs.vm.image import ImageError, prepare
from tests.verbs.vm.machine import Order, run

CANNOT_PREPARE = 126
NETS = """which RDMA devices the guest has.
lo: rxe0 on the loopback device; dummy: rxe0 on 10.77.0.1;
veth: rxe0 on 10.77.0.1 and rxe1 on 10.77.0.2, with a wire between them on which tc and ip link act;
none: the modules only"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.verbs.vm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--net", choices=("lo", "dummy", "veth", "none"), default="lo", help=NETS)
    parser.add_argument(
        "--limit", type=int, default=120, metavar="S", help="seconds for the command (120)"
    )
    parser.add_argument(
        "--writable",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of the host that the guest may write; may be repeated",
    )
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="(2048)")
    parser.add_argument("--cpus", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument(
        "--accelerator",
        choices=("auto", "tcg", "kvm"),
        default="auto",
        help="auto: KVM where it is real, emulation otherwise",
    )
    parser.add_argument("--verbose", action="store_true", help="show times and logs at the end")
    parser.add_argument("--prepare", action="store_true", help="only make the image")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if not options.command and not options.prepare:
        parser.error("no command")
    try:
        image = prepare()
    except ImageError as error:
        print(f"verbs test machine: {error}", file=sys.stderr)
        return CANNOT_PREPARE
    if options.prepare:
        return 0
    return run(
        image,
        Order(
            command=options.command,
            net=options.net,
            limit_seconds=options.limit,
            memory_mib=options.memory,
            cpus=options.cpus,
            accelerator=options.accelerator,
            writable=[folder.resolve() for folder in options.writable],
            verbose=options.verbose,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
