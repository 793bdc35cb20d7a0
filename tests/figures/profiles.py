# SPDX-License-Identifier: Apache-2.0
"""The recording of messages that docs/profile.md tells of: the command that makes it, the file that
it is kept in, and its tables. It holds sizes, and no times: a busy host does not matter."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from tests.figures import sets
from tests.figures.rows import table, wrapped

from tensorwire.bench.harness.environment import commit, versions

NAME: Final = "profile"
COMMAND: Final = (
    "tensorwire train --local ps=1,worker=2 --server_protocol grpc --model resnet50 "
    "--batch_size 2 --num_batches 5"
)
"""The program whose messages are recorded."""
PICTURE: Final = sets.ROOT / "docs" / "images" / "profile-grpc.png"
FEWEST: Final = 5
"""Buffers of a size among the recorded messages that make a line in the picture."""
WITHIN: Final = 0.15
"""How far a line may be from the paper's band, as a part of that."""


class Band(NamedTuple):
    """Of sizes, in bytes: where the paper has it, and where its buffers are looked for here."""

    paper: str
    least: int
    most: int
    here: range | tuple[int, ...]
    about: str
    framed: bool = False
    """Whether framing, which is another today, was so much of it that it lies elsewhere now."""


BANDS: Final = (
    Band("64 B", 64, 64, range(30, 80), "scalars, with what is ahead of them", framed=True),
    Band("180 to 200 B", 180, 200, range(110, 250), "requests for tensors, with their names"),
    Band(
        *("350 B", 350, 350, range(250, 450), "tensors of 64 channels, and what is ahead"),
        framed=True,
    ),
    Band("600 B", 600, 600, range(450, 700), "of 128 channels, and what is ahead"),
    Band("1.1 to 1.2 KB", 1100, 1200, (1024, 1048), "of 256 channels, and what is ahead"),
    Band("2.1 to 2.3 KB", 2100, 2300, (2048,), "of 512 channels"),
    Band("4.5 KB", 4500, 4500, (4096,), "of 1,024 channels"),
    Band("8.5 to 9 KB", 8500, 9000, (8192,), "of 2,048 channels"),
    Band("64 KB", 64_000, 65_536, (65_536,), "weights of convolutions: 1x1x64x256"),
    Band("150 KB", 150_000, 150_000, (147_456,), "3x3x64x64"),
    Band("260 to 310 KB", 260_000, 310_000, (262_144,), "1x1x128x512"),
    Band(
        *("400 to 600 KB", 400_000, 600_000),
        *((524_288, 589_824), "1x1x256x512; 3x3x128x128"),
    ),
    Band("1.0 to 1.2 MB", 1_000_000, 1_200_000, (1_048_576,), "1x1x256x1024"),
    Band(
        *("1.5 to 2.7 MB", 1_500_000, 2_700_000),
        *((2_097_152, 2_359_296), "1x1x512x1024; 3x3x256x256"),
    ),
    Band(
        *("a line at 4 MB", 4_000_000, 4_194_304),
        *((4_194_304,), "1x1x512x2048, and pieces of larger ones"),
    ),
)
"""Of figure 2 of AR-gRPC, with ResNet-50 over gRPC, and what their buffers are."""


def file() -> Path:
    return sets.FOLDER / f"{NAME}.json"


def load() -> dict[str, Any]:
    """What was recorded: ``command``, ``commit``, ``versions``, and ``profile`` as ``tensorwire
    profile`` wrote it, but with the sizes alone of each message of the trace."""
    found: dict[str, Any] = json.loads(file().read_text())
    return found


def record() -> None:
    """Runs the program, and keeps its profile and the picture.

    Raises SystemExit with its code where it failed.
    """
    print(f"== tensorwire profile -- {COMMAND}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "profile.json"
        saved = ["--plot", str(PICTURE), "--output", str(output)]
        tensorwire = [sys.executable, "-m", "tensorwire"]
        program = [*tensorwire, *shlex.split(COMMAND)[1:]]
        done = subprocess.run([*tensorwire, "profile", *saved, "--", *program], check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        profile = json.loads(output.read_text())
    profile["trace"] = [message["buffers"] for message in profile["trace"]]
    made = {
        "command": f"tensorwire profile -- {COMMAND}",
        "commit": commit(),
        "versions": versions(("grpcio", "tensorflow", "tensorflow-cpu")),
        "profile": profile,
    }
    sets.FOLDER.mkdir(parents=True, exist_ok=True)
    file().write_text(json.dumps(made) + "\n")


class Line(NamedTuple):
    """What of a band was recorded: its buffers among the first messages, their sizes in order."""

    band: Band
    sizes: list[int]

    @property
    def ends(self) -> tuple[int, int]:
        """Between which nine of ten are."""
        last = len(self.sizes) - 1
        return self.sizes[round(last * 0.05)], self.sizes[round(last * 0.95)]

    @property
    def off(self) -> float:
        """How far the one in the middle is outside the paper's band, as a part of its nearer end;
        negative where it is smaller."""
        middle = median(self.sizes)
        nearer = min(max(middle, self.band.least), self.band.most)
        return middle / nearer - 1


def lines() -> Iterator[Line]:
    recorded = [size for message in load()["profile"]["trace"] for size in message]
    for band in BANDS:
        yield Line(band, sorted(size for size in recorded if size in band.here))


def _sizes(line: Line) -> str:
    if isinstance(line.band.here, tuple):
        return "; ".join(f"{size:,}" for size in sorted({*line.sizes}))
    return " to ".join(f"{size:,}" for size in dict.fromkeys(line.ends))


def _off(line: Line) -> str:
    return f"{line.off:+.0%}" if abs(line.off) >= 0.005 else "in it"


def _made_from() -> str:
    told = ", ".join(f"{name} {number}" for name, number in load()["versions"].items())
    return wrapped(f"Made from [{NAME}.json](benchmarks/{NAME}.json): {told}.")


def bands() -> str:
    """Each band of the paper, and where it is today."""
    head = ["AR-gRPC", "here, bytes", "buffers", "outside the paper's band by", "what it is"]
    found = [
        [line.band.paper, _sizes(line), f"{len(line.sizes):,}", _off(line), line.band.about]
        for line in lines()
        if line.sizes
    ]
    outside = [line for line in lines() if line.sizes and abs(line.off) > WITHIN]
    near = f"All others are within {WITHIN:.0%} of the paper's."
    told = (
        f"Outside the paper's by more than {WITHIN:.0%}: "
        f"{', '.join(f'{line.band.paper} ({line.off:+.0%})' for line in outside)}. {near}"
        if outside
        else f"All are within {WITHIN:.0%} of the paper's."
    )
    return f"{table(head, found)}\n\n{wrapped(told)}\n\n{_made_from()}"


def classes() -> str:
    """Buffers and bytes of each class, and what the kernel took."""
    profile = load()["profile"]
    total = profile["bytes"]
    taken = sum(each["bytes"] for each in profile["grpc"]["connections"])
    count = sum(each["buffers"] for each in profile["classes"])
    same = "as many" if taken == total else f"{taken:,}"
    told = f"{total:,} bytes in {count:,} buffers, and the kernel took {same}."
    found = [
        [
            each["class"],
            f"{each['buffers']:,}",
            f"{each['bytes']:,}",
            f"{each['bytes'] / total:.1%}",
        ]
        for each in profile["classes"]
        if each["transport"] == "grpc"
    ]
    return f"{wrapped(told)}\n\n{table(['buffers', 'count', 'bytes', 'of all bytes'], found)}"


def largest() -> str:
    """How many tensors went as one buffer that is larger than the first cap."""
    histogram = load()["profile"]["histogram"]
    whole = sum(each["buffers"] for each in histogram if each["from"] >= 8 << 20)
    return wrapped(
        f"Of the 240 tensors from 8 MiB on, {whole} went as one buffer here. How many do, depends "
        "on the run."
    )
