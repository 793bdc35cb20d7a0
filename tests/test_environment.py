# SPDX-License-Identifier: Apache-2.0
"""Settings that are misspelt."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorwire
from tensorwire import _core, environment
from tensorwire.observe import doctor
from tensorwire.rpc.choice import policy

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> None:
    environment.tell_unknown.cache_clear()
    environment._check_once.cache_clear()


READ = re.compile(r'"((?:TENSORWIRE|TF_RDMA)_[A-Z0-9_]+)"')


def test_every_setting_is_declared() -> None:
    """Whoever reads one has it from the declaration, or reads one that is declared."""
    package = ROOT / "src" / "tensorwire"
    sources = [*package.rglob("*.py"), *package.rglob("*.cc"), *(ROOT / "core").rglob("*.cc")]
    read = {
        name
        for source in sources
        if "test" not in source.relative_to(ROOT).parts
        for name in READ.findall(source.read_text())
    }
    # TensorFlow has a name like one; the others go from one of our processes to the next.
    assert read - environment.names() == {
        "TENSORWIRE_REJOIN",
        "TENSORWIRE_RUN",
        "TENSORWIRE_SERVER",
        "TENSORWIRE_SOCKETS",
        "TENSORWIRE_STORE",
    }


NAMED = re.compile(r'^(\w+)(?:: \w+)? = "((?:TENSORWIRE|TF_RDMA)_\w+)"', re.MULTILINE)


def raw_reads(source: str, named: dict[str, str]) -> Iterator[str]:
    """The variables that a file reads from the environment itself. named: by names of the package
    that are given a text."""
    if "environ" not in source and "getenv" not in source:
        return
    own = named | dict(NAMED.findall(source))
    for node in ast.walk(ast.parse(source)):
        key: ast.AST | None = None
        if isinstance(node, ast.Call) and node.args:
            if ast.unparse(node.func) in {"os.environ.get", "os.getenv", "environ.get", "getenv"}:
                key = node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if ast.unparse(node.value) in {"os.environ", "environ"}:
                key = node.slice
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
            key = node.left
        if isinstance(key, ast.Constant):
            yield str(key.value)
        elif isinstance(key, ast.Name | ast.Attribute):
            yield own.get(key.id if isinstance(key, ast.Name) else key.attr, "")


def test_a_setting_has_one_parser() -> None:
    package = ROOT / "src" / "tensorwire"
    files = {
        file.relative_to(package).as_posix(): file.read_text() for file in package.rglob("*.py")
    }
    named = {name: text for source in files.values() for name, text in NAMED.findall(source)}
    found = {
        name: settings
        for name, source in files.items()
        if (settings := {*raw_reads(source, named)} & environment.names())
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        'os.environ.get("TENSORWIRE_FORBID", "")',
        'os.getenv("TENSORWIRE_FORBID")',
        'os.environ["TENSORWIRE_FORBID"]',
        '"TENSORWIRE_FORBID" in os.environ',
        'NAME = "TENSORWIRE_FORBID"\nos.environ.get(NAME)',
        "os.environ.get(settings.FORBID)",
    ],
)
def test_that_a_file_parses_a_setting_itself_is_found(source: str) -> None:
    assert [*raw_reads(source, {"FORBID": "TENSORWIRE_FORBID"})] == ["TENSORWIRE_FORBID"]


def plain(cell: str) -> str:
    """Without what makes it look well."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).replace("`", "")


def test_the_page_of_settings_is_what_is_declared() -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "docs" / "settings.md").read_text().splitlines()
        if re.match(r"\| `(TENSORWIRE|TF_RDMA)_", line)
    ]
    assert all(len(row) == 5 and re.search(r"\]\([a-z-]+\.md", row[4]) for row in rows)
    page = {plain(row[0]): tuple(map(plain, row[1:4])) for row in rows}
    assert len(page) == len(rows)
    declared = _core.each_setting()
    assert sorted(page) == sorted(setting["variable"] for setting in declared)
    for setting in declared:
        default, permitted, help_text = page[setting["variable"]]
        assert permitted == setting["permitted"], setting["variable"]
        if setting["alias_of"] is None:
            assert (default, help_text) == (setting["default"], setting["help"])
        else:
            assert default == f"as {setting['alias_of']}"
            assert help_text.startswith("the same")


def test_the_settings_in_force_are_what_is_declared() -> None:
    names = [s["name"] for s in _core.each_setting() if s["name"] and not s["alias_of"]]
    assert sorted(_core.settings()) == sorted(names)


# Refuses a value that no setting takes, each in turn, and then tells what is in force.
LOOK = """
import json, os, sys
from tensorwire import _core
for name in sys.argv[1:]:
    os.environ[name] = "?!"
    try:
        _core.settings()
    except _core.StatusError as error:
        print(json.dumps([name, error.args[1]]))
    del os.environ[name]
print(json.dumps(["", _core.settings()]))
"""


def test_defaults_and_refusals_are_those_that_are_declared() -> None:
    declared = {
        setting["variable"]: setting
        for setting in _core.each_setting()
        if re.match("[0-9]+[KMGT]? to ", setting["permitted"])
    }
    process = subprocess.run(
        [sys.executable, "-c", LOOK, *declared],
        env={k: v for k, v in os.environ.items() if k not in environment.names()},
        stdout=subprocess.PIPE,
        check=True,
    )
    *refused, (_, settings) = map(json.loads, process.stdout.splitlines())
    refusals = dict(refused)
    units = {"": 0, "K": 10, "M": 20, "G": 30}
    for variable, setting in declared.items():
        assert refusals[variable].endswith(f" from {setting['permitted']}")
        number = re.fullmatch("([0-9]+)([KMG]?)", setting["default"])
        if number is not None:
            assert settings[setting["name"]] == int(number[1]) << units[number[2]], variable


def test_the_nearest_name() -> None:
    found = ["TENSORWIRE_TRANSPROT", "TF_RDMA_BUFSIZE", "TENSORWIRE_NOTHING_LIKE_IT", "PATH"]
    assert environment.unknown([*found, *environment.names()]) == {
        "TENSORWIRE_NOTHING_LIKE_IT": "",
        "TENSORWIRE_TRANSPROT": "TENSORWIRE_TRANSPORT",
        "TF_RDMA_BUFSIZE": "TF_RDMA_BUF_SIZE",
    }


def test_one_warning_in_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENSORWIRE_CHUNK_BYTE", "1M")
    with caplog.at_level(logging.WARNING, "tensorwire"):
        environment.tell_unknown()
        environment.tell_unknown()
    assert caplog.messages == [
        "TENSORWIRE_CHUNK_BYTE in the environment is no setting and has no effect; "
        "did you mean TENSORWIRE_CHUNK_BYTES?"
    ]


def test_doctor_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_CHUNK_BYTE", "1M")
    (finding,) = (f for f in doctor.examine_host()[0] if f.subject == "environment")
    assert (finding.value, finding.verdict) == ("TENSORWIRE_CHUNK_BYTE", "warn")
    assert "TENSORWIRE_CHUNK_BYTES" in finding.mend


# Of a process that has no runtime yet, whose settings would be those in force.
REFUSED = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import tensorwire
os.environ.update(setting.split("=") for setting in sys.argv[1:])
for do in (
    lambda: tensorwire.insecure_channel("127.0.0.1:1"),
    lambda: tensorwire.server(ThreadPoolExecutor(1)),
):
    try:
        do()
    except tensorwire.SettingError as error:
        assert sys.argv[1].partition("=")[0] in str(error) and isinstance(error, ValueError)
    else:
        raise AssertionError("nothing was raised")
"""


@pytest.mark.parametrize(
    "settings",
    [
        ["TENSORWIRE_EAGER_BYTES=x"],
        ["TENSORWIRE_TRANSPORT=pigeon"],
        ["TENSORWIRE_FORBID=?"],
        ["TENSORWIRE_FORBID=shm,verbs,tcp,grpc"],
        ["TENSORWIRE_FORBID=tcp", "TENSORWIRE_TRANSPORT=tcp"],
        ["TENSORWIRE_DATA_HOSTS=10.0.0.0/33"],
    ],
    ids=lambda settings: " ".join(settings),
)
def test_a_wrong_value_is_refused_before_anything_starts(settings: list[str]) -> None:
    subprocess.run([sys.executable, "-c", REFUSED, *settings], check=True)


def test_a_setting_that_contradicts_an_argument_is_a_wrong_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENSORWIRE_FORBID", "tcp")
    with pytest.raises(environment.SettingError, match="transport='tcp' and TENSORWIRE_FORBID=tcp"):
        policy("tcp", ())
    monkeypatch.setenv("TENSORWIRE_TRANSPORT", "tcp")
    with pytest.raises(environment.SettingError, match="TENSORWIRE_TRANSPORT=tcp and forbid="):
        policy(None, ["tcp"])
    with pytest.raises(ValueError, match="leave no transport") as caught:
        policy("tcp", ["tcp"])
    assert not isinstance(caught.value, environment.SettingError)


@pytest.mark.parametrize(
    "entry",
    ["*", "node7", "node-7.cluster.local.", "7th", "10.0.0.7", "10.0.0.0/8", "fe80::1", "::/0"],
)
def test_hosts_and_networks(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_DATA_HOSTS", f"{entry}, other")
    assert [str(found).partition("/")[0] for found in environment.data_hosts()] == [
        entry.partition("/")[0],
        "other",
    ]


@pytest.mark.parametrize(
    "entry",
    [
        "10.0.0.0/33",
        "10.0.0.256",
        "10.0.0",
        "7",
        "node7:4000",
        "[::1]",
        "node7/8",
        "http://a",
        "*.a",
    ],
)
def test_what_is_neither_host_nor_network(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_DATA_HOSTS", f"node7,{entry}")
    with pytest.raises(environment.SettingError, match=r"10\.0\.0\.0/8,node7") as caught:
        environment.check()
    assert f"='node7,{entry}' is not permitted for {entry!r}: set hosts" in str(caught.value)
    with pytest.raises(_core.StatusError):
        _core.read_setting(environment.DATA_HOSTS)


def test_a_setting_may_be_as_long_as_the_kernel_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [f"node{i}" for i in range(2000)]
    monkeypatch.setenv(environment.DATA_HOSTS, ",".join(hosts))
    assert [*environment.data_hosts()] == hosts


def test_a_wrong_value_ends_an_array_with_its_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import tensorwire; tensorwire.empty(3)"],
        env={**os.environ, "TENSORWIRE_EAGER_BYTES": "x"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "SettingError: TENSORWIRE_EAGER_BYTES='x'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("setting", "arguments", "says"),
    [
        ("TENSORWIRE_EAGER_BYTES=x", [], "unset TENSORWIRE_EAGER_BYTES"),
        ("TENSORWIRE_DATA_HOSTS=a/8", [], "unset TENSORWIRE_DATA_HOSTS"),
        ("TENSORWIRE_EAGER_BYTES=x", ["h:1"], "h:1: no answer: not called: TENSORWIRE_EAGER_BYTES"),
        (
            "TENSORWIRE_FORBID=shm",
            ["h:1", "--transport", "shm"],
            "not called: transport='shm' and TENSORWIRE_FORBID=shm leave no transport",
        ),
        ("TENSORWIRE_FORBID=shm,verbs,tcp,grpc", ["h:1"], "not called: TENSORWIRE_FORBID="),
    ],
)
def test_a_wrong_value_ends_no_command_with_a_traceback(
    setting: str, arguments: list[str], says: str
) -> None:
    program = (
        "from tensorwire.cli import main; from tensorwire.observe import audit\n"
        "audit.follow()\nmain()"
    )
    name, _, value = setting.partition("=")
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", *arguments],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == ""
    said = " ".join(done.stdout.split())  # lines are folded to the width of what shows them
    assert says in said
    assert f"tensorwire {tensorwire.__version__}" in said
