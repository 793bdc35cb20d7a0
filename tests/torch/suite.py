# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of process groups and of DDP, from its wheel, with this back end.

    python -m tests.torch.suite [-v] [NAME...]

Without names: all but those that a table of docs/pytorch-tests.md lists, each with the reason why
it does not run. A test that is listed and is none, a count that is wrong, and a test that PyTorch
skips although it is not listed fail the run.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import tempfile
import unittest
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

RANKS: Final = 4
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "pytorch-tests.md"
# Decorators that skip where there are few GPUs, or fewer than eight ranks.
SKIPPING: Final = re.compile(r"skip_if_(lt_x_gpu|no_gpu|small_worldsize)")
ROW: Final = re.compile(
    r"^\| (?P<reason>[^|]+) \| (?P<count>\d+) \| (?P<patterns>`test_[^|]+) \|$", re.M
)


def cases() -> type[unittest.TestCase]:
    """PyTorch reads what to test from the environment."""
    folder = os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="tensorwire-suite-"))
    os.environ.setdefault("BACKEND", "tensorwire")
    os.environ.setdefault("WORLD_SIZE", str(RANKS))
    os.environ.setdefault("INIT_METHOD", f"file://{folder}/shared")
    from torch.testing._internal.common_distributed import DistTestCases

    import torch

    torch.set_num_threads(1)
    for feature in ("ddp", "gpu", "plugin", "subgroup"):
        DistTestCases.backend_feature[feature].add("tensorwire")
    from torch.testing._internal.distributed import distributed_test

    bases: Any = (distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase)
    context = torch.multiprocessing.get_context("fork")  # what is imported here is imported once

    def set_up(self: Any) -> None:
        bases[0].setUp(self)
        self._start_processes(context.Process)

    suite: type[unittest.TestCase] = type("Suite", bases, {"setUp": set_up, "__module__": __name__})
    return suite


def chosen(suite: type[unittest.TestCase], page: str) -> tuple[list[str], list[str]]:
    """Names of the tests that the page does not list, and what is wrong with it."""
    left = list(unittest.TestLoader().getTestCaseNames(suite))
    wrong = []
    for row in ROW.finditer(page):
        found: set[str] = set()
        for pattern in re.findall(r"`([^`]+)`", row["patterns"]):
            matched = {name for name in left if fnmatchcase(name, pattern)}
            if not matched - found:
                wrong.append(f"{pattern} is the name of no test that is left")
            found |= matched
        if len(found) != int(row["count"]):
            wrong.append(f"{row['reason']}: {len(found)} tests, and the page says {row['count']}")
        left = [name for name in left if name not in found]
    return left, wrong


def run_for_all(suite: type[unittest.TestCase], name: str) -> None:
    """Takes its decorators off a test that PyTorch skips here: it knows its own back ends alone."""
    test = getattr(suite, name)
    plain = inspect.unwrap(test)
    decorators = inspect.getsource(plain).partition("def test_")[0]
    if getattr(test, "__unittest_skip__", False) or SKIPPING.search(decorators):
        vars(plain).pop("__unittest_skip__", None)
        setattr(suite, name, plain)


def main() -> int:
    suite = cases()
    names, wrong = chosen(suite, PAGE.read_text())
    wanted = [each for each in sys.argv[1:] if not each.startswith("-")] or names
    for name in wanted:
        run_for_all(suite, name)
    tests = unittest.TestSuite(suite(name) for name in wanted)
    ended = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(tests)
    Path(os.environ["TEMP_DIR"], "shared").unlink(missing_ok=True)
    wrong += [f"{test.id()} has not run: {why}" for test, why in ended.skipped]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong) or not ended.wasSuccessful())


if __name__ == "__main__":
    sys.exit(main())
