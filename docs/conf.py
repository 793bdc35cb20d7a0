# SPDX-License-Identifier: Apache-2.0
"""Sphinx settings; `make docs` builds with every warning an error."""

import os
import re
from importlib.metadata import version as installed_version
from typing import Any

os.environ["TYPER_USE_RICH"] = "0"  # help as plain text

project = "Tensorwire"
author = "The Tensorwire authors"
version = release = installed_version("tensorwire")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
maximum_signature_line_length = 88
autodoc_member_order = "bysource"
# What only stands in grpc's own docstrings is documented there, in its own markup.
autodoc_inherit_docstrings = False

html_theme = "furo"
pygments_dark_style = "github-dark"  # the theme's own underlines names, as if they were links
html_title = f"Tensorwire {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = ["pages.js"]


def commands(command: Any, name: str) -> dict[str, str]:
    """The help of a command, or of all commands of a group, without the terminal's markup."""
    with command.context_class(command, info_name=name, terminal_width=90) as context:
        words = getattr(command, "summaries", ())
        if not words:
            command.epilog = re.sub(r"\[(bold|/)\]", "", command.epilog or "")
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
