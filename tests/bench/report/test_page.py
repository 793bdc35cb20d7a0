# SPDX-License-Identifier: Apache-2.0
"""The page as a file: whole, without network, and without anything of a stranger's in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from unittest.mock import patch

import pytest
from tests.bench.report import made

from tensorwire.bench.report import markup, page
from tensorwire.bench.report.runs import Run, parse

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Parsed(HTMLParser):
    """Elements in their order with their attributes, and the text of each tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, *tags: str) -> list[str]:
        return [text for tag, text in self.texts if tag in tags]


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    """Something short instead of the library, which takes long to parse."""
    with patch("plotly.offline.get_plotlyjs", lambda: "/* the\r\nlibrary */"):
        yield


def runs() -> list[Run]:
    samples = [{"contender": "zmq", "seconds": [0, 1], "figures": {"memory (MB)": [10, 12]}}]
    rows = [*made.sweep("grpcio", 3), *made.sweep("tensorwire"), *made.sweep("zmq", 0.5)]
    told: dict[str, Any] = {"notes": ["a note on zmq"], "governors": ["performance"]}
    told |= {"cpu": "A processor"}
    told |= {"noise": {"before": {"spin": {"median_us": 9, "spread": 0.25}}, "after": None}}
    return [
        made.run(rows, "before.json", environment=told, samples=samples, singles=200),
        made.run([*made.sweep("tensorwire", 2), *made.sweep("zmq", 0.5)], "after.json"),
    ]


def test_it_is_whole_and_has_what_a_reader_looks_for() -> None:
    found = Parsed(page.page(runs()))
    assert found.open == []
    headings = found.text("h2", "h3")
    assert headings[:2] == ["rpc: after.json against before.json", "rpc: before.json"]
    for heading in (
        *("Where others are ahead", "Latency", "Bandwidth", "CPU for each GB", "All rows"),
        *("Against the baseline", "Resources over time", "Notes", "Where it was measured"),
        "Distribution",
    ):
        assert heading in headings
    cells = found.text("td", "th")
    for cell in ("zmq tcp request 1M", "2.00x", "100 us", "slower", "2.00 to 2.00"):
        assert any(cell in each for each in cells), cell
    assert "a note on zmq" in found.text("li")
    noise = "Before the run, turns of the host's own loop spin were apart by 25% (10th to 90th "
    assert any(noise in each for each in found.text("p"))
    assert {"performance", "A processor"} <= {*found.text("dd")}


def test_every_picture_has_its_figure_and_words() -> None:
    found = Parsed(page.page(runs()))
    drawn = [each for each in found.of("div") if each.get("role") == "img"]
    (figures,) = [
        json.loads(text) for tag, text in found.texts if tag == "script" and text.startswith("{")
    ]
    assert [each["id"] for each in drawn] == list(figures)
    assert len(drawn) > 8
    assert all(len(each["aria-label"] or "") > 30 for each in drawn)
    for table in (each for each in found.of("div") if each.get("class") == "wide"):
        assert (table["role"], table["tabindex"]) == ("region", "0")
        assert table["aria-label"]


def test_nothing_is_loaded_and_only_its_own_scripts_run() -> None:
    text = page.page(runs())
    found = Parsed(text)
    for tag, attributes in found.elements:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form"), tag
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    assert "@import" not in text
    assert "url(" not in text
    policy = next(
        each["content"] or ""
        for each in found.of("meta")
        if each.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ] == allowed
    assert scripts[0] == "/* the\nlibrary */"
    assert [each.get("type") for each in found.of("script")] == ["application/json", None, None]


def hostile(found: Any) -> Any:
    """The same with something hostile in every text and every name that may be any."""
    if isinstance(found, str):
        return found + made.HOSTILE
    if isinstance(found, list):
        return [hostile(each) for each in found]
    if isinstance(found, dict):
        return {name + made.HOSTILE: hostile(each) for name, each in found.items()}
    return found


def test_a_run_of_a_stranger_brings_no_markup() -> None:
    kept = json.loads(made.written([*made.sweep("tensorwire"), *made.sweep("zmq", 0.5)]))
    for row in kept["rows"]:
        row |= {name: hostile(value) for name, value in row.items()}
    kept["suite"], kept["baseline"] = hostile("rpc"), hostile("grpcio")
    kept["environment"] |= hostile({"a": {"b": ["c", {"d": "e"}]}, "versions": {"x": "y"}})
    kept["environment"] |= {"notes": hostile(["a", "b"]), "time": hostile("now")}
    kept["details"]["samples"] = [
        {
            **{name: hostile(name) for name in ("contender", "transport", "case")},
            "seconds": [0, 1],
            "figures": {hostile("CPU"): [1, 2]},
        }
    ]
    text = json.dumps([{"command": hostile("bench"), "report": kept}]).encode()
    (run,) = parse(text, "b.json" + made.HOSTILE)
    (other,) = parse(text, "c.json")
    found = Parsed(page.page([run, other]))
    ordinary = {tag for tag, _ in Parsed(page.page(runs())).elements}
    assert {tag for tag, _ in found.elements} <= ordinary
    assert len(found.of("script")) == 3
    assert not found.of("img")
    assert not [name for _, each in found.elements for name in each if name.startswith("on")]
    shown = "".join(text for tag, text in found.texts if tag not in ("script", "style"))
    assert shown.count("<script>alert(1)</script>") > 20


def test_runs_are_compared_with_the_first_that_has_rows_in_common() -> None:
    first, second = runs()
    third = made.run(made.sweep("zmq", 1, (32,)), "third.json")
    trained = made.run(made.sweep("zmq"), "train.json", suite="train")
    found = Parsed(page.page([first, third, trained, second, second]))
    compared = [text for text in found.text("h2") if " against " in text]
    assert compared == ["rpc: after.json against before.json"] * 2


def test_more_pictures_than_a_page_can_have_are_left_out() -> None:
    sizes = (8, 64)
    rows = [each for n in range(60) for each in made.sweep("tensorwire", 1, sizes, case=f"case{n}")]
    found = Parsed(page.page([made.run(rows)]))
    assert len(found.of("figure")) == page.MAX_CHARTS
    assert "100 pictures are left out; the tables have all figures." in found.text("p")


def test_without_rounds_the_page_says_so() -> None:
    run = made.run(made.sweep("tensorwire"), rounds=False)
    text = "".join(Parsed(page.page([run])).text("p"))
    assert "This run has no rounds: there are no intervals of confidence." in text


def test_a_run_without_rows_tells_why_there_are_none() -> None:
    run = made.run([], environment={"notes": ["nothing could be measured"]})
    found = Parsed(page.page([run]))
    assert "nothing could be measured" in found.text("li")
    assert not found.of("table")


def test_text_stays_text() -> None:
    made_of = markup.node("p", "<b>", markup.node("i", "&"), "'>", title='"<')
    assert markup.document(made_of) == (
        '<!doctype html>\n<p title="&quot;<">&lt;b&gt;<i>&amp;</i>\'&gt;</p>'
    )


def test_data_cannot_end_its_element() -> None:
    found = markup.data("a", {"b": "</script><!--&"})
    assert found.text is not None
    assert "<" not in found.text
    assert json.loads(found.text) == {"b": "</script><!--&"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        markup.data("a", float("nan"))
