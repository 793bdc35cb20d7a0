# SPDX-License-Identifier: Apache-2.0
"""``tensorwire graph``: what it prints and writes, and what it says of wrong programs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tensorwire.cli import app
from tensorwire.graph import Plan

ROOT = Path(__file__).resolve().parents[2]

EDGES = """
from tensorwire.graph import Edge, plan
def graph():
    return [
        Edge("weights", "ps:0", "worker:0", (1024, 256), "float32"),
        Edge("bias", "ps:0", "worker:0", (256,), "float32", "traced"),
        Edge("scale", "ps:0", "worker:0", (256,), "float32", "traced"),
        Edge("words", "worker:0", "ps:0", (2,), "string"),
        Edge("rows", "worker:0", "ps:0", (None, 4), "float32", "varies"),
    ]
planned = plan(graph(), depth=5)
nothing = 3
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "step.py"
    path.write_text(EDGES)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        app, ["graph", *(str(each) for each in arguments)], env={"COLUMNS": "200"}
    )


def test_a_table_for_people(program: Path) -> None:
    result = run(program)
    assert result.exit_code == 0, result.output
    text = result.stdout
    for words in ("5 edges (3 placed, 1 described, 1 stock), 1.0 MiB a step", "float32 [?, 4]"):
        assert words in text
    assert "2 small tensors travel in one message" in text
    (row,) = (line for line in text.splitlines() if line.startswith("ps:0") and "64M" in line)
    assert row.split() == ["ps:0", "1.0", "MiB", "0", "B", "64M", "1073741824"]


def test_json_a_picture_and_the_plan(program: Path, tmp_path: Path) -> None:
    result = run(
        program, "--json", "--plot", tmp_path / "graph.svg", "--output", tmp_path / "plan",
        "--depth", "3", "--coalesce", "0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    made = Plan.from_bytes((tmp_path / "plan").read_bytes())
    assert found == json.loads(json.dumps(made.as_json()))
    assert (found["depth"], found["coalesce"], found["coalesced"]) == (3, 0, [])
    assert found["pairs"][0] == {
        "source": "ps:0",
        "target": "worker:0",
        "edges": 3,
        "messages": 3,
        "nbytes": (1 << 20) + 2048,
        "unknown": 0,
    }
    assert found["machines"]["worker:0"]["received"] == (1 << 20) + 2048
    assert "ps:0" in (tmp_path / "graph.svg").read_text()
    assert run(f"{program}:planned", "--json").stdout.count('"depth": 5') == 1


def test_what_a_program_prints_is_not_in_the_json(program: Path) -> None:
    program.write_text(f"print('of the program')\n{program.read_text()}")
    assert run(program).stdout.startswith("of the program\n")
    result = run(program, "--json")
    assert len(json.loads(result.stdout)["edges"]) == 5
    assert result.stderr == "of the program\n"


PRINTS = """
import atexit, os
atexit.register(os.system, "echo of a shell at the end")
atexit.register(print, "at the end")
os.system("echo of a shell")
os.write(1, b"of native code\\n")
"""


def test_nor_is_what_others_print_for_it(program: Path) -> None:
    """Native code, its processes, and what runs when the interpreter ends."""
    program.write_text(PRINTS + program.read_text())
    command = [sys.executable, "-m", "tensorwire", "graph", str(program), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert len(json.loads(done.stdout)["edges"]) == 5
    assert sorted(done.stderr.splitlines()) == [
        *("at the end", "of a shell", "of a shell at the end", "of native code"),
    ]


def test_who_reads_no_json_gets_the_plan(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tensorwire", "graph", str(program), "--json"]
    command += ["--output", str(tmp_path / "plan")]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    assert len(Plan.from_bytes((tmp_path / "plan").read_bytes()).edges) == 5
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "tensorwire: [Errno 28] No space left on device\n"


def test_the_largest_unless_all_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "many.py"
    path.write_text(
        "from tensorwire.graph import Edge\n"
        "graph = [Edge(f'e{n:03}', 'a', 'b', (n,), 'int8') for n in range(60)]\n"
    )
    some, every = run(path).stdout, run(path, "--all").stdout
    assert "The 40 largest of 60: --all shows all." in some
    assert "e019" not in some
    assert "e020" in some
    assert all(f"e{number:03}" in every for number in range(60))


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("step.py:absent", 1, "defines no absent"),
        ("step.py:nothing", 1, "is of type int, which is no graph"),
        ("absent.py", 2, "there is no file"),
        ("other.txt", 2, "neither a Python file nor"),
        (".", 2, "a folder without a saved_model.pb"),
        ("graph.pb:x", 2, "has no names: leave out :x"),
    ],
)
def test_programs_without_a_graph(
    name: str, code: int, said: str, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)
    Path("other.txt").write_text("")
    Path("graph.pb").write_text("")
    result = run(name)
    assert result.exit_code == code, result.output
    assert said in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("graph = []\nimport sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("def graph():\n    raise ValueError('of the program')\n", "ValueError: of the program"),
        ("def (\n", "SyntaxError: invalid syntax"),
    ],
)
def test_a_program_that_fails_is_shown_from_its_own_lines_on(
    tmp_path: Path, text: str, ends: str
) -> None:
    path = tmp_path / "failing.py"
    path.write_text(text)
    result = run(path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"tensorwire graph: {path} failed:\n")
    assert result.stderr.endswith(f"{ends}\n")
    assert "runpy" not in result.stderr
    assert "sources.py" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_program_runs_ends_the_command(
    number: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "told.py"
    path.write_text(f"import signal\nsignal.raise_signal({int(number)})\ngraph = []\n")
    result = run(path)
    assert result.exit_code == 128 + number
    assert result.stderr == f"tensorwire: ended by {number.name}\n"


def test_a_graph_of_tensorflow_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "graph.pb"
    path.write_text("")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    result = run(path)
    assert result.exit_code == 1
    assert "pip install 'tensorwire[tensorflow]'" in result.stderr
    assert "Traceback" not in result.output


def test_names_with_brackets(tmp_path: Path) -> None:
    """They are no markup."""
    path = tmp_path / "step.py"
    path.write_text(
        "from tensorwire.graph import Edge\n"
        "graph = [Edge('layer[i].x', 'out[/i]', 'in[bold]', (1,), 'int8')]\n"
    )
    result = run(path)
    assert result.exit_code == 0, result.output
    assert [result.stdout.count(name) for name in ("layer[i].x", "out[/i]", "in[bold]")] == [
        *(1, 3, 3),
    ]


@pytest.mark.parametrize("machines", ["a", "x=", ","])
def test_machines_that_are_none(machines: str, program: Path) -> None:
    assert run(program, "--machines", machines).exit_code == 2


@pytest.mark.skipif(find_spec("jax") is None, reason="there is no JAX")
def test_a_program_of_jax(tmp_path: Path) -> None:
    path = tmp_path / "step.py"
    path.write_text(
        "import jax\n"
        "def step(x):\n"
        "    with jax.named_scope('encoder/wide'):\n"
        "        x = x * 2\n"
        "    with jax.named_scope('decoder'):\n"
        "        return x.sum()\n"
        "def graph():\n"
        "    return jax.make_jaxpr(step)(jax.numpy.ones((4, 4)))\n"
    )
    found = json.loads(run(path, "--json", "--machines", "encoder=a,decoder=b").stdout)
    assert [(each["source"], each["target"], each["nbytes"]) for each in found["edges"]] == [
        ("a", "b", 64)
    ]
    path.write_text("import jax\ngraph = jax.make_jaxpr(lambda x: x + 1)(1.0)\n")
    result = run(path)
    assert result.exit_code == 1
    assert "no operation of the program has a machine" in result.stderr


@pytest.mark.skipif(find_spec("jax") is None, reason="there is no JAX")
def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "graph.md").read_text()
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    program = page[page.index("<!-- file: step.py -->\n```python\n") :].split("```")[1]
    path = tmp_path / "step.py"
    path.write_text(program.removeprefix("python\n"))
    text = run(path).stdout
    # Numbers of operations are those of one version of JAX, and the digest is of the names.
    numbers, digests = re.compile(r"\.\d+(?=\s)"), re.compile(r", digest \w+")

    def rows(text: str) -> list[list[str]]:
        return [line.split() for line in text.splitlines()][: len(shown.splitlines())]

    assert rows(numbers.sub("", digests.sub("", text))) == rows(
        numbers.sub("", digests.sub("", shown))
    )
    if numbers.findall(text) == numbers.findall(shown):
        assert digests.findall(text) == digests.findall(shown)
