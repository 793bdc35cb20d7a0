# SPDX-License-Identifier: Apache-2.0
"""``tensorwire train``: the command of the training benchmark."""

from __future__ import annotations

from tensorwire.bench.suites.train import command
from tensorwire.cli.group import Command, single

app = single()
app.command(cls=Command, **command.SETTINGS)(command.train)
