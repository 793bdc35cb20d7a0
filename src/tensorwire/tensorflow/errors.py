# SPDX-License-Identifier: Apache-2.0
"""What ``enable`` raises, each with a sentence that says what to do."""

from __future__ import annotations


class PluginError(RuntimeError):
    """TensorFlow cannot be accelerated here."""


class UnsupportedError(PluginError):
    """There is no TensorFlow, or not one that the plugin can be built for."""


class BuildError(PluginError):
    """The plugin could not be built or loaded: no compiler, no folder for it, a compile error."""
