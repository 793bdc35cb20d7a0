"""What all tests share."""

from __future__ import annotations

import signal

import pytest

# They import TensorFlow, PyTorch or JAX here, which start threads and bring libraries of their own.
WITH_FRAMEWORKS = ("bench/train/", "bench/tensorflow/", "tensorflow/", "test_tensors_")


def pytest_configure() -> None:
    """Where pytest is a job in a shell's background, it ignores SIGINT, and so would every process
    that a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with frameworks come last: a process that has loaded one is not what users of gRPC
    have, and no good parent for the tests that fork."""
    items.sort(key=lambda item: any(f"/tests/{part}" in str(item.path) for part in WITH_FRAMEWORKS))
