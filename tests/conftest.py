# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.networks import Networks, NoNetworksError, two_networks

# They import TensorFlow, PyTorch or JAX here, which start threads and bring libraries of their own.
WITH_FRAMEWORKS = (
    "bench/suites/train/",
    "bench/suites/tensorflow/",
    "queue/test_frameworks",
    "tensorflow/",
    "test_tensors_",
)


def pytest_configure() -> None:
    """How long an example of hypothesis takes is no matter of right and wrong, least of all on a
    busy machine. What a shell's background job or ``nohup`` ignores, so would every process that a
    test starts and sends a signal to."""
    with suppress(ImportError):  # the environments of a few tests have none
        from hypothesis import HealthCheck, settings

        slow = [HealthCheck.too_slow]
        settings.register_profile("untimed", deadline=None, suppress_health_check=slow)
        settings.load_profile("untimed")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def networks() -> Iterator[Networks]:
    """Those of two hosts, for who may make them here."""
    try:
        with two_networks() as made:
            yield made
    except NoNetworksError as error:
        pytest.skip(str(error))


@pytest.fixture
def folders() -> Iterator[dict[str, Path]]:
    """Empty folders for all that a process may leave behind, by the variables that name them. Their
    names are short: a socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="tw-") as name:
        found = {variable: Path(name) / variable for variable in ("TMPDIR", "XDG_RUNTIME_DIR")}
        for folder in found.values():
            folder.mkdir(mode=0o700)
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with frameworks come last: a process that has loaded one is not what users of gRPC
    have, and no good parent for the tests that fork. Their files in reverse: those that would be
    last train whole programs and take longest, and one process would end long after the other."""
    early: list[pytest.Item] = []
    late: list[pytest.Item] = []
    for item in items:
        with_frameworks = any(f"/tests/{part}" in str(item.path) for part in WITH_FRAMEWORKS)
        (late if with_frameworks else early).append(item)
    items[:] = [*early, *sorted(late, key=lambda item: item.path, reverse=True)]
