# SPDX-License-Identifier: Apache-2.0
"""Which transports the tests of what goes by any of them are run over."""

from __future__ import annotations

from tensorwire.transports import names, why_not

HERE = tuple(name for name in names() if why_not(name) is None)
"""What this host can do, best first: RDMA needs a device, which ``make test-verbs`` has."""
