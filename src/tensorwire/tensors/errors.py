# SPDX-License-Identifier: Apache-2.0
"""The errors of this package, and how an error inside a nested object names its place."""

from __future__ import annotations


class DecodeError(ValueError):
    """Bytes that are no tensor message, or a message that is not what the caller asked for."""


class PartError(Exception):
    """Something is wrong with one part of a nested object.

    Whoever walks the object adds the key of each level it leaves, so that paths cost nothing while
    all goes well; the outermost function turns this into a public error.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keys: list[object] = []

    def within(self, key: object) -> PartError:
        self.keys.append(key)
        return self

    def sentence(self, root: str = "obj") -> str:
        return f"{root}{''.join(f'[{key!r}]' for key in reversed(self.keys))}: {self.reason}"
