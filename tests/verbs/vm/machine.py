# SPDX-License-Identifier: Apache-2.0
"""Runs one command in the virtual machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.verbs.vm.image import HERE, Image

LIMIT_EXCEEDED = 124
VM_FAILED = 125
BOOT_SECONDS = 90  # beyond the command's limit: boot and shutdown on a busy machine
KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on no_timer_check "
    "net.ifnames=0 audit=0 nmi_watchdog=0"
)


@dataclass(frozen=True)
class Order:
    command: Sequence[str]
    net: str = "lo"
    limit_seconds: int = 120
    memory_mib: int = 2048
    cpus: int = 2
    accelerator: str = "auto"
    writable: Sequence[Path] = ()
    verbose: bool = False


def run(image: Image, order: Order) -> int:
    """The command's exit code; its output, both streams in one, goes to stdout as it comes."""
    with tempfile.TemporaryDirectory(prefix="verbs-vm-") as name:
        job = Path(name)
        _write(job, order)
        began = time.monotonic()
        code = _emulate(image, order, job)
        took = time.monotonic() - began
        said = job / "code"
        answered = said.exists() and said.read_text().strip()
        if order.verbose or not answered or answered == str(VM_FAILED):
            _explain(job, took)
        if answered:
            return int(answered)
        return LIMIT_EXCEEDED if code is None else VM_FAILED


def _write(job: Path, order: Order) -> None:
    folders = " ".join(shlex.quote(str(folder)) for folder in order.writable)
    (job / "order").write_text(
        f"LIMIT={order.limit_seconds} NET={shlex.quote(order.net)} WRITABLE=({folders})\n"
    )
    names = {"OLDPWD", "LD_PRELOAD", "LD_LIBRARY_PATH", "TMPDIR", "PWD", "SHLVL", "_"}
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in os.environ.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name) and name not in names
    ]
    lines.append("PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin")
    lines += [f"cd {shlex.quote(str(Path.cwd()))}", f"exec {shlex.join(order.command)}"]
    (job / "command").write_text("\n".join(lines) + "\n")
    shutil.copy(HERE / "guest.sh", job)


def _emulate(image: Image, order: Order, job: Path) -> int | None:
    """qemu's exit code, or None when it had to be ended."""
    source, sink = os.pipe()
    copier = threading.Thread(target=_copy, args=(source,))
    copier.start()
    try:
        with (job / "qemu.log").open("wb") as log:
            machine = subprocess.Popen(
                _command_line(image, order, job, sink),
                env=image.environment,
                stdin=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[sink],
                preexec_fn=_die_with_parent,
            )
    finally:
        os.close(sink)
    try:
        return machine.wait(order.limit_seconds + BOOT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        machine.kill()
        machine.wait()
        copier.join()
        os.close(source)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _copy(source: int) -> None:
    sys.stdout.flush()
    while chunk := os.read(source, 1 << 16):
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


def _command_line(image: Image, order: Order, job: Path, sink: int) -> list[str]:
    shared: list[tuple[Path, str, str]] = [
        (Path("/"), "host", ",readonly=on"),
        (image.root, "image", ",readonly=on"),
        (job, "job", ""),
        *((folder, f"writable{index}", "") for index, folder in enumerate(order.writable)),
    ]
    command = [str(image.root / "usr/bin/qemu-system-x86_64")]
    for firmware in ("usr/share/qemu", "usr/share/seabios"):
        command += ["-L", str(image.root / firmware), "-L", f"/{firmware}"]
    command += ["-M", "pc,usb=off,vmport=off,hpet=off", *_accelerator(order.accelerator)]
    command += ["-smp", str(order.cpus), "-m", str(order.memory_mib)]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += ["-kernel", str(image.kernel), "-initrd", str(image.initramfs)]
    command += ["-append", KERNEL_ARGUMENTS, "-serial", f"file:{job}/serial.log"]
    for folder, tag, more in shared:
        mount = f"local,path={folder},mount_tag={tag},security_model=none,multidevs=remap{more}"
        command += ["-virtfs", mount]
    command += ["-add-fd", f"fd={sink},set=1", "-device", "virtio-serial-pci"]
    command += ["-chardev", "file,id=output,path=/dev/fdset/1,append=on"]
    command += ["-device", "virtserialport,chardev=output,name=output"]
    command += ["-device", "virtio-rng-pci"]
    return command


def _accelerator(name: str) -> list[str]:
    if name == "kvm" or (name == "auto" and _has_kvm()):
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"]


def _has_kvm() -> bool:
    """Nested virtualisation in software shows a /dev/kvm that is slower than emulation."""
    flags = Path("/proc/cpuinfo").read_text()
    nested = "nested_pvm" in Path("/proc/cmdline").read_text()
    return (
        bool(re.search(r"\b(vmx|svm)\b", flags)) and os.access("/dev/kvm", os.W_OK) and not nested
    )


def _explain(job: Path, took: float) -> None:
    """What is known of a machine that failed, on stderr."""
    print(f"---- verbs test machine: {took:.1f} s", file=sys.stderr)
    for name, lines in (("times", 9), ("qemu.log", 5), ("guest.log", 20), ("serial.log", 20)):
        path = job / name
        text = path.read_text(errors="replace").strip() if path.exists() else ""
        if text:
            print(f"---- {name}", *text.splitlines()[-lines:], sep="\n", file=sys.stderr)
