# SPDX-License-Identifier: Apache-2.0
"""``python -m tensorwire``: the ``tensorwire`` command."""

from __future__ import annotations

from tensorwire.cli import main

if __name__ == "__main__":
    main()
