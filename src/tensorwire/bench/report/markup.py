# SPDX-License-Identifier: Apache-2.0
"""HTML as a tree: what is put into it as text stays text."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final
from xml.etree import ElementTree

Node = ElementTree.Element

_UNSAFE_IN_SCRIPT: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def node(tag: str, *children: Node | str | None, **attributes: str) -> Node:
    """An element. Of names of attributes, ``_`` is ``-``, and nothing at the end; those without a
    value are left out."""
    named = {name.rstrip("_").replace("_", "-"): text for name, text in attributes.items() if text}
    made = ElementTree.Element(tag, named)
    for child in children:
        if isinstance(child, str):
            if len(made):
                made[-1].tail = (made[-1].tail or "") + child
            else:
                made.text = (made.text or "") + child
        elif child is not None:
            made.append(child)
    return made


def table(label: str, head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> Node:
    """The first cell of a row names it. texts: how many columns are aligned as text. It scrolls by
    itself where the page is narrow."""
    body = [
        node(
            "tr",
            *(
                node("th", cell, scope="row", class_="text")
                if place == 0
                else node("td", cell, class_="text" if place < texts else "")
                for place, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    heads = [
        node("th", name, scope="col", class_="text" if place < texts else "")
        for place, name in enumerate(head)
    ]
    made = node("table", node("thead", node("tr", *heads)), node("tbody", *body))
    return node("div", made, class_="wide", tabindex="0", role="region", aria_label=label)


def script(text: str) -> tuple[Node, str]:
    """One that runs, and what a policy has to name to let it run."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # as browsers read it, and hash it
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return node("script", text), f"'sha256-{digest}'"


def data(name: str, found: Any) -> Node:
    """JSON for a script to read. It never runs, and cannot end its element."""
    text = json.dumps(found, allow_nan=False).translate(_UNSAFE_IN_SCRIPT)
    return node("script", text, type="application/json", id=name)


def document(root: Node) -> str:
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html")
