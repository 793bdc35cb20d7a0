# SPDX-License-Identifier: Apache-2.0
"""Arrows point downwards: no file includes or imports anything from a layer above its own, and
the files of one folder do not include or import each other in a circle. Bytes that a peer chose are
decoded in files that are named for it.

`violations(root)` looks at a source tree. The tests apply it to this repository and, to show that
it can find something, to small trees that break one rule each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Lowest first. The one file directly in core/ is the C ABI's header, whose parts are in tensorwire/
# and which abi implements.
CORE_LAYERS = (
    "base",
    "wire",
    "memory",
    "device",
    "engine",
    "transport",
    "message",
    "process",
    "meet",
    "route",
    "link",
    "access",
    "tagged",
    "call",
    "collective",
    "tensorwire",
    "abi",
)
ABI = CORE_LAYERS.index("abi")
KINDS = (ROOT / "core" / "transport" / "kinds.cc").read_text()
TRANSPORTS = tuple(re.findall(r"^  KIND\((\w+)\)", KINDS, re.MULTILINE))
# The types and the namespaces of transports, and their names as text.
OF_A_TRANSPORT = re.compile(
    rf"\b(?:{'|'.join(name.title() for name in TRANSPORTS)})[A-Z]\w*"
    rf'|\b(?:{"|".join(TRANSPORTS)})::|"(?:{"|".join(TRANSPORTS)})[":]'
)
# Where Python may name a transport, and why; below the package.
NAMING = {
    "bench": "rows, plots and other libraries' settings for one of them",
    "observe/rdma.py": "what doctor says of RDMA: it sends bytes by the one that goes by that",
    "rpc/choice.py": "the public type; tests/rpc/test_choice.py compares it with the table",
}
# As words of a text; "loop" is one of plain English, too.
AS_A_WORD = re.compile(rf"(?<![\w/.])(?:{'|'.join({*TRANSPORTS} - {'loop'})})(?![\w/.])")
CPP_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')
RDMA_HEADER = re.compile(r"(infiniband|rdma)/")
# In an example of a command, what a user types.
TYPED = re.compile(r"--transports? [\w,]+")
NAME_IN_PYTHON = re.compile(rf"(?:{'|'.join(TRANSPORTS)})(?:[:,][\s\S]*)?")
COMMENT = re.compile(r"//[^\n]*")
# A decoder that is declared or defined (a call is indented), and what makes a value of bytes.
DECODER = re.compile(r"^\S.*\bdecode_\w+\(|\bload<|\bmemcpy\(&", re.MULTILINE)
# Files of the core that make values of bytes of another origin, or of bytes that mean nothing.
NO_PEER_CHOSE = {
    "access/mapped.cc": "a number in memory that is accessed, whatever it is",
    "collective/adasum.cc": "numbers of arrays",
    "collective/reduction.cc": "numbers of arrays",
    "collective/tuning.cc": "a digest of this process's own table",
    "meet/admissions.cc": "a random number, to find it by",
    "transport/shm/control.cc": "descriptors, by the kernel",
    "transport/tcp/host_answer.cc": "an answer of the kernel",
}

PYTHON_IN_CORE = re.compile(r"Python\.h|nanobind/|tensorflow/|torch/")
SYSTEM_IO = re.compile(r"sys/(socket|epoll|eventfd|mman|un)\.h|netinet/|fcntl\.h|poll\.h|unistd\.h")
# An integration includes the headers of its own framework, as that names them.
FRAMEWORK_HEADERS = {
    "tensorflow": ("absl/", "google/protobuf/", "tensorflow/", "tsl/"),
    "torch": ("ATen/", "c10/", "torch/"),
}
WITHOUT_IO = ("wire", "message")

# Every module, lowest first; those of one rank do not know each other. Those of a package that
# stand on several storeys have a rank each.
PYTHON_LAYERS = (
    ("_core", "malformed", "observe", "signals"),
    ("launch", "log", "observe.measure", "progress", "tensors", "terminal", "transports"),
    ("environment", "observe.audit", "observe.host", "observe.trace", "plugins"),
    ("arrays", "audit", "observe.messages", "rpc", "trace"),
    ("observe.sockets",),
    (
        *("observe.doctor", "observe.loopback", "observe.metrics", "observe.profile"),
        *("collective", "protobuf", "queue", "remote", "service"),
    ),
    ("graph", "horovod", "jax", "metrics", "observe.rdma", "tensorflow", "torch", "weights"),
    ("bench",),
    ("cli",),
    ("__main__",),
)
PYTHON_RANKS = {name: rank for rank, names in enumerate(PYTHON_LAYERS) for name in names}
PACKAGES_OF_STOREYS = {name.partition(".")[0] for name in PYTHON_RANKS if "." in name}

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
            if here.parts[:2] != ("transport", "verbs") and RDMA_HEADER.match(name):
                yield f"core/{here}: the other side of a transport: <{name}>"
            if here.parts[0] in WITHOUT_IO and SYSTEM_IO.match(name):
                yield f"core/{here}: {here.parts[0]} does no I/O, but includes <{name}>"
            continue
        there = PurePosixPath(name)
        if not (core / there).is_file():
            yield f'core/{here}: "{name}" is not a path from core/'
        elif len(there.parts) > 1 and there.parts[0] not in CORE_LAYERS:
            yield f'core/{here}: "{name}" belongs to no layer'
        elif layer(there) > layer(here):
            yield f'core/{here}: arrow points upwards to "{name}"'
        elif (
            there.parts[0] == "transport"
            and there.parts[1] in TRANSPORTS
            and here.parts[:2] != there.parts[:2]
        ):
            yield f'core/{here}: the other side of a transport: "{name}"'
    if layer(here) > CORE_LAYERS.index("transport"):
        code = COMMENT.sub("", file.read_text())
        for match in OF_A_TRANSPORT.finditer(code):
            yield f"core/{here}: names a transport: {match[0]}"
        for match in CPP_TEXT.finditer(code):
            if AS_A_WORD.search(match[0]) and not OF_A_TRANSPORT.search(match[0]):
                yield f"core/{here}: names a transport: {match[0]}"


def decodes(here: PurePosixPath) -> bool:
    """Whether the file's name says that it reads bytes that a peer chose; a path below core/ or
    below the plugin."""
    return here.stem == "wire" or here.parts[0] in {"wire", "test", "fuzz"}


def decoding_violations(top: Path, shown: str) -> Iterator[str]:
    for file in native_files(top):
        here = PurePosixPath(file.relative_to(top))
        if not decodes(here) and str(here) not in NO_PEER_CHOSE:
            for match in DECODER.finditer(COMMENT.sub("", file.read_text())):
                yield f"{shown}/{here}: decodes, but is no wire file: {match[0].strip()}"


def imported_modules(package: Path, file: Path) -> Iterator[str]:
    """The full names of everything that `file` imports at run time; of `from m import n` both."""
    parts = ("tensorwire", *file.relative_to(package).with_suffix("").parts)
    for node in ast.walk(without_type_checking(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: -node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def ranked_name(parts: Sequence[str]) -> str:
    """What has a rank, of the names of a module below `tensorwire`."""
    several = parts[0] in PACKAGES_OF_STOREYS and parts[1:] not in ([], ["__init__"])
    return ".".join(parts[:2] if several else parts[:1])


def imported_packages(package: Path, file: Path) -> set[str]:
    """What has a rank, of everything that `file` imports at run time."""
    names = (name.split(".") for name in imported_modules(package, file))
    return {ranked_name(parts[1:]) for parts in names if parts[0] == "tensorwire" and parts[1:]}


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
    mine = ranked_name(list(here.with_suffix("").parts))
    if mine not in PYTHON_RANKS:
        yield f"tensorwire/{here}: {mine} is not one of the modules"
        return
    for other in sorted(imported_packages(package, file) - {mine}):
        # Public names of the package itself are none of its modules.
        if PYTHON_RANKS.get(other, -1) >= PYTHON_RANKS[mine]:
            yield f"tensorwire/{here}: {mine} must not import tensorwire.{other}"


def names_of_transports(file: Path) -> Iterator[str]:
    """Texts that are the name of one, an address by one, or a list that begins with one; and those
    with a name as a word, but for documentation and what users type."""
    source = file.read_text()
    if not any(name in source for name in TRANSPORTS):
        return
    tree = ast.parse(source)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in told else None
        if isinstance(text, str) and (
            NAME_IN_PYTHON.fullmatch(text) or AS_A_WORD.search(TYPED.sub("", text))
        ):
            yield text


def may_name_transports(here: PurePosixPath) -> set[str]:
    return {str(each) for each in (here, *here.parents)} & NAMING.keys()


Graph = dict[str, set[str]]


def circle(graph: Graph) -> list[str]:
    """The names on one way round, sorted; empty: there is none."""
    graph = {name: there & graph.keys() - {name} for name, there in graph.items()}
    while ends := {name for name, there in graph.items() if not there}:
        graph = {name: there - ends for name, there in graph.items() if name not in ends}
    # What is left leads to a circle; those that nothing left leads to are not on it.
    while starts := graph.keys() - set().union(*graph.values()):
        graph = {name: there for name, there in graph.items() if name not in starts}
    return sorted(graph)


def include_graph(core: Path, folder: Path) -> Graph:
    """The units of a folder and of those in it, each a header and what implements it, by what they
    include."""
    graph: Graph = {}
    for file in native_files(folder):
        names = [core / name for quote, name in includes(file) if quote == '"']
        graph.setdefault(unit(folder, file), set()).update(
            unit(folder, name) for name in names if folder in name.parents
        )
    return graph


def unit(folder: Path, file: Path) -> str:
    return str(file.relative_to(folder).with_suffix(""))


def import_graph(package: Path, folder: Path) -> Graph:
    """The modules of a folder, and its packages as a whole, by what they import."""
    prefix = ".".join(("tensorwire", *folder.relative_to(package).parts)) + "."
    graph: Graph = {}
    for file in sorted(folder.rglob("*.py")):
        if file != folder / "__init__.py":
            graph.setdefault(file.relative_to(folder).with_suffix("").parts[0], set()).update(
                name.removeprefix(prefix).partition(".")[0]
                for name in imported_modules(package, file)
                if name.startswith(prefix)
            )
    return graph


def circles(root: Path) -> Iterator[str]:
    core, package = root / "core", root / "src" / "tensorwire"
    for folder in sorted(entry for entry in core.iterdir() if entry.is_dir()):
        if folder.name in {"test", "fuzz"}:
            continue
        if units := circle(include_graph(core, folder)):
            yield f"core/{folder.name}: in a circle: {', '.join(units)}"
    # Between what has ranks there is none.
    for folder in sorted({file.parent for file in package.rglob("*.py")} - {package}):
        if modules := circle(import_graph(package, folder)):
            yield f"tensorwire/{folder.relative_to(package)}: in a circle: {', '.join(modules)}"


def door_violations(root: Path, file: Path) -> Iterator[str]:
    """Whatever is native outside the core comes in by its one interface."""
    here = file.relative_to(root)
    frameworks = FRAMEWORK_HEADERS.get(here.parts[2], ()) if here.parts[0] == "src" else ()
    for quote, name in includes(file):
        if quote != '"' or name == "tensorwire.h" or name.startswith(frameworks):
            continue
        if not (file.parent / name).is_file():
            yield f'{here}: only tensorwire.h, not "{name}"'
    for match in OF_A_TRANSPORT.finditer(COMMENT.sub("", file.read_text())):
        yield f"{here}: names a transport: {match[0]}"


def violations(root: Path) -> list[str]:
    core, package = root / "core", root / "src" / "tensorwire"
    found: list[str] = []
    for file in native_files(core):
        found += include_violations(core, file)
    for folder in (package, root / "binding"):
        for file in native_files(folder):
            found += door_violations(root, file)
    for file in sorted(package.rglob("*.py")):
        found += import_violations(package, file)
        here = PurePosixPath(file.relative_to(package))
        if not may_name_transports(here):
            for text in names_of_transports(file):
                found.append(f'tensorwire/{here}: names a transport: "{text}"')
    found += decoding_violations(core, "core")
    found += decoding_violations(package / "tensorflow" / "plugin", "tensorwire/tensorflow/plugin")
    return found + list(circles(root))


def test_arrows_point_downwards() -> None:
    assert (ROOT / "core" / "tensorwire.h").is_file(), "the tree has moved: nothing was checked"
    assert violations(ROOT) == []


def test_every_module_is_there() -> None:
    """A layer that no longer exists would be checked in vain."""
    package = ROOT / "src" / "tensorwire"
    modules = {file.stem for file in package.iterdir() if file.suffix in {".py", ".pyi"}}
    modules |= {file.parent.name for file in package.glob("*/__init__.py")}
    for folder in PACKAGES_OF_STOREYS:
        modules |= {ranked_name([folder, file.stem]) for file in (package / folder).glob("*.py")}
    assert modules - {"__init__"} == set(PYTHON_RANKS)
    folders = {entry.name for entry in (ROOT / "core").iterdir() if entry.is_dir()}
    assert folders - {"test", "fuzz"} == set(CORE_LAYERS)
    transports = {entry.name for entry in (ROOT / "core/transport").iterdir() if entry.is_dir()}
    assert transports == set(TRANSPORTS)


def test_who_may_name_a_transport_does() -> None:
    package = ROOT / "src" / "tensorwire"
    using: set[str] = set()
    for file in package.rglob("*.py"):
        if any(names_of_transports(file)):
            using |= may_name_transports(PurePosixPath(file.relative_to(package)))
    assert using == NAMING.keys()


def test_files_that_decode_nothing_of_a_peer_are_there() -> None:
    for name, why in NO_PEER_CHOSE.items():
        assert DECODER.search((ROOT / "core" / name).read_text()), f"{name}, {why}: no longer"


TREE = {
    "core/tensorwire.h": "",
    "core/abi/abi.h": '#include "link/link.h"\n#include "tensorwire.h"\n',
    "core/base/status.h": "",
    "core/wire/frame.h": '#include "base/status.h"\nResult<Frame> decode_frame(Bytes bytes);\n',
    "core/transport/transport.h": "#include <sys/socket.h>\n",
    "core/transport/shm/ring.h": '#include "transport/transport.h"\n',
    "core/transport/tcp/socket.h": "",
    "core/transport/tcp/wire.cc": "auto first = load<uint32_t>(bytes.data());\n",
    "core/message/machine.h": '#include "transport/transport.h"\n',
    "core/link/link.h": '#include "link/fetches.h"\n#include "transport/transport.h"\n',
    "core/link/fetches.h": '#include "link/steps/step.h"\n',
    "core/link/steps/step.h": "",
    "core/test/anything.cc": '#include "link/link.h"\n',
    "binding/binding.h": '#include <nanobind/nanobind.h>\n#include "tensorwire.h"\n',
    "binding/module.cpp": '#include "binding.h"\n',
    "src/tensorwire/__init__.py": "from . import rpc\n",
    "src/tensorwire/tensors.py": "import tensorwire._core\n",
    "src/tensorwire/rpc/__init__.py": "from .channel import Channel\n",
    "src/tensorwire/rpc/channel.py": "from typing import TYPE_CHECKING\nfrom .. import tensors\n"
    "from . import call\nif TYPE_CHECKING:\n    from tensorwire.bench import rows\n",
    "src/tensorwire/rpc/call.py": "from ..observe.host import facts",
    "src/tensorwire/rpc/aio/__init__.py": "",
    "src/tensorwire/rpc/aio/channel.py": "from .. import channel",
    "src/tensorwire/observe/__init__.py": "",
    "src/tensorwire/observe/host.py": "",
    "src/tensorwire/observe/metrics.py": "from .. import rpc\n",
    "src/tensorwire/tensorflow/plugin/server.cc": '#include "tensorflow/core/server.h"\n'
    '#include "tensorwire.h"\nvoid f() {\n  wire::decode_head(bytes, &head);\n}\n',
    "src/tensorwire/tensorflow/plugin/wire.cc": "std::string decode_head(Bytes bytes, Head* out);",
    "src/tensorwire/bench/__init__.py": "import tensorwire.rpc\n",
    "src/tensorwire/cli/__init__.py": "def main():\n    from ..bench import rpc\n",
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
        ("core/transport/shm/ring.h", '#include "transport/tcp/socket.h"', "other side"),
        ("core/transport/tcp/socket.h", '#include "transport/shm/ring.h"', "other side"),
        ("core/transport/transport.h", '#include "transport/tcp/socket.h"', "other side"),
        ("core/message/machine.h", '#include "transport/shm/ring.h"', "other side"),
        ("core/link/link.h", "auto made = ShmTransport::make(); // over shm", "ShmTransport"),
        ("core/link/link.h", 'bool rdma() { return name() == "verbs"; }', '"verbs"'),
        ("core/meet/connect.cc", "auto context = verbs::open();", "verbs::"),
        ("core/message/machine.h", "#include <sys/socket.h>", "no I/O"),
        ("core/wire/frame.h", '#include "../link/link.h"', "not a path"),
        ("core/base/status.h", "#include <Python.h>", "no Python"),
        ("core/util/misc.h", "", "not one of the layers"),
        ("core/link/link.h", '#include "abi/abi.h"', "upwards"),
        ("core/link/link.h", '#include "test/anything.cc"', "no layer"),
        ("core/link/fetches.cc", '#include "link/link.h"', "circle: fetches, link"),
        ("core/link/steps/step.h", '#include "link/fetches.h"', "circle: fetches, steps/step"),
        ("core/link/link.h", "#include <infiniband/verbs.h>", "other side"),
        ("core/link/link.h", 'auto why = "neither verbs nor shm works";', '"neither verbs'),
        ("core/link/link.h", "Result<Head> decode_head(Bytes b) {", "no wire file: Result<Head>"),
        ("core/link/link.h", "  return load<Head>(bytes.data());", "no wire file: load<"),
        ("core/collective/a.cc", "  std::memcpy(&place, at, 40);", "no wire file: memcpy"),
        ("src/tensorwire/tensorflow/plugin/a.cc", "bool decode_a(Bytes bytes);", "no wire file"),
        ("src/tensorwire/tensorflow/plugin/a.cc", "  memcpy(&head, b, 8);", "no wire file: memcpy"),
        ("src/tensorwire/rpc/call.py", 'local = way == "shm"', 'names a transport: "shm"'),
        ("src/tensorwire/rpc/call.py", 'f"tcp:{host}"', 'names a transport: "tcp:"'),
        ("src/tensorwire/rpc/call.py", 'why = "shm cannot work here"', '"shm cannot work here"'),
        ("src/tensorwire/rpc/call.py", 'way in "tcp verbs".split()', '"tcp verbs"'),
        ("src/tensorwire/misc.py", "", "not one of the modules"),
        ("binding/module.cpp", '#include "link/link.h"', "only tensorwire.h"),
        ("src/tensorwire/tensorflow/plugin/a.cc", '#include "link/link.h"', "only tensorwire.h"),
        ("src/tensorwire/bench/a.cc", '#include "tensorflow/core/a.h"', "only tensorwire.h"),
        ("src/tensorwire/rpc/channel.py", "import tensorwire.bench", "tensorwire.bench"),
        ("src/tensorwire/rpc/channel.py", "from .. import bench", "tensorwire.bench"),
        ("src/tensorwire/rpc/aio/channel.py", "from ...bench import rpc", "tensorwire.bench"),
        ("src/tensorwire/rpc/__init__.py", "from ..cli import main", "tensorwire.cli"),
        ("src/tensorwire/tensors.py", "def f():\n    import tensorwire.rpc", "tensorwire.rpc"),
        ("src/tensorwire/service/__init__.py", "import tensorwire.protobuf", "protobuf"),
        ("src/tensorwire/observe/host.py", "import tensorwire.rpc", "tensorwire.rpc"),
        ("src/tensorwire/rpc/call.py", "from ..observe import metrics", "observe.metrics"),
        ("src/tensorwire/observe/misc.py", "", "not one of the modules"),
        ("src/tensorwire/rpc/call.py", "from .channel import Channel", "circle: call, channel"),
        ("src/tensorwire/rpc/call.py", "from . import aio", "circle: aio, call, channel"),
    ],
)
def test_checker_finds(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    found = violations(write_tree(tmp_path, **{file: text}))
    assert len(found) == 1
    assert file.removeprefix("src/") in found[0] or "circle" in found[0]
    assert complaint in found[0]


def private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.endswith("__")


def private_names(tree: ast.Module) -> Iterator[str]:
    """What a module uses of other projects although its name begins with an underscore."""
    foreign: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if any(map(private, each.name.split("."))))
            foreign |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.partition(".")[0] == "tensorwire":
                continue
            for alias in node.names:
                if any(map(private, (*node.module.split("."), alias.name))):
                    yield f"{node.module}.{alias.name}"
            foreign |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            if isinstance(node.value, ast.Name) and node.value.id in foreign - {"tensorwire"}:
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "setattr"}:
            owner, name = node.args[:2]
            known = isinstance(name, ast.Constant) and private(name.value)
            if known and ast.unparse(owner) != "self":
                yield ast.unparse(node)


@pytest.mark.parametrize("folder", ["observe", "protobuf", "rpc", "service"])
def test_private_names_of_grpc_and_of_python_are_in_one_file(folder: str) -> None:
    used = {
        file.name: found
        for file in sorted((ROOT / "src" / "tensorwire" / folder).rglob("*.py"))
        if (found := list(private_names(ast.parse(file.read_text()))))
    }
    assert set(used) == ({"grpc_internals.py"} if folder == "rpc" else set())


@pytest.mark.parametrize(
    "text",
    [
        "import grpc._channel",
        "from grpc import _channel",
        "from grpc._channel import Channel",
        "import sys\nsys._getframe()",
        "from grpc import _channel as c\nc._State",
        "getattr(server, '_state', None)",
    ],
)
def test_a_private_name_is_found(text: str) -> None:
    assert list(private_names(ast.parse(text)))


STD_LOCK = re.compile(
    r"std::(?:\w*mutex|lock_guard|unique_lock|scoped_lock|condition_variable\w*)\b"
)
LOCK_FILE = "base/mutex.h"
# It guards the making of what is then read without it.
GUARDS_NOTHING = {"process/runtime.cc: g_mutex"}


def test_what_locks_guard_is_annotated() -> None:
    """So that clang checks it; of every lock at least one thing is."""
    core = ROOT / "core"
    unknown, bare, locks = [], set(), 0
    for file in native_files(core):
        here = str(file.relative_to(core))
        if here.startswith(("test/", "fuzz/")) or here == LOCK_FILE:
            continue
        text = COMMENT.sub("", file.read_text())
        unknown += [f"{here}: {match[0]}" for match in STD_LOCK.finditer(text)]
        for name in re.findall(r"\bMutex (\w+);", text):
            locks += 1
            if f"GUARDED_BY({name})" not in text:
                bare.add(f"{here}: {name}")
    assert locks > 30, "the locks have moved: nothing was checked"
    assert unknown == []
    assert bare == GUARDS_NOTHING


STD_MUTEX = re.compile(r"std::(?:\w*_)?mutex\s+(\w+);(.*)")


def loose_locks(text: str) -> list[str]:
    """Of a file outside of the core: locks that do not say what they guard, or are taken by hand
    (by no guard, which lets go of them whatever is thrown)."""
    found = []
    for name, rest in STD_MUTEX.findall(text):
        if "//" not in rest:
            found.append(f"{name} does not say what it guards")
        if re.search(rf"\b{name}(?:\.|->)(?:try_)?(?:un)?lock(?:_shared)?\(", text):
            found.append(f"{name} is taken by hand")
    return found


def test_locks_outside_of_the_core_say_what_they_guard_and_are_held_by_guards() -> None:
    """The core's locks, which clang checks, are no part of `tensorwire.h`."""
    files = [*native_files(ROOT / "binding"), *native_files(ROOT / "src" / "tensorwire")]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    assert sum(len(STD_MUTEX.findall(text)) for text in texts.values()) > 25, "they have moved"
    found = {file: loose for file, text in texts.items() if (loose := loose_locks(text))}
    assert found == {}


def test_a_loose_lock_is_found() -> None:
    assert loose_locks("std::mutex mutex_;  // guards what follows\n") == []
    assert loose_locks("std::mutex mutex_;\n") == ["mutex_ does not say what it guards"]
    assert loose_locks(
        "mutable std::shared_mutex a;  // guards b\nvoid f() { a.lock_shared(); }"
    ) == ["a is taken by hand"]


PLUGIN = ROOT / "src" / "tensorwire" / "tensorflow" / "plugin"
DECODING = re.compile(
    r"\b(?:Parse(?:Partial)?From\w+|(?<!Status )read_head|(?<!string )(?<!bool )decode_\w+)"
    r"\(([^;{]*)"
)
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


def test_decoders_of_messages_are_made_by_an_import() -> None:
    """msgspec looks at a type when something is first decoded as it. Threads that do so at once
    crash (0.22)."""
    packages = ("collective", "graph", "horovod", "queue", "remote", "rpc", "tensors", "weights")
    files = [file for name in packages for file in (ROOT / "src/tensorwire" / name).rglob("*.py")]
    texts = {str(file): file.read_text() for file in files}
    assert sum("Decoder(" in text for text in texts.values()) > 5
    late = re.compile(r"\bdecode\([^)]*\btype=|\n +(?! |kind:).*\bDecoder\(")
    assert [name for name, text in texts.items() if late.search(text)] == []
