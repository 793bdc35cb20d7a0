# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of process groups and of DDP, from its wheel, with this back end.

    python -m tests.torch.suite [-v] [NAME...]

Without names: all that are about the CPU and for any back end; each takes
seconds, for its ranks import PyTorch anew.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

RANKS = 4
NOT_OURS = {
    "test_ddp_logging_data_cpu": "PyTorch calls each back end of another package `custom` there",
}
# Names, and decorators, of tests for GPUs or for one other back end.
OTHERS_NAME = re.compile(r"cuda|nccl")
OTHERS_DECORATOR = re.compile(
    r"n_gpus|no_gpu|x_gpu|requires_gloo|BACKEND != |backend_feature\[.(gpu|cuda|subgroup)"
    r"|require_backend_is_available\(\{"
)


def cases() -> type[unittest.TestCase]:
    """PyTorch reads what to test from the environment, also in the ranks, which import this."""
    folder = os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="tensorwire-suite-"))
    os.environ.setdefault("BACKEND", "tensorwire")
    os.environ.setdefault("WORLD_SIZE", str(RANKS))
    os.environ.setdefault("INIT_METHOD", f"file://{folder}/shared")
    from torch.testing._internal.common_distributed import DistTestCases

    import torch

    torch.set_num_threads(1)
    for feature in ("ddp", "plugin"):
        DistTestCases.backend_feature[feature].add("tensorwire")
    from torch.testing._internal.distributed import distributed_test

    bases: Any = (distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase)

    def set_up(self: Any) -> None:
        bases[0].setUp(self)
        self._spawn_processes()

    suite: type[unittest.TestCase] = type("Suite", bases, {"setUp": set_up, "__module__": __name__})
    return suite


def names(suite: type[unittest.TestCase]) -> list[str]:
    """Of the tests that say nothing of other devices and back ends."""
    chosen = []
    for name in unittest.TestLoader().getTestCaseNames(suite):
        text = inspect.getsource(inspect.unwrap(getattr(suite, name)))
        decorators = text.partition("def test_")[0]
        others = OTHERS_NAME.search(name) or OTHERS_DECORATOR.search(decorators)
        if name not in NOT_OURS and not others:
            chosen.append(name)
    return chosen


Suite = cases()

if __name__ == "__main__":
    wanted = [each for each in sys.argv[1:] if not each.startswith("-")] or names(Suite)
    sys.modules["tests.torch.suite"] = sys.modules["__main__"]
    tests = unittest.TestSuite(Suite(name) for name in wanted)
    ended = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(tests)
    Path(os.environ["TEMP_DIR"], "shared").unlink(missing_ok=True)
    sys.exit(not ended.wasSuccessful())
