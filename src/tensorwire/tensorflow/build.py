# SPDX-License-Identifier: Apache-2.0
"""Builds the plugin for the TensorFlow that is installed, once, and keeps it for later processes.

TensorFlow's C++ interface differs with every release, so that there is one build for each of them,
by the user's compiler against the headers in TensorFlow's wheel. The result lies in
``$XDG_CACHE_HOME/tensorwire`` (``~/.cache/tensorwire``), in a folder named after all it depends on.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from tensorwire import plugins
from tensorwire.plugins import BuildError, UnsupportedError, core_headers, release, text

log = logging.getLogger("tensorwire")

FRAMEWORK = "TensorFlow"
PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "plugin"
LIBRARY = "libtensorwire_tensorflow.so"
DIGEST = plugins.digest_file(LIBRARY)
OLDEST, NEWEST = (2, 15), (2, 21)
"""Releases of TensorFlow that are tested; a newer one is tried."""

BUILDING = f"{plugins.BUILDING} {FRAMEWORK}"
"""What the lines begin with that tell of a build."""
TENSORFLOW_HEADERS = ("external/com_github_grpc_grpc/include", "external/farmhash_archive/src")
# In the other order TensorFlow's two libraries would not share their registry of servers.
TENSORFLOW_LIBRARIES = ("-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2")


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
    include = tensorflow.folder / "include"
    flags = [flag for flag in tensorflow.flags if not flag.startswith("-I")]
    more = [f"-I{include / folder}" for folder in TENSORFLOW_HEADERS]
    return plugins.Plugin(
        framework=FRAMEWORK,
        version=tensorflow.version,
        library=LIBRARY,
        abi=(tensorflow.git_version, *flags),
        libraries=_libraries(tensorflow.folder),
        flags=(*tensorflow.flags, *more),
        link=(f"-L{tensorflow.folder}", *TENSORFLOW_LIBRARIES, "-Wl,-z,defs"),
        sources=sources or SOURCES,
        headers=headers or core_headers(),
    ).built()


def found(version: str, tensorflow: Path) -> list[Path]:
    """Libraries in the cache that were built from these sources for the TensorFlow ``version``
    whose libraries are in the folder ``tensorflow``."""
    sources = plugins.digest_of_sources(SOURCES, core_headers())
    name = f"{version}-{sources}-{plugins.digest_of_libraries(_libraries(tensorflow))}-*"
    folder = plugins.cache_path() / plugins.folder_of(FRAMEWORK)
    return [
        library for library in sorted(folder.glob(f"{name}/{LIBRARY}")) if plugins.whole(library)
    ]


def compiler() -> list[str]:
    """``$CXX``, or the first of the usual names that is there. BuildError when none is."""
    return plugins.compiler(FRAMEWORK)


def _libraries(folder: Path) -> tuple[Path, ...]:
    return tuple(folder / option.removeprefix("-l:") for option in TENSORFLOW_LIBRARIES)


if __name__ == "__main__":
    try:
        print(plugin(installed()))
    except (BuildError, UnsupportedError) as error:
        sys.exit(f"tensorwire: {error}")
