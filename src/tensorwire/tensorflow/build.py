# SPDX-License-Identifier: Apache-2.0
"""Builds the plugin for the TensorFlow that is installed, once, and keeps it for later processes.

TensorFlow's C++ interface differs with every release, so that there is one build for each of them,
by the user's compiler against the headers in TensorFlow's wheel. The result lies in
``$XDG_CACHE_HOME/tensorwire`` (``~/.cache/tensorwire``), in a folder named after all it depends on.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tensorwire import progress
from tensorwire.tensorflow.errors import BuildError, UnsupportedError

log = logging.getLogger("tensorwire")

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "plugin"
LIBRARY = "libtensorwire_tensorflow.so"
DIGEST = f"{LIBRARY}.sha256"
"""Beside the library: what it has to be, in the format of sha256sum."""
OLDEST, NEWEST = (2, 15), (2, 21)
"""Releases of TensorFlow that are tested; a newer one is tried."""

BUILDING = "tensorwire: building the plugin for TensorFlow"
"""What the lines begin with that tell of a build."""
BUILD_SECONDS = 3600.0
"""For one compilation, and for another process's build."""
SMALLEST_DISK = 1 << 20
"""Bytes; with less free, whatever ended the compiler was that."""
SAY_SECONDS = 1.0
LOOK_SECONDS = 0.1
END_BYTES = 1 << 20
OPTIONS = ("-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")
TENSORFLOW_HEADERS = ("external/com_github_grpc_grpc/include", "external/farmhash_archive/src")
# In the other order TensorFlow's two libraries would not share their registry of servers.
TENSORFLOW_LIBRARIES = ("-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2")
NO_COMPILER = (
    "TensorFlow's plugin is compiled at first use and needs a C++ compiler: install g++ "
    "(apt-get install g++, or dnf install gcc-c++), or set CXX to one"
)


@dataclass(frozen=True)
class TensorFlow:
    """The installed TensorFlow, as far as the build depends on it.

    flags: for the compiler, from ``tf.sysconfig``. folder: of its libraries and of ``include``.
    """

    version: str
    git_version: str
    flags: tuple[str, ...]
    folder: Path


def installed() -> TensorFlow:
    """Imports TensorFlow and looks at it. UnsupportedError when there is none."""
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise UnsupportedError(
            f"{sys.executable} has no TensorFlow: pip install 'tensorwire[tensorflow]'"
        ) from None
    return TensorFlow(
        tf.version.VERSION,
        tf.version.GIT_VERSION,
        tuple(tf.sysconfig.get_compile_flags()),
        Path(tf.sysconfig.get_lib()),
    )


def check(tensorflow: TensorFlow) -> None:
    """UnsupportedError for a release that is too old; a warning for one that is not tested yet."""
    supported = f"{text(OLDEST)} to {text(NEWEST)} are supported"
    if release(tensorflow.version) < OLDEST:
        raise UnsupportedError(
            f"TensorFlow {tensorflow.version} is too old: {supported}; pip install -U tensorflow"
        )
    if release(tensorflow.version) > NEWEST:
        log.warning("TensorFlow %s is not tested yet: %s", tensorflow.version, supported)


def plugin(
    tensorflow: TensorFlow, *, sources: Path | None = None, headers: Path | None = None
) -> Path:
    """The library for ``tensorflow``, built now if need be; other processes wait for it meanwhile.

    Says on standard error what takes time. Raises UnsupportedError and BuildError.
    """
    check(tensorflow)
    build = _Build(tensorflow, sources or SOURCES, headers or core_headers())
    folder = cache()
    library = folder / build.name / LIBRARY
    if _complete(library):
        return library
    try:
        with _lock(folder / f"{build.name}.lock"):
            if not _complete(library):
                build.run(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BuildError(_full(folder)) from None
        raise BuildError(f"cannot keep the plugin in {folder}: {error}") from None
    return library


def found(version: str, tensorflow: Path) -> list[Path]:
    """Libraries in the cache that were built from these sources for the TensorFlow ``version``
    whose libraries are in the folder ``tensorflow``."""
    sources = _digest_of(_files(SOURCES, core_headers()))
    name = f"{version}-{sources}-{_digest_of_libraries(tensorflow)}-*"
    libraries = sorted((cache_path() / "tensorflow").glob(f"{name}/{LIBRARY}"))
    return [library for library in libraries if _whole(library)]


def compiler() -> list[str]:
    """``$CXX``, or the first of the usual names that is there. BuildError when none is."""
    named = shlex.split(os.environ.get("CXX", ""))
    for words in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(words[0]):
            return words
    raise BuildError(f"{NO_COMPILER} (CXX={named[0]!r} is not there)" if named else NO_COMPILER)


def core_headers() -> Path:
    """The headers of the core that the plugin includes: beside the package in an installation, in
    ``core/`` in a source tree."""
    installation, tree = PACKAGE.parent / "include", PACKAGE.parents[2] / "core"
    return installation if installation.is_dir() else tree


def cache_path() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if named.startswith("/") else Path("~/.cache").expanduser()) / "tensorwire"


def cache() -> Path:
    """The folder for builds. BuildError when it cannot be made, or others could write to it: what
    lies there is run."""
    folder = cache_path() / "tensorflow"
    levels = (folder.parent.parent, folder.parent, folder)
    try:
        levels[0].mkdir(mode=0o700, parents=True, exist_ok=True)
        for level in levels[1:]:
            level.mkdir(mode=0o700, exist_ok=True)  # whatever the umask is
    except OSError as error:
        raise BuildError(
            f"cannot keep the TensorFlow plugin in {folder} ({error.strerror}): set XDG_CACHE_HOME "
            "to a folder that you may write to"
        ) from None
    for level in levels[0].resolve(), *levels[0].resolve().parents:
        status = level.stat()
        others = status.st_mode & stat.S_IWOTH
        if status.st_gid != os.getegid():
            others |= status.st_mode & stat.S_IWGRP
        if others and not status.st_mode & stat.S_ISVTX:
            raise BuildError(
                f"others may write to {level}, and so put code where the TensorFlow plugin is "
                "loaded from: set XDG_CACHE_HOME to a folder of your own"
            )
    for level in levels[1:]:
        _check_owner(level, level)
    return folder


def _check_owner(path: Path, remove: Path) -> None:
    """BuildError where somebody else may have written ``path``; advises to remove ``remove``, since
    what has been put there meanwhile stays there when the permissions are mended."""
    status = path.lstat()
    kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    own = status.st_uid in (0, os.geteuid())
    if not kind or not own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildError(
            f"others may have written {path}, from where code would be loaded: look at what is in "
            f"it, then rm -r {shlex.quote(str(remove))}, or set XDG_CACHE_HOME to a folder of your "
            "own"
        )


def _complete(library: Path) -> bool:
    """Whether it is there and as it was built: a copy of the cache may have been cut short, and the
    process would end by SIGBUS. BuildError when others may have written it."""
    folder = library.parent
    if not folder.is_dir():
        return False
    _check_owner(folder, folder)
    for path in (library, folder / DIGEST):
        if path.exists() or path.is_symlink():
            _check_owner(path, folder)
    return _whole(library)


def _whole(library: Path) -> bool:
    try:
        wanted = (library.parent / DIGEST).read_text().partition(" ")[0]
        return hashlib.sha256(library.read_bytes()).hexdigest() == wanted
    except (OSError, UnicodeDecodeError):
        return False


def _full(folder: Path) -> str:
    return (
        f"no space is left where the TensorFlow plugin is built: free some 100 MB in {folder} and "
        f"in {tempfile.gettempdir()}, or set XDG_CACHE_HOME and TMPDIR to folders that have it"
    )


@dataclass
class _Build:
    tensorflow: TensorFlow
    sources: Path
    headers: Path
    _processes: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _ended: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        """Of the folder: TensorFlow, the sources (with the function table), TensorFlow's libraries,
        all else. No path is in it: one build serves all environments that have this TensorFlow."""
        flags = [flag for flag in self.tensorflow.flags if not flag.startswith("-I")]
        abi = (self.tensorflow.git_version, *flags, *OPTIONS, platform.machine())
        sources = _digest_of(_files(self.sources, self.headers))
        libraries = _digest_of_libraries(self.tensorflow.folder)
        rest = _digest(" ".join(abi).encode())
        return f"{self.tensorflow.version}-{sources}-{libraries}-{rest}"

    @property
    def _flags(self) -> list[str]:
        include = self.tensorflow.folder / "include"
        more = [f"-I{include / folder}" for folder in TENSORFLOW_HEADERS]
        return [*self.tensorflow.flags, *OPTIONS, *more, f"-I{self.headers}"]

    def run(self, folder: Path) -> None:
        """Compiles into a folder of its own, which gets its name when all is there."""
        cxx = compiler()
        units = sorted(self.sources.glob("*.cc"))
        if not units:
            raise BuildError(f"the plugin's sources are missing from {self.sources}: reinstall")
        prefix = f"{self.name}.building-"
        for left in folder.glob(f"{prefix}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=prefix) as temporary:
            place = Path(temporary)
            made = place / "made"
            made.mkdir(mode=0o700)
            objects = {unit: place / f"{unit.stem}.o" for unit in units}
            commands = [
                [*cxx, *self._flags, "-c", str(unit), "-o", str(target)]
                for unit, target in objects.items()
            ]
            link = [*cxx, "-shared", *map(str, objects.values()), "-o", str(made / LIBRARY)]
            link += [
                f"-L{self.tensorflow.folder}",
                *TENSORFLOW_LIBRARIES,
                "-pthread",
                "-Wl,-z,defs",
            ]
            with _progress(self.tensorflow.version, len(commands) + 1) as step:
                self._compile(commands, folder, step)
                self._call(link, folder)
            library = made / LIBRARY
            library.chmod(0o700)
            digest = hashlib.sha256(library.read_bytes()).hexdigest()
            (made / DIGEST).write_text(f"{digest}  {LIBRARY}\n")
            (made / DIGEST).chmod(0o600)
            if (folder / self.name).exists():  # not whole
                (folder / self.name).rename(place / "old")
            made.rename(folder / self.name)

    def _compile(self, commands: list[list[str]], folder: Path, step: _Step) -> None:
        workers = min(len(commands), len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(workers) as pool:
            try:
                for done in as_completed([pool.submit(self._call, c, folder) for c in commands]):
                    done.result()
                    step()
            except BaseException:
                self._end()
                pool.shutdown(cancel_futures=True)
                raise

    def _end(self) -> None:
        with self._guard:
            self._ended = True
            for process in self._processes:
                process.kill()

    def _call(self, command: list[str], folder: Path) -> None:
        with self._guard:
            if self._ended:
                return
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C"},  # for _failure, which reads what it says
            )
            self._processes.add(process)
        try:
            output, _ = process.communicate(timeout=BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise BuildError(
                f"the compiler took longer than {BUILD_SECONDS:g} s: {shlex.join(command)}"
            ) from None
        with self._guard:
            self._processes.discard(process)
            if self._ended or process.returncode == 0:
                return
        raise BuildError(self._failure(command, output.decode(errors="replace"), folder))

    def _failure(self, command: list[str], output: str, folder: Path) -> str:
        free = min(shutil.disk_usage(path).free for path in (folder, tempfile.gettempdir()))
        if os.strerror(errno.ENOSPC) in output or free < SMALLEST_DISK:
            return _full(folder)
        written = folder / f"{self.name}.log"
        written.write_text(f"$ {shlex.join(command)}\n{output}")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line or "undefined reference" in line]
        first = (errors or lines or ["the compiler says nothing"])[0]
        text = f"the plugin does not compile with TensorFlow {self.tensorflow.version}: {first}"
        if "Killed" in output:
            text += " (the machine may have too little memory: a compilation takes about 2 GB)"
        return f"{text}; all of it is in {written}"


class _Step:
    """How far the build is; on a terminal it says so with every step."""

    def __init__(self, version: str, steps: int) -> None:
        self._text = f"{BUILDING} {version}"
        self._steps = steps
        self._done = 0
        self.live = sys.stderr.isatty()

    def __call__(self) -> None:
        self._done += 1
        self.show()

    def __str__(self) -> str:
        if self._done == 0:
            return f"{self._text}, once; it takes about a minute"
        return f"{self._text}: {self._done} of {self._steps}"

    def show(self) -> None:
        if self.live:
            print(
                f"\r\033[K{self._text}: {self._done} of {self._steps}",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def clear(self) -> None:
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextmanager
def _progress(version: str, steps: int) -> Iterator[_Step]:
    step = _Step(version, steps)
    with nullcontext() if step.live else progress.lines(lambda: str(step)):
        step.show()
        try:
            yield step
        finally:
            step.clear()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time, and by none that has died."""
    with path.open("w") as file:
        begin = time.monotonic()
        say_at = SAY_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - begin
            if waited > BUILD_SECONDS:
                raise BuildError(
                    f"another process has been building the plugin for {waited:.0f} s: end the one "
                    f"that holds {path}, and try again"
                )
            if waited > say_at:
                say_at += progress.SECONDS
                progress.say(
                    "tensorwire: waiting for the plugin, which another process is building"
                )
            time.sleep(LOOK_SECONDS)
        yield


def _files(sources: Path, headers: Path) -> list[Path]:
    """All that the plugin's object code can depend on, beside TensorFlow."""
    own = sorted([*sources.glob("*.cc"), *sources.glob("*.h")])
    return [*own, *headers.glob("tensorwire.h"), *sorted(headers.glob("tensorwire/*.h"))]


def _digest_of(files: list[Path]) -> str:
    return _digest(b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in files))


def _digest_of_libraries(folder: Path) -> str:
    """Tells apart builds of one release of TensorFlow: the ends of each library, with its build id
    and the layout of its sections, and its size."""
    digest = hashlib.sha256()
    for option in TENSORFLOW_LIBRARIES:
        path = folder / option.removeprefix("-l:")
        if path.exists():
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(f"{path.name} {size} ".encode())
                for place in (0, max(0, size - END_BYTES)):
                    file.seek(place)
                    digest.update(file.read(END_BYTES))
    return digest.hexdigest()[:12]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


if __name__ == "__main__":
    try:
        print(plugin(installed()))
    except (BuildError, UnsupportedError) as error:
        sys.exit(f"tensorwire: {error}")
