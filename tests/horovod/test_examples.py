# SPDX-License-Identifier: Apache-2.0
"""The list of Horovod's examples, of which ``make test-horovod-examples`` runs some."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.horovod.examples import COMMIT, IMPORTS, PAGE, RELEASE, changed, mistakes, rows

PROGRAM = """
import horovod
import horovod.tensorflow.keras as hvd
from horovod.torch.elastic.sampler import ElasticSampler
def main():
    import horovod.keras as hvd
    horovod.run(main)
"""
CHANGED = """
import tensorwire.horovod as horovod
import tensorwire.horovod.keras as hvd
from tensorwire.horovod.torch.elastic.sampler import ElasticSampler
def main():
    import tensorwire.horovod.keras as hvd
    horovod.run(main)
"""


def test_the_page_tells_what_the_list_says() -> None:
    text = PAGE.read_text()
    runs, others = rows(text)
    listed = re.findall(r"^\| .*`[\w/*]+(?:\.py|\*)`.* \|$", text, re.M)
    assert len(runs) + len(others) == len(listed), "a row that is of neither table"
    names = {row.name for row in runs}
    left = sum(row.count for row in others)
    assert f"Horovod has {len(names) + left} [examples]" in text
    assert f"The other {left} do not run" in text
    assert f"release {RELEASE[1:]}" in " ".join(text.split())
    assert COMMIT[:8] in text
    for pattern in (each for pair in IMPORTS for each in pair):
        assert f"`{pattern}`".replace("|", "\\|") in text
    horovod = (PAGE.parent / "horovod.md").read_text()
    assert f"Of Horovod's {len(names) + left} public examples {len(names)} run" in horovod


def test_only_imports_are_changed() -> None:
    assert changed(PROGRAM) == CHANGED


def test_what_is_wrong_with_the_list_is_found() -> None:
    runs, others = rows(PAGE.read_text())
    runs, (other,) = runs[:1], [each for each in others if each.patterns == ["mxnet/*"]]
    programs = {runs[0].name: "", **{f"mxnet/{n}.py": "import horovod.mxnet\n" for n in range(3)}}
    assert mistakes(programs, runs, [other]) == []
    assert mistakes(programs, runs, []) == [f"mxnet/{n}.py is not on the page" for n in range(3)]
    found = mistakes({"mxnet/0.py": ""}, runs, [replace(other, patterns=["mxnet/*", "mxnet/0.py"])])
    assert found == [
        f"{runs[0].name} is not there",
        "mxnet/0.py is the name of no program that is left",
        f"{other.reason}: 1 programs, and the page says 3",
        "mxnet/0.py does not need tensorwire.horovod.mxnet",
    ]
    there = replace(other, needs="tensorwire.horovod.common")
    assert mistakes({}, [], [there])[-1].startswith("tensorwire.horovod.common is there")
