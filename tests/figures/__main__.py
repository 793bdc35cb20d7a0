# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.figures``: measures the sets of figures that are named, keeps them in
docs/figures, and puts the tables that come from them into their pages."""

from __future__ import annotations

import argparse

from tests.figures import pages
from tests.figures.sets import SETS, file_of, measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--list", action="store_true", help="show the commands of all sets")
    parser.add_argument("--write", action="store_true", help="only write the tables anew")
    options = parser.parse_args()
    if options.list:
        for name, commands in SETS.items():
            known = "" if file_of(name).exists() else " (not measured yet)"
            print(f"{name}{known}", *commands, sep="\n  ")
        return
    if not (options.sets or options.write) or not set(options.sets) <= SETS.keys():
        parser.error(f"name some of {', '.join(SETS)}")
    for name in options.sets:
        measure(name)
    print("\n".join(pages.write()))


if __name__ == "__main__":
    main()
