# SPDX-License-Identifier: Apache-2.0
"""Settings that are misspelt."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorwire import doctor, environment

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> None:
    environment.tell_unknown.cache_clear()
    environment.check.cache_clear()


def test_every_setting_is_known() -> None:
    sources = [
        *(ROOT / "core" / "base").glob("settings.cc"),
        *(ROOT / "src" / "tensorwire").rglob("*.py"),
        *(ROOT / "src" / "tensorwire" / "tensorflow" / "plugin").glob("settings.cc"),
    ]
    read = {
        name
        for source in sources
        for name in re.findall(r'"((?:TENSORWIRE|TF_RDMA)_[A-Z0-9_]+)"', source.read_text())
    }
    composed = {name for name in environment.NAMES if name not in read}
    assert read - environment.NAMES == {"TENSORWIRE_RUN"}
    assert all("VERBS" in name for name in composed)


def documented() -> dict[str, tuple[str, str]]:
    """Of each setting on the page the default and what is permitted."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "docs" / "settings.md").read_text().splitlines()
        if re.match(r"\| `(TENSORWIRE|TF_RDMA)_", line)
    ]
    assert all(len(row) == 5 and re.search(r"\]\([a-z-]+\.md", row[4]) for row in rows)
    names = [row[0].strip("`") for row in rows]
    assert sorted(names) == sorted(environment.NAMES)
    return {name: (row[1].strip("`"), row[2]) for name, row in zip(names, rows, strict=True)}


# Refuses a value that no setting takes, each in turn, and then tells the defaults.
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


def test_the_page_of_settings_has_their_defaults_and_ranges() -> None:
    page = documented()
    ranges = {name: r[1] for name, r in page.items() if re.match(r"[0-9]+[KMGT]? to ", r[1])}
    process = subprocess.run(
        [sys.executable, "-c", LOOK, *sorted(ranges)],
        env={k: v for k, v in os.environ.items() if k not in environment.NAMES},
        stdout=subprocess.PIPE,
        check=True,
    )
    *refused, (_, settings) = map(json.loads, process.stdout.splitlines())
    refusals = dict(refused)
    for name, permitted in ranges.items():
        assert refusals[name].endswith(f" from {permitted}"), refusals.get(name)
    units = {"": 0, "K": 10, "M": 20, "G": 30}
    checked = set()
    for name, (default, _) in page.items():
        key = name.removeprefix("TENSORWIRE_").lower()
        number = re.fullmatch("([0-9]+)([KMG]?)", default)
        if number is not None:
            expected = int(number[1]) << units[number[2]]
            assert settings["trace_events" if key == "trace" else key] == expected, name
            checked.add(key)
    others = {"buffer_bytes", "pool_bytes", "runtime_dir", "tcp_congestion", "trace_events"}
    assert settings.keys() - checked == others | {
        f"verbs_{name}" for name in ("device", "gid_index", "mtu")
    }


def test_the_nearest_name() -> None:
    found = ["TENSORWIRE_TRANSPROT", "TF_RDMA_BUFSIZE", "TENSORWIRE_NOTHING_LIKE_IT", "PATH"]
    assert environment.unknown([*found, *environment.NAMES]) == {
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
os.environ[sys.argv[1]] = sys.argv[2]
for do in (
    lambda: tensorwire.insecure_channel("127.0.0.1:1"),
    lambda: tensorwire.server(ThreadPoolExecutor(1)),
):
    try:
        do()
    except tensorwire.SettingError as error:
        assert sys.argv[1] in str(error) and isinstance(error, ValueError)
    else:
        raise AssertionError("nothing was raised")
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TENSORWIRE_EAGER_BYTES", "x"),
        ("TENSORWIRE_TRANSPORT", "pigeon"),
        ("TENSORWIRE_FORBID", "?"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_starts(name: str, value: str) -> None:
    subprocess.run([sys.executable, "-c", REFUSED, name, value], check=True)


def test_a_wrong_value_ends_no_command_with_a_traceback() -> None:
    programs = {
        "import tensorwire; tensorwire.empty(3)": "SettingError: TENSORWIRE_EAGER_BYTES='x'",
        "from tensorwire import audit, cli; audit.follow(); cli.app(['doctor'])": "",
    }
    for program, last in programs.items():
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "TENSORWIRE_EAGER_BYTES": "x"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert "thread" not in done.stderr
        if last:
            assert done.stderr.splitlines()[-1].partition("SettingError")[2].startswith(": TENSOR")
        else:
            assert "Traceback" not in done.stderr
            assert "unset TENSORWIRE_EAGER_BYTES" in done.stdout
