# SPDX-License-Identifier: Apache-2.0
"""What the virtual machine is made of: packages of this host's distribution, kept in a cache.

An image is a folder of its own for each recipe (the text of this folder's files) and distribution:

    packages/       the .deb files as they came; `manifest.json` records their names and digests
    root/           what is in them, laid under the guest's root file system
    vmlinux         the kernel, uncompressed
    initramfs       busybox, the modules that reach the guest's root, and `init.sh`

apt checks the packages against the distribution's signatures. It is asked for what this host lacks,
so that the guest's tools find their libraries either here or there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
KERNEL = "linux-image-amd64"  # names the current kernel package
PACKAGES = (
    "qemu-system-x86",
    "busybox-static",
    "kmod",
    "iproute2",
    "ibverbs-providers",
    "ibverbs-utils",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
    "python3-pyverbs",
)
# Services of a running system, of which the guest has none.
UNWANTED = ("systemd", "udev", "rdma-core", "libpam-systemd", "libnss-systemd", "dbus")
# The rest of the kernel's modules are drivers of real hardware.
MODULES = (
    "infiniband/core",
    "infiniband/sw",
    "virtio",
    "char/virtio_console.ko",
    "net/veth.ko",
    "net/dummy.ko",
    "kernel/net",
    "kernel/lib",
    "kernel/crypto",
    "kernel/arch",
    "fs/9p",
    "fs/netfs",
    "fs/fscache",
    "fs/overlayfs",
    "fs/configfs",
)
# In the order of their loading; each brings what it depends on.
EARLY_MODULES = (
    *("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay"),
    *("rdma_rxe", "ib_uverbs", "rdma_ucm"),
)
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class ImageError(Exception):
    """The image cannot be made here; the message says why and what would help."""


class Image:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.kernel = folder / "vmlinux"
        self.initramfs = folder / "initramfs"

    @property
    def environment(self) -> dict[str, str]:
        """For programs of the image that run on the host."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.root / LIBRARIES)}


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tensorwire" / "verbs-vm"


def prepare() -> Image:
    """The image from the cache, made first if it is not there."""
    folder = cache_folder() / _key()
    if (folder / "manifest.json").exists():
        return Image(folder)
    if platform.machine() != "x86_64":
        raise ImageError(
            f"the verbs test machine is made for x86-64 only, not {platform.machine()}"
        )
    for tool in ("apt-get", "dpkg-deb", "tar"):
        if shutil.which(tool) is None:
            raise ImageError(
                f"{tool} is missing: the verbs test machine is made of Debian packages"
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / "lock"):
        if not (folder / "manifest.json").exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as name:
                made = Path(name) / "image"
                _make(Image(made))
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
    return Image(folder)


def _key() -> str:
    recipe = hashlib.sha256(Path("/etc/os-release").read_bytes())
    for name in ("image.py", "init.sh"):
        recipe.update((HERE / name).read_bytes())
    return recipe.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(image: Image) -> None:
    packages = image.folder / "packages"
    packages.mkdir(parents=True)
    _download(packages)
    _say("unpacking")
    _unpack(packages, image.root)
    (release,) = (image.root / "usr/lib/modules").iterdir()
    kmod = str(image.root / "usr/bin/kmod")
    _run(["depmod", "-b", str(image.root), release.name], executable=kmod, env=image.environment)
    _uncompress(image.root / "boot" / f"vmlinuz-{release.name}", image.kernel)
    _pack_initramfs(image, kmod, release.name)
    manifest = {
        deb.name: hashlib.sha256(deb.read_bytes()).hexdigest() for deb in sorted(packages.iterdir())
    }
    (image.folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


# ------------------------------------------------------------------------------------- packages


def _download(into: Path) -> None:
    """With the host's package lists; with fresh ones of our own where those are missing or old."""
    try:
        _download_with([], into)
    except ImageError:
        _say("fetching package lists")
        private = into.parent / "apt"
        (private / "lists/partial").mkdir(parents=True)
        (private / "cache/archives/partial").mkdir(parents=True)
        options = [f"-oDir::State::Lists={private}/lists", f"-oDir::Cache={private}/cache"]
        _run(["apt-get", *options, "-oDebug::NoLocking=1", "-qq", "update"])
        _download_with(options, into)
        shutil.rmtree(private)


def _download_with(options: list[str], into: Path) -> None:
    def apt_get(*arguments: str) -> str:
        return _run(["apt-get", *options, "-oAPT::Sandbox::User=root", *arguments], cwd=into)

    def missing(*names: str) -> set[str]:
        """What an installation would bring to this host."""
        plan = apt_get("-s", "--no-install-recommends", "install", *names)
        return {line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")}

    depends = _run(["apt-cache", *options, "depends", "--important", KERNEL])
    kernels = [line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line]
    if not kernels:
        raise ImageError(f"apt knows no package {KERNEL}")
    wanted = {*PACKAGES, kernels[0]}
    wanted |= {name for name in missing(*PACKAGES) if not name.startswith(UNWANTED)}
    _say(f"downloading {len(wanted)} packages (about 90 MB)")
    apt_get("-qq", "download", *sorted(wanted))


def _unpack(packages: Path, root: Path) -> None:
    for name in ("lib", "bin", "sbin", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for deb in packages.iterdir():
        if deb.name.startswith("linux-image"):
            choice = ["--wildcards", "./boot", "*/modules.builtin*", "*/modules.order"]
            choice += [f"*/{m}" if m.endswith(".ko") else f"*/{m}/*" for m in MODULES]
        else:
            choice = ["--exclude=./usr/share/doc", "--exclude=./usr/share/man"]
        tar = ["tar", "-x", "--keep-directory-symlink", "-C", str(root), *choice]
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as data:
            _run(tar, stdin=data.stdout)
    # The guest has its host's settings, but for those of the packages that the host lacks.
    (root / "etc").rename(root / "etc.all")
    (root / "etc").mkdir()
    for name in ("libibverbs.d", "iproute2"):
        if (root / "etc.all" / name).exists():
            (root / "etc.all" / name).rename(root / "etc" / name)
    shutil.rmtree(root / "etc.all")


# -------------------------------------------------------------------------- kernel and initramfs


def _uncompress(packed: Path, to: Path) -> None:
    """Such a kernel boots four seconds faster than one that unpacks itself under emulation."""
    data = packed.read_bytes()
    start = data.find(b"\xfd7zXZ\0")
    kernel = lzma.LZMADecompressor().decompress(data[start:]) if start >= 0 else b""
    to.write_bytes(kernel if kernel.startswith(b"\x7fELF") else data)


def _pack_initramfs(image: Image, kmod: str, release: str) -> None:
    tree = image.folder / "initramfs.tree"
    (tree / "modules").mkdir(parents=True)
    for name in ("bin", "proc", "sys", "dev", "host", "image", "upper", "root"):
        (tree / name).mkdir()
    busybox = tree / "bin/busybox"
    shutil.copy2(image.root / "bin/busybox", busybox)
    order: list[str] = []
    for module in EARLY_MODULES:
        show = ["modprobe", "-d", str(image.root), "-S", release, "--show-depends", module]
        for line in _run(show, executable=kmod, env=image.environment).splitlines():
            path = Path(line.removeprefix("insmod ").strip())
            if line.startswith("insmod ") and path.name not in order:
                order.append(path.name)
                _strip(path, tree / "modules" / path.name)
    (tree / "modules/order").write_text("".join(f"{name}\n" for name in order))
    shutil.copy2(HERE / "init.sh", tree / "init")
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    packed = subprocess.run(
        [busybox, "cpio", "-o", "-H", "newc"],
        input=names.encode(),
        cwd=tree,
        capture_output=True,
        check=True,
    )
    image.initramfs.write_bytes(packed.stdout)
    shutil.rmtree(tree)


def _strip(module: Path, to: Path) -> None:
    """Type information and signatures cost tenths of a second for each module under emulation."""
    shutil.copy2(module, to)
    if shutil.which("objcopy"):
        _run(["objcopy", "-R", ".BTF", "--strip-debug", str(to)])


# --------------------------------------------------------------------------------------- programs


def _run(
    command: Sequence[str],
    *,
    executable: str | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
) -> str:
    done = subprocess.run(
        command,
        executable=executable,
        cwd=cwd,
        env=env,
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise ImageError(f"`{' '.join(command[:4])} ...` ended with {done.returncode}:\n{said}")
    return done.stdout


def _say(what: str) -> None:
    print(f"verbs test machine: {what}", file=sys.stderr, flush=True)
