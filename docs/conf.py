"""Sphinx settings; `make docs` builds with every warning an error."""

from importlib.metadata import version as installed_version

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
