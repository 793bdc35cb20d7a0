# SPDX-License-Identifier: Apache-2.0
"""Builds a plugin for a framework that is installed, once, and keeps it for later processes.

A framework's C++ interface differs with every release, so that there is one build for each of them,
by the user's compiler against the headers in the framework's wheel. The result lies in
``$XDG_CACHE_HOME/tensorwire`` (``~/.cache/tensorwire``), in a folder named after all it depends on.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tensorwire import progress

PACKAGE = Path(__file__).resolve().parent
BUILD_SECONDS = 3600.0
"""For one compilation, and for another process's build."""
SMALLEST_DISK = 1 << 20
"""Bytes; with less free, whatever ended the compiler was that."""
SAY_SECONDS = 1.0
LOOK_SECONDS = 0.1
END_BYTES = 1 << 20
TOGETHER = 5
"""Sources that are compiled as one: what costs most is to parse the framework's headers."""
OPTIONS = ("-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")


class PluginError(RuntimeError):
    """The framework cannot be accelerated here."""


class UnsupportedError(PluginError):
    """There is no such framework, or not one that the plugin can be built for."""


class BuildError(PluginError):
    """The plugin could not be built or loaded: no compiler, no folder for it, a compile error."""


BUILDING = "tensorwire: building the plugin for"
"""What the lines begin with that tell of a build."""


def folder_of(framework: str) -> str:
    """Of its plugins, in the cache."""
    return framework.lower()


def digest_file(library: str) -> str:
    """Beside the library: what it has to be, in the format of sha256sum."""
    return f"{library}.sha256"


def compiler(framework: str) -> list[str]:
    """``$CXX``, or the first of the usual names that is there. BuildError when none is."""
    named = shlex.split(os.environ.get("CXX", ""))
    for words in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(words[0]):
            return words
    text = (
        f"{framework}'s plugin is compiled at first use and needs a C++ compiler: install g++ "
        "(apt-get install g++, or dnf install gcc-c++), or set CXX to one"
    )
    raise BuildError(f"{text} (CXX={named[0]!r} is not there)" if named else text)


def core_headers() -> Path:
    """The headers of the core that plugins include: beside the package in an installation, in
    ``core/`` in a source tree."""
    installation, tree = PACKAGE / "include", PACKAGE.parents[1] / "core"
    return installation if installation.is_dir() else tree


def cache_path() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if named.startswith("/") else Path("~/.cache").expanduser()) / "tensorwire"


def cache(framework: str) -> Path:
    """The folder for builds. BuildError when it cannot be made, or others could write to it: what
    lies there is run."""
    folder = cache_path() / folder_of(framework)
    levels = (folder.parent.parent, folder.parent, folder)
    try:
        levels[0].mkdir(mode=0o700, parents=True, exist_ok=True)
        for level in levels[1:]:
            level.mkdir(mode=0o700, exist_ok=True)  # whatever the umask is
    except OSError as error:
        raise BuildError(
            f"cannot keep the {framework} plugin in {folder} ({error.strerror}): set "
            "XDG_CACHE_HOME to a folder that you may write to"
        ) from None
    for level in levels[0].resolve(), *levels[0].resolve().parents:
        status = level.stat()
        others = status.st_mode & stat.S_IWOTH
        if status.st_gid != os.getegid():
            others |= status.st_mode & stat.S_IWGRP
        if others and not status.st_mode & stat.S_ISVTX:
            raise BuildError(
                f"others may write to {level}, and so put code where the {framework} plugin "
                "is loaded from: set XDG_CACHE_HOME to a folder of your own"
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


def complete(library: Path) -> bool:
    """Whether it is there and as it was built: a copy of the cache may have been cut short, and the
    process would end by SIGBUS. BuildError when others may have written it."""
    folder = library.parent
    if not folder.is_dir():
        return False
    _check_owner(folder, folder)
    for path in (library, folder / digest_file(library.name)):
        if path.exists() or path.is_symlink():
            _check_owner(path, folder)
    return whole(library)


def whole(library: Path) -> bool:
    try:
        wanted = (library.parent / digest_file(library.name)).read_text().partition(" ")[0]
        return hashlib.sha256(library.read_bytes()).hexdigest() == wanted
    except (OSError, UnicodeDecodeError):
        return False


def _full(framework: str, folder: Path) -> str:
    return (
        f"no space is left where the {framework} plugin is built: free some 100 MB in {folder} and "
        f"in {tempfile.gettempdir()}, or set XDG_CACHE_HOME and TMPDIR to folders that have it"
    )


@dataclass
class Plugin:
    """What is built, and of what.

    framework: its name, for people. library: the file that comes out. abi: all that the object code
    depends on beside files. libraries: those of the framework, which tell apart builds of one
    release. flags, link: for the compiler; paths of theirs are in no name, so that one build serves
    all environments that have this release.
    """

    framework: str
    version: str
    library: str
    abi: tuple[str, ...]
    libraries: tuple[Path, ...]
    flags: tuple[str, ...]
    link: tuple[str, ...]
    sources: Path
    headers: Path
    _processes: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _ended: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        """Of the folder: the framework, the sources (with the function table), the framework's
        libraries, all else."""
        sources = digest_of_sources(self.sources, self.headers)
        libraries = digest_of_libraries(self.libraries)
        rest = _digest(" ".join((*self.abi, *OPTIONS, platform.machine())).encode())
        return f"{self.version}-{sources}-{libraries}-{rest}"

    def found(self) -> Path | None:
        """The library, where it has been built before. BuildError: others may have written it."""
        library = cache(self.framework) / self.name / self.library
        return library if complete(library) else None

    def built(self) -> Path:
        """The library, built now if need be; other processes wait for it meanwhile.

        Says on standard error what takes time. Raises BuildError.
        """
        if (library := self.found()) is not None:
            return library
        folder = cache(self.framework)
        library = folder / self.name / self.library
        try:
            with _lock(folder / f"{self.name}.lock"):
                if not complete(library):
                    self.run(folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise BuildError(_full(self.framework, folder)) from None
            raise BuildError(f"cannot keep the plugin in {folder}: {error}") from None
        return library

    def run(self, folder: Path) -> None:
        """Compiles into a folder of its own, which gets its name when all is there."""
        cxx = compiler(self.framework)
        sources = sorted(self.sources.glob("*.cc"))
        if not sources:
            raise BuildError(f"the plugin's sources are missing from {self.sources}: reinstall")
        prefix = f"{self.name}.building-"
        for left in folder.glob(f"{prefix}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=prefix) as temporary:
            place = Path(temporary)
            made = place / "made"
            made.mkdir(mode=0o700)
            units = []
            for first in range(0, len(sources), TOGETHER):
                together = sources[first : first + TOGETHER]
                units.append(place / f"from_{together[0].stem}.cc")
                units[-1].write_text("".join(f'#include "{source}"\n' for source in together))
            objects = [str(unit.with_suffix(".o")) for unit in units]
            compiled = [*cxx, *self.flags, *OPTIONS, f"-I{self.headers}", "-c"]
            commands = [
                [*compiled, str(unit), "-o", to] for unit, to in zip(units, objects, strict=True)
            ]
            link = [*cxx, "-shared", *objects, "-o", str(made / self.library)]
            link += [*self.link, "-pthread"]
            with _progress(f"{self.framework} {self.version}", len(commands) + 1) as step:
                self._compile(commands, folder, step)
                self._call(link, folder)
            library = made / self.library
            library.chmod(0o700)
            digest = hashlib.sha256(library.read_bytes()).hexdigest()
            (made / digest_file(self.library)).write_text(f"{digest}  {self.library}\n")
            (made / digest_file(self.library)).chmod(0o600)
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
            return _full(self.framework, folder)
        written = folder / f"{self.name}.log"
        written.write_text(f"$ {shlex.join(command)}\n{output}")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line or "undefined reference" in line]
        first = (errors or lines or ["the compiler says nothing"])[0]
        text = f"the plugin does not compile with {self.framework} {self.version}: {first}"
        if "Killed" in output:
            text += " (the machine may have too little memory: a compilation takes about 2 GB)"
        return f"{text}; all of it is in {written}"


class _Step:
    """How far the build is; on a terminal it says so with every step."""

    def __init__(self, what: str, steps: int) -> None:
        self._text = f"{BUILDING} {what}"
        self._steps = steps
        self._done = 0
        self.live = sys.stderr is not None and sys.stderr.isatty()

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
def _progress(what: str, steps: int) -> Iterator[_Step]:
    step = _Step(what, steps)
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
    """All that the plugin's object code can depend on, beside the framework."""
    own = sorted([*sources.glob("*.cc"), *sources.glob("*.h")])
    return [*own, *headers.glob("tensorwire.h"), *sorted(headers.glob("tensorwire/*.h"))]


def digest_of_sources(sources: Path, headers: Path) -> str:
    files = _files(sources, headers)
    return _digest(b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in files))


def digest_of_libraries(libraries: Iterable[Path]) -> str:
    """Tells apart builds of one release of a framework: the ends of each library, with its build id
    and the layout of its sections, and its size."""
    digest = hashlib.sha256()
    for path in libraries:
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
