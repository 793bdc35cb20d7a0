# SPDX-License-Identifier: Apache-2.0
"""What ``enable`` raises, each with a sentence that says what to do."""

from tensorwire.plugins import BuildError, PluginError, UnsupportedError

__all__ = ["BuildError", "PluginError", "UnsupportedError"]
