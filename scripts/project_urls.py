# SPDX-License-Identifier: Apache-2.0
"""The package's links: pages of the public repository, which whoever builds a release names.

Its address is in the variable ``REPOSITORY_URL``, which the workflow of releases sets: it is that
of the very repository that makes the release, a fork's own among them. A build without it has no
links. What is built from a source distribution has the links of that. pyproject.toml names this as
the provider of the field ``urls``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

VARIABLE = "REPOSITORY_URL"


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    distributed = Path("PKG-INFO")  # of a source distribution that is being built
    if distributed.exists():
        found = HeaderParser().parsestr(distributed.read_text(encoding="utf-8"))
        links = (link.partition(", ") for link in found.get_all("Project-URL", []))
        return {"urls": {label: address for label, _, address in links}}
    address = os.environ.get(VARIABLE, "").rstrip("/")
    if not address:
        return {}
    if not address.startswith("https://"):
        raise ValueError(f"{VARIABLE} is {address!r}, and is to begin with https://")
    tag = f"v{project['version']}"
    return {
        "urls": {
            "Source": address,
            "Documentation": f"{address}/blob/{tag}/docs/index.md",
            "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{address}/issues",
        }
    }
