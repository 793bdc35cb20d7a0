# SPDX-License-Identifier: Apache-2.0
"""What msgspec raises of bytes that it does not decode, whoever chose them."""

from __future__ import annotations

from typing import Final

import msgspec

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Text that is no UTF-8, and what is nested too deep, have errors of their own."""
