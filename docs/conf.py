# SPDX-License-Identifier: Apache-2.0
"""Sphinx settings; `make docs` builds with every warning an error."""

import os
from importlib.metadata import version as installed_version
from typing import Any

os.environ["TYPER_USE_RICH"] = "0"  # help as plain text

project = "Tensorwire"
author = "The Tensorwire authors"
version = release = installed_version("tensorwire")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# What only stands in grpc's own docstrings is documented there, in its own markup.
autodoc_inherit_docstrings = False

html_theme = "furo"
html_title = f"Tensorwire {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = ["copy.js"]


def commands(command: Any, name: str) -> dict[str, str]:
    """The help of a command, or of all commands of a group."""
    with command.context_class(command, info_name=name, terminal_width=90) as context:
        words = getattr(command, "summaries", ())
        if not words:
            return {name: command.get_help(context)}
        found: dict[str, str] = {}
        for word in words:
            found |= commands(command.load(word), f"{name} {word}")
        return found


def add_help(app: Any, page: str, source: list[str]) -> None:
    """What the commands say of themselves, to the page ``cli``."""
    if page == "cli":
        import typer

        from tensorwire.cli import app as cli

        found = commands(typer.main.get_command(cli), "tensorwire")
        source[0] += "".join(
            f"\n## {name}\n\n```text\n{text}\n```\n" for name, text in found.items()
        )


def setup(app: Any) -> None:
    app.connect("source-read", add_help)
    app.connect("env-get-outdated", lambda *_: ["cli"])
