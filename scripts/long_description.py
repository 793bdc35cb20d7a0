# SPDX-License-Identifier: Apache-2.0
"""The package's long description: the beginning of README.md, for readers outside the repository.

Comments, and pictures and links that lead into the repository, are left out. pyproject.toml names
this as the provider of the field ``readme``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

END = "\n## Two commands"
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\((?!https:)[^)]*\)\n*")
LINK = re.compile(r"\[([^\]]*)\]\((?!https:)[^)]*\)")
INSTALL = """
## Install

```sh
pip install tensorwire
tensorwire doctor       # what this host offers
```

Linux on x86-64 or aarch64, Python 3.10 or newer. Acceleration of TensorFlow needs a C++ compiler on
the machine. The source distribution holds the documentation, the tutorials and the examples.
"""


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    beginning, end, _ = Path("README.md").read_text(encoding="utf-8").partition(END)
    if not end:
        raise ValueError(f"README.md has no {END.strip()!r}, before which the description ends")
    text = LINK.sub(r"\1", PICTURE.sub("", COMMENT.sub("", beginning))) + INSTALL
    return {"readme": {"content-type": "text/markdown", "text": text}}
