# SPDX-License-Identifier: Apache-2.0
"""The sets of figures that pages quote: the commands that make each, and the file it is kept in."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tensorwire.bench.harness.rows import Report

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "figures"

_TRAIN: Final = (
    "TF_RDMA_BUF_SIZE=4294967296 tensorwire train --compare --model {} --batch_size {} "
    "--num_batches 20 --rounds 1{}"
)
_TCP: Final = " --transport tcp"
TRAINED: Final = (
    ("alexnet", 2, True),
    ("vgg16", 1, True),
    ("fcn5", 32, False),
    ("fcn5", 1, False),
    ("resnet50", 8, True),
    ("inception3", 4, True),
)
"""Model, batch size, and whether TCP alone is measured, too."""

SETS: Final[dict[str, list[str]]] = {
    "rpc": ["tensorwire bench rpc --peers zmq,flight,nixl,mpi --seconds 0.15"],
    "sizes": [
        "tensorwire bench rpc --sizes 0,8,512,4K,16K,64K,256K,1M,4M,16M,64M,256M,1G "
        "--cases request --origin ordinary --reads no --no-limits"
    ],
    "bytes": [
        "tensorwire bench rpc --payload bytes,protobuf --sizes 1M,64M --cases request,pull "
        "--reads no --no-limits"
    ],
    "protobuf": [
        "tensorwire bench rpc --payload protobuf,protobuf-codec --sizes 8,1M,64M "
        "--cases request,pull --reads yes --rounds 3 --seconds 0.1"
    ],
    "tensorflow": ["tensorwire bench tensorflow --sizes 4,1M,16M,64M,256M"],
    "training": [
        _TRAIN.format(model, batch, way)
        for model, batch, tcp in TRAINED
        for way in ("", *([_TCP] if tcp else []))
    ],
}


def file_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def load(name: str) -> list[Report]:
    """What the commands of the set wrote, in their order.

    Raises ValueError where the file is of other commands, or of another schema.
    """
    found = json.loads(file_of(name).read_text())
    if [each["command"] for each in found] != SETS[name]:
        raise ValueError(f"{file_of(name).name} is not of the commands of the set: make it again")
    return [Report.from_json(each["report"]) for each in found]


def measure(name: str) -> None:
    """Runs the commands of the set, one after the other, and writes the file.

    Raises SystemExit with the code of a command that failed; the file stays as it was then.
    """
    found = []
    for command in SETS[name]:
        print(f"== {command}", flush=True)
        found.append({"command": command, "report": _report(command)})
    FOLDER.mkdir(exist_ok=True)
    file_of(name).write_text(json.dumps(found, indent=1) + "\n")


def _report(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    first = words.index("tensorwire")
    environment = dict(word.split("=", 1) for word in words[:first])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        done = subprocess.run(
            [sys.executable, "-m", *words[first:], "--output", str(output)],
            env={**os.environ, **environment},
            check=False,
        )
        if done.returncode:
            print(f"== it ended with code {done.returncode}: {command}", file=sys.stderr)
            raise SystemExit(done.returncode)
        report: dict[str, Any] = json.loads(output.read_text())
    return report
