# SPDX-License-Identifier: Apache-2.0
"""What peers did wrong, counted: ``counts()`` gives the incidents of this process."""

from __future__ import annotations

from tensorwire.observe.audit import counts

__all__ = ["counts"]
