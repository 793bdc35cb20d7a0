# SPDX-License-Identifier: Apache-2.0
"""Whatever decodes bytes that a peer chose is fuzzed, from seeds that are checked in, and the table
in CONTRIBUTING.md says by what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core"
PLUGIN = ROOT / "src" / "tensorwire" / "tensorflow" / "plugin"
FOLDERS = (CORE / "fuzz", ROOT / "tests" / "tensorflow" / "plugin" / "fuzz")
CODECS = (
    *CORE.glob("wire/*.h"),
    *CORE.glob("transport/*/wire.h"),
    CORE / "collective" / "wire.h",
    PLUGIN / "wire.h",
)

DECODER = re.compile(r"^\S.*?\b(decode_\w+)\(", re.MULTILINE)
# | name | what it is about | `headers` |
ROW = re.compile(r"^\| `(\w+)` \|[^|]+\|([^|]+)\|$", re.MULTILINE)
LARGEST_SEED = 4096
MOST_SEEDS = 450


class Fuzzer(NamedTuple):
    source: Path
    headers: set[str]

    @property
    def seeds(self) -> list[Path]:
        return sorted((self.source.parent / "seeds" / self.source.stem).iterdir())


def fuzzers() -> dict[str, Fuzzer]:
    """By name, with the headers that the table says they cover."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## Fuzzers")[2].partition("\n## ")[0]
    rows = {name: set(re.findall(r"`([^`]+)`", cell)) for name, cell in ROW.findall(table)}
    sources = {path.stem: path for folder in FOLDERS for path in folder.glob("*.cc")}
    assert rows.keys() == sources.keys()
    return {name: Fuzzer(sources[name], headers) for name, headers in rows.items()}


def decoders(header: str) -> set[str]:
    folder = PLUGIN if header.startswith("plugin/") else CORE
    return set(DECODER.findall((folder / header.removeprefix("plugin/")).read_text()))


def test_every_decoder_is_fuzzed() -> None:
    """By the fuzzer that the table names for its header."""
    table = fuzzers()
    names = {f"plugin/{h.name}" if h.parent == PLUGIN else str(h.relative_to(CORE)) for h in CODECS}
    with_decoders = {name for name in names if decoders(name)}
    assert len(with_decoders) >= 8, "the codecs have moved: nothing was checked"
    assert set().union(*(fuzzer.headers for fuzzer in table.values())) == with_decoders
    missing = {
        f"{header}: {name}"
        for header in with_decoders
        for name in decoders(header)
        if not any(
            re.search(rf"\b{name}\b", fuzzer.source.read_text())
            for fuzzer in table.values()
            if header in fuzzer.headers
        )
    }
    assert missing == set()


def test_every_fuzzer_has_seeds() -> None:
    table = fuzzers()
    assert {name for name, fuzzer in table.items() if not fuzzer.seeds} == set()
    seeds = [seed for fuzzer in table.values() for seed in fuzzer.seeds]
    assert len(seeds) <= MOST_SEEDS
    assert [seed.name for seed in seeds if seed.stat().st_size > LARGEST_SEED] == []
    folders = {path.name for folder in FOLDERS for path in (folder / "seeds").iterdir()}
    assert folders - {"README.md"} == table.keys()
