# SPDX-License-Identifier: Apache-2.0
"""Arrows point downwards: no file includes or imports anything from a layer above its own.

`violations(root)` looks at a source tree. The tests apply it to this repository and, to show that
it can find something, to small trees that break one rule each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Lowest first; files directly in core/ (the C ABI) stand above them all.
CORE_LAYERS = ("base", "wire", "memory", "engine", "transport", "message", "link", "call")
ABI = len(CORE_LAYERS)
TRANSPORTS = ("shm", "tcp", "verbs")

PYTHON_IN_CORE = re.compile(r"Python\.h|nanobind/|tensorflow/|torch/")
SYSTEM_IO = re.compile(r"sys/(socket|epoll|eventfd|mman|un)\.h|netinet/|fcntl\.h|poll\.h|unistd\.h")
# An integration includes the headers of its own framework, as that names them.
FRAMEWORK_HEADERS = {"tensorflow": ("absl/", "google/protobuf/", "tensorflow/", "tsl/")}
WITHOUT_IO = ("wire", "message")

# Modules of one rank that are both named here do not know each other; one that is not named stands
# beside rpc and may know it.
PYTHON_RANKS = {
    "tensors": 0,
    "rpc": 1,
    "remote": 2,
    "graph": 2,
    "collective": 3,
    "simulate": 3,
    "tensorflow": 4,
    "torch": 4,
    "bench": 5,
    "cli": 6,
    "__main__": 7,
}

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def includes(file: Path) -> Iterator[tuple[str, str]]:
    for match in INCLUDE.finditer(file.read_text()):
        yield match[1], match[2]


def native_files(folder: Path) -> Iterator[Path]:
    return (f for f in sorted(folder.rglob("*")) if f.suffix in {".h", ".cc", ".cpp"})


def layer(path: PurePosixPath) -> int:
    """The rank of a path below core/."""
    return ABI if len(path.parts) == 1 else CORE_LAYERS.index(path.parts[0])


def include_violations(core: Path, file: Path) -> Iterator[str]:
    here = PurePosixPath(file.relative_to(core))
    if here.parts[0] in {"test", "fuzz"}:
        return
    if here.parts[0] not in CORE_LAYERS and len(here.parts) > 1:
        yield f"core/{here}: {here.parts[0]} is not one of the layers"
        return
    for quote, name in includes(file):
        if quote == "<":
            if PYTHON_IN_CORE.match(name):
                yield f"core/{here}: the core knows no Python, no framework, but includes <{name}>"
            if here.parts[0] in WITHOUT_IO and SYSTEM_IO.match(name):
                yield f"core/{here}: {here.parts[0]} does no I/O, but includes <{name}>"
            continue
        there = PurePosixPath(name)
        if not (core / there).is_file():
            yield f'core/{here}: "{name}" is not a path from core/'
        elif layer(there) > layer(here):
            yield f'core/{here}: arrow points upwards to "{name}"'
        elif there.parts[0] == "transport" and there.parts[1] in TRANSPORTS:
            if here.parts[0] == "message":
                yield f'core/{here}: message rides on any transport, but includes "{name}"'
            elif here.parts[0] == "transport" and here.parts[1] != there.parts[1]:
                yield f'core/{here}: a transport does not know another: "{name}"'


def imported_packages(package: Path, file: Path) -> Iterator[str]:
    """The first name below `tensorwire` of everything that `file` imports at run time."""
    parts = ("tensorwire", *file.relative_to(package).with_suffix("").parts)
    for node in ast.walk(without_type_checking(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: -node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "tensorwire" and rest:
                yield rest.partition(".")[0]


def without_type_checking(tree: ast.Module) -> ast.Module:
    """Annotations may name what is above: nothing is imported for them."""

    class Pruner(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            if ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
                return node.orelse
            return self.generic_visit(node)

    pruned: ast.Module = Pruner().visit(tree)
    return pruned


def import_violations(package: Path, file: Path) -> Iterator[str]:
    here = file.relative_to(package)
    if here == Path("__init__.py"):
        return  # it gathers the public names
    mine = here.parts[0].removesuffix(".py")
    rank = PYTHON_RANKS.get(mine, PYTHON_RANKS["rpc"])
    for other in imported_packages(package, file):
        above = PYTHON_RANKS.get(other, rank) - rank
        if above > 0 or (above == 0 and mine != other and {mine, other} <= PYTHON_RANKS.keys()):
            yield f"tensorwire/{here}: {mine} must not import tensorwire.{other}"


def binding_violations(package: Path, file: Path) -> Iterator[str]:
    """Whatever is native outside the core comes in by its one door."""
    frameworks = FRAMEWORK_HEADERS.get(file.relative_to(package).parts[0], ())
    for quote, name in includes(file):
        if quote != '"' or name == "tensorwire.h" or name.startswith(frameworks):
            continue
        if not (file.parent / name).is_file():
            yield f'tensorwire/{file.relative_to(package)}: only tensorwire.h, not "{name}"'


def violations(root: Path) -> list[str]:
    core, package = root / "core", root / "src" / "tensorwire"
    found: list[str] = []
    for file in native_files(core):
        found += include_violations(core, file)
    for file in native_files(package):
        found += binding_violations(package, file)
    for file in sorted(package.rglob("*.py")):
        found += import_violations(package, file)
    return found


def test_arrows_point_downwards() -> None:
    assert (ROOT / "core" / "tensorwire.h").is_file(), "the tree has moved: nothing was checked"
    assert violations(ROOT) == []


TREE = {
    "core/tensorwire.h": "",
    "core/base/status.h": "",
    "core/wire/frame.h": '#include "base/status.h"\n',
    "core/transport/transport.h": "#include <sys/socket.h>\n",
    "core/transport/shm/ring.h": '#include "transport/transport.h"\n',
    "core/transport/tcp/socket.h": "",
    "core/message/machine.h": '#include "transport/transport.h"\n',
    "core/link/link.h": '#include "transport/tcp/socket.h"\n',
    "core/test/anything.cc": '#include "link/link.h"\n',
    "src/tensorwire/_core.cpp": '#include <nanobind/nanobind.h>\n#include "tensorwire.h"\n',
    "src/tensorwire/__init__.py": "from . import rpc\n",
    "src/tensorwire/tensors.py": "import tensorwire._core\n",
    "src/tensorwire/rpc/__init__.py": "from .channel import Channel\n",
    "src/tensorwire/rpc/channel.py": "from typing import TYPE_CHECKING\nfrom .. import tensors\n"
    "if TYPE_CHECKING:\n    from tensorwire.bench import rows\n",
    "src/tensorwire/tensorflow/plugin/server.cc": '#include "tensorflow/core/server.h"\n'
    '#include "tensorwire.h"\n',
    "src/tensorwire/bench/__init__.py": "import tensorwire.rpc\n",
    "src/tensorwire/cli.py": "def main():\n    from .bench import rpc\n",
}


def write_tree(root: Path, **changed: str) -> Path:
    for name, text in (TREE | changed).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_checker_accepts_a_good_tree(tmp_path: Path) -> None:
    assert violations(write_tree(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("core/base/status.h", '#include "wire/frame.h"', "upwards"),
        ("core/link/link.h", '  # include "tensorwire.h"', "upwards"),
        ("core/transport/transport.h", '#include "message/machine.h"', "upwards"),
        ("core/transport/shm/ring.h", '#include "transport/tcp/socket.h"', "another"),
        ("core/transport/tcp/socket.h", '#include "transport/shm/ring.h"', "another"),
        ("core/transport/transport.h", '#include "transport/shm/ring.h"', "another"),
        ("core/message/machine.h", '#include "transport/shm/ring.h"', "any transport"),
        ("core/message/machine.h", "#include <sys/socket.h>", "no I/O"),
        ("core/wire/frame.h", '#include "../link/link.h"', "not a path"),
        ("core/base/status.h", "#include <Python.h>", "no Python"),
        ("core/util/misc.h", "", "not one of the layers"),
        ("src/tensorwire/_core.cpp", '#include "link/link.h"', "only tensorwire.h"),
        ("src/tensorwire/tensorflow/plugin/a.cc", '#include "link/link.h"', "only tensorwire.h"),
        ("src/tensorwire/torch/a.cc", '#include "tensorflow/core/a.h"', "only tensorwire.h"),
        ("src/tensorwire/rpc/channel.py", "import tensorwire.bench", "tensorwire.bench"),
        ("src/tensorwire/rpc/channel.py", "from .. import bench", "tensorwire.bench"),
        ("src/tensorwire/rpc/aio/channel.py", "from ...bench import rpc", "tensorwire.bench"),
        ("src/tensorwire/rpc/__init__.py", "from ..cli import main", "tensorwire.cli"),
        ("src/tensorwire/tensors.py", "def f():\n    import tensorwire.rpc", "tensorwire.rpc"),
        ("src/tensorwire/torch/__init__.py", "import tensorwire.tensorflow", "tensorflow"),
    ],
)
def test_checker_finds(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    found = violations(write_tree(tmp_path, **{file: text}))
    assert len(found) == 1
    assert file.removeprefix("src/") in found[0]
    assert complaint in found[0]


PLUGIN = ROOT / "src" / "tensorwire" / "tensorflow" / "plugin"
DECODING = re.compile(r"\b(?:Parse(?:Partial)?From\w+|(?<!Status )decode_\w+)\(([^;{]*)")
SEGMENT = re.compile(r"\b(?:tw_segment|message_segment|segment|body|first)\b(?!\.size)")


def test_the_plugin_decodes_copies() -> None:
    """A peer on the same host may write to what it lends: what was checked must be what is used.
    Raw bytes of tensors are not decoded."""
    calls = [
        (file.name, arguments)
        for file in sorted(PLUGIN.glob("*.cc"))
        for arguments in DECODING.findall(file.read_text())
    ]
    assert len(calls) > 3
    assert [call for call in calls if SEGMENT.search(call[1])] == []
