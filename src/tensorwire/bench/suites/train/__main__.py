# SPDX-License-Identifier: Apache-2.0
"""``python -m tensorwire.bench.suites.train``: the ``train`` command by itself."""

from tensorwire.bench.suites.train.command import solo

if __name__ == "__main__":
    solo()
