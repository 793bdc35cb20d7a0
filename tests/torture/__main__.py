# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.torture``: the campaign, or parts of it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Final

from tests.torture.campaign import PARTS
from tests.torture.figures import Row, Say, circumstances, table
from tests.torture.processes import LOG

DOCS: Final = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
PLACES: Final = ("campaign", "kills", "groups", "hosts", "weights", "regions")
"""Where the page has tables: of a run of all parts, and of those with kills of ranks, with groups,
with hosts, with weights and with remote memory."""


def chosen(only: list[str]) -> list[str]:
    """Names of parts that hold one of the words, all without any."""
    found = [name for name in PARTS if not only or any(word in name for word in only)]
    if not found:
        raise SystemExit(f"no part's name holds {' or '.join(only)}; they are: {', '.join(PARTS)}")
    return found


def write_docs(rows: list[Row], command: str, seed: int, place: str) -> None:
    between = re.compile(rf"(<!-- last {place} -->\n).*?(<!-- end -->\n)", re.DOTALL)
    text = f"{textwrap.fill(circumstances(command, seed), 100)}\n\n{table(rows)}\n"
    page, count = between.subn(lambda found: found[1] + text + found[2], DOCS.read_text())
    if count != 1:
        raise SystemExit(f"{DOCS} has no place for the table of the last {place}")
    DOCS.write_text(page)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="parts whose name holds this")
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts (default 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument(
        "--write-docs",
        nargs="?",
        const=PLACES[0],
        choices=PLACES,
        help="write that table of docs/reliability.md (default: the campaign's)",
    )
    parser.add_argument("--list", action="store_true", help="list the parts")
    options = parser.parse_args()
    names = chosen(options.only)
    say = Say()
    say.part = "campaign"
    minutes = {name: PARTS[name].minutes * options.scale for name in names}
    if options.list:
        print("\n".join(f"{minutes[name]:6.1f} min  {name}" for name in names))
        return 0
    LOG.unlink(missing_ok=True)
    say(f"{len(names)} parts, about {sum(minutes.values()):.0f} minutes", news=True)
    rows = []
    for i, name in enumerate(names):
        say.part = name
        say(f"part {i + 1} of {len(names)}, about {minutes[name]:.1f} minutes", news=True)
        rows.extend(PARTS[name].run(options.scale, options.seed + i, say))
    print("\n" + table(rows))
    for row in rows:
        for failure in row.failures:
            print(f"FAILED {row.torment}: {failure}")
    if options.json:
        options.json.write_text(json.dumps([row.as_json() for row in rows], indent=1) + "\n")
    if options.write_docs:
        command = shlex.join(["python", "-m", "tests.torture", *sys.argv[1:]])
        write_docs(rows, command, options.seed, options.write_docs)
    failed = sum(row.failed for row in rows)
    print(f"{len(rows)} torments, {failed} failures; what processes said is in {LOG}")
    return 1 if failed else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # nothing that was loaded for the children needs to be put in order
