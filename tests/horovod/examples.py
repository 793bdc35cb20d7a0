# SPDX-License-Identifier: Apache-2.0
"""Horovod's public examples, as they are but for the lines that import Horovod, with two ranks.

    python -m tests.horovod.examples [NAME...]

Tables of docs/horovod-examples.md tell which programs run, with which arguments and environment,
and which do not, and why. A program that no row names, a row that names none, a reason that holds
no longer, and a program that fails all fail the run. Names: parts of names of programs; only these
are run.

The programs come from Horovod's repository, or from another copy of it that the variable
HOROVOD_REPOSITORY names, at one commit, whose hash git checks.
"""

from __future__ import annotations

import os
import pkgutil
import re
import shlex
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "horovod-examples.md"
FOLDER: Final = ROOT / "build" / "horovod-examples"
REPOSITORY: Final = "https://github.com/horovod/horovod"
RELEASE: Final = "v0.28.1"
COMMIT: Final = "1d217b59949986d025f6db93c49943fb6b6cc78f"
"""Of that release."""
RANKS: Final = 2
LIMIT_SECONDS: Final = 1200.0
"""Of a program."""
IMPORTS: Final = (
    (r"^( *)import horovod$", r"\1import tensorwire.horovod as horovod"),
    (r"^( *)(import|from) horovod\.tensorflow\.keras\b", r"\1\2 tensorwire.horovod.keras"),
    (r"^( *)(import|from) horovod\.", r"\1\2 tensorwire.horovod."),
)
"""What is changed, line by line."""

_LINK: Final = "120000"
_RUN: Final = re.compile(
    r"^\| `(?P<name>[\w/]+\.py)` "
    r"\| (?:`(?P<arguments>[^`]*)` )?\| (?:`(?P<variables>[^`]*)` )?\|$",
    re.M,
)
_OTHER: Final = re.compile(
    r"^\| (?P<reason>[^|`]+) \| `(?P<needs>[^`]+)` \| (?P<count>\d+) \| (?P<patterns>`[^|]+) \|$",
    re.M,
)


@dataclass(frozen=True)
class Runs:
    """A row of the programs that run."""

    name: str
    arguments: Sequence[str]
    variables: dict[str, str]


@dataclass(frozen=True)
class Other:
    """A row of programs that do not. needs: what all of them name and is not to be had; in a text
    without dots, it is known not to be."""

    reason: str
    needs: str
    count: int
    patterns: Sequence[str]


def rows(page: str) -> tuple[list[Runs], list[Other]]:
    runs = [
        Runs(
            row["name"],
            shlex.split(row["arguments"] or ""),
            dict(each.split("=", 1) for each in shlex.split(row["variables"] or "")),
        )
        for row in _RUN.finditer(page)
    ]
    others = [
        Other(
            row["reason"],
            row["needs"],
            int(row["count"]),
            re.findall(r"`([^`]+)`", row["patterns"]),
        )
        for row in _OTHER.finditer(page)
    ]
    return runs, others


def changed(program: str) -> str:
    """A program that imports Tensorwire."""
    for pattern, replacement in IMPORTS:
        program = re.sub(pattern, replacement, program, flags=re.M)
    return program


def fetched() -> dict[str, str]:
    """Each program, by its name below ``examples``. Raises subprocess.CalledProcessError where the
    commit cannot be had."""
    copy = FOLDER / "repository"
    git = ["git", "-C", str(copy)]
    if not copy.exists():
        subprocess.run(["git", "init", "-q", "--bare", str(copy)], check=True)
    there = [*git, "cat-file", "-e", f"{COMMIT}^{{tree}}"]
    if subprocess.run(there, stderr=subprocess.DEVNULL).returncode:
        source = os.environ.get("HOROVOD_REPOSITORY", REPOSITORY)
        subprocess.run([*git, "fetch", "-q", "--depth", "1", source, COMMIT], check=True)

    def told(*words: str) -> str:
        return subprocess.run([*git, *words], stdout=subprocess.PIPE, check=True, text=True).stdout

    listed = [line.split() for line in told("ls-tree", "-r", COMMIT, "examples/").splitlines()]
    return {
        path.removeprefix("examples/"): told("cat-file", "blob", blob)
        for mode, _, blob, path in listed
        if path.endswith(".py") and mode != _LINK
    }


def mistakes(programs: dict[str, str], runs: Sequence[Runs], others: Sequence[Other]) -> list[str]:
    """What is wrong with the page."""
    wrong = [f"{row.name} is not there" for row in runs if row.name not in programs]
    left = set(programs) - {row.name for row in runs}
    for row in others:
        found: set[str] = set()
        for pattern in row.patterns:
            matched = {name for name in left if fnmatchcase(name, pattern)}
            if not matched - found:
                wrong.append(f"{pattern} is the name of no program that is left")
            found |= matched
        if len(found) != row.count:
            wrong.append(f"{row.reason}: {len(found)} programs, and the page says {row.count}")
        wrong += [
            f"{name} does not need {row.needs}"
            for name in sorted(found)
            if row.needs not in changed(programs[name])
        ]
        if "." in row.needs and is_there(row.needs):
            wrong.append(f"{row.needs} is there, and the page says that it is not")
        left -= found
    return [*wrong, *(f"{name} is not on the page" for name in sorted(left))]


def is_there(name: str) -> bool:
    """Whether a module or what is in one can be had."""
    try:
        pkgutil.resolve_name(re.sub(r"^tf\.", "tensorflow.", name))
    except (ImportError, AttributeError):
        return False
    return True


def run(row: Runs, program: str, folder: Path) -> str:
    """Runs it, and returns why it failed, or nothing. folder: where it runs, and its output is."""
    path = FOLDER / "programs" / row.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(changed(program))
    (folder / "home").mkdir(parents=True)
    write_digits(folder / "data" / "MNIST" / "raw")
    write_images(folder / "images")
    rank = [sys.executable, str(Path(__file__).with_name("example.py")), str(RANKS)]
    command = [sys.executable, "-m", "tensorwire", "run", "--launch", f"worker={RANKS}", "--"]
    own = {
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        "CUDA_VISIBLE_DEVICES": "",
    }
    with (folder / "output").open("w") as output:
        try:
            done = subprocess.run(
                [*command, *rank, str(path), *row.arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, **row.variables},
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"it has not ended within {LIMIT_SECONDS:.0f} s"
    text = (folder / "output").read_text(errors="replace")
    ended = text.count(f" of {RANKS} is done\n")
    if done.returncode or ended != RANKS:
        last = "\n".join(text.splitlines()[-15:])
        where = folder / "output"
        return f"code {done.returncode}, {ended} ranks were done; {where} ends with\n{last}"
    return ""


def write_digits(folder: Path) -> None:
    """The files of MNIST in its own format, with few images of noise."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    for name, count in (("train", 2048), ("t10k", 256)):
        images = random.integers(0, 256, (count, 28, 28), np.uint8)
        labels = random.integers(0, 10, count, np.uint8)
        head = struct.pack(">4I", 0x803, *images.shape)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">2I", 0x801, count)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def write_images(folder: Path) -> None:
    """Pictures of noise in a folder for each of two classes."""
    random = np.random.default_rng(1)
    for name in ("first", "second"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(0, 256, (64, 64, 3), np.uint8)
            text = b"P6 64 64 255\n" + pixels.tobytes()
            (folder / name / f"{number}.ppm").write_bytes(text)


def failures(programs: dict[str, str], runs: Sequence[Runs]) -> Iterator[str]:
    place = FOLDER / "runs"
    shutil.rmtree(place, ignore_errors=True)
    for number, row in enumerate(runs):
        words = shlex.join([*(f"{k}={v}" for k, v in row.variables.items()), row.name])
        print(f"{words} {shlex.join(row.arguments)}".strip(), end=" ... ", flush=True)
        began = time.monotonic()
        why = run(row, programs[row.name], place / str(number))
        print("failed" if why else "ran", f"in {time.monotonic() - began:.0f} s", flush=True)
        if why:
            yield f"{row.name}: {why}"


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    runs, others = rows(PAGE.read_text())
    programs = fetched()
    wrong = mistakes(programs, runs, others)
    names = sys.argv[1:] or [""]
    chosen = [
        row for row in runs if row.name in programs and any(name in row.name for name in names)
    ]
    wrong += failures(programs, chosen)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(chosen)} runs, {len(wrong)} failed or are wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
