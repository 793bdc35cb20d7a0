# SPDX-License-Identifier: Apache-2.0
"""A plugin that compiles in a second and does nothing, for what Python does with any plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = r"""
#include <cstdio>
#include <cstdlib>

#include "tensorwire.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

static int started = 0;

EXPORT uint32_t tensorwire_tensorflow_abi() {
  return TW_TABLE_VERSION + (std::getenv("OTHER_TABLE") != nullptr);
}

EXPORT int tensorwire_tensorflow_start(const void* table, char* error, size_t room) {
  ++started;
  const char* why = std::getenv("REFUSE");
  if (why != nullptr) std::snprintf(error, room, "%s", why);
  if (why != nullptr) return std::getenv("WRONG_SETTING") != nullptr ? 3 : 9;
  return static_cast<const tw_table*>(table)->version == TW_TABLE_VERSION ? 0 : 9;
}

EXPORT void tensorwire_tensorflow_stats(void (*visit)(void*, const char*, const char*, uint64_t),
                                        void* context) {
  visit(context, "started", "started", static_cast<uint64_t>(started));
  visit(context, "received_tcp", "received: over tcp, copied", 12);
  visit(context, "received_tcp_bytes", nullptr, 3145728);
}
"""

# Stands in front of each program, so that the tiny plugin is what is built.
PROLOGUE = """
from pathlib import Path
from tensorwire.tensorflow import build
build.SOURCES = Path({sources!r})
"""


class Tiny:
    """Runs programs whose plugin is the tiny one; builds are shared within a test session."""

    def __init__(self, path: Path) -> None:
        self.sources = path / "plugin"
        self.sources.mkdir()
        (self.sources / "tiny.cc").write_text(SOURCE)
        self.environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(path / "cache"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def prologue(self) -> str:
        return PROLOGUE.format(sources=str(self.sources))

    def run(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", self.prologue() + program],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=100,
        )
