# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.figures``: measures the sets of figures that are named, or all, keeps them in
docs/benchmarks, and makes the pages there and the tables of other pages anew."""

from __future__ import annotations

import argparse

from tests.figures import pages, profiles, records
from tests.figures.sets import SETS, measure, outdated


def main() -> None:
    known = [*SETS, profiles.NAME]
    parser = argparse.ArgumentParser(
        prog="make benchmarks",
        description=__doc__,
        epilog='Examples: make benchmarks, make benchmarks ARGS="rpc bytes", '
        "make benchmarks ARGS=--headline",
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(known))
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--headline", action="store_true", help="measure what matters most")
    only.add_argument("--list", action="store_true", help="show the commands of all sets")
    only.add_argument("--pages-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if unknown := set(options.sets) - {*known}:
        parser.error(f"no set is called {min(unknown)}: name some of {', '.join(known)}")
    if options.sets and (options.headline or options.pages_only):
        parser.error("name sets, or give --headline or --pages-only")
    wanted = options.sets or [
        name for name, each in SETS.items() if each.headline or not (options.headline or each.apart)
    ]
    if options.list:
        for name in wanted:
            if name == profiles.NAME:
                print(f"{name}: about a minute, whatever else runs\n  {profiles.COMMAND}")
                continue
            print(f"{name}: about {SETS[name].seconds} s{' *' * SETS[name].headline}")
            missing = outdated(name)
            for command in SETS[name].commands:
                print(f"  {command}{' (not measured yet)' * (command in missing)}")
        return
    whole = True
    try:
        for name in [] if options.pages_only else wanted:
            if name == profiles.NAME:
                profiles.record()
            else:
                whole &= measure(name)
    finally:
        print("\n".join([*records.write(), *pages.write()]))
    raise SystemExit(0 if whole else 1)


if __name__ == "__main__":
    main()
