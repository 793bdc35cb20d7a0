"""Settings that are misspelt."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from tensorwire import doctor, environment

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> None:
    environment.tell_unknown.cache_clear()


def test_every_setting_is_known_and_documented() -> None:
    sources = [
        *(ROOT / "core" / "base").glob("settings.cc"),
        *(ROOT / "src" / "tensorwire").rglob("*.py"),
        *(ROOT / "src" / "tensorwire" / "tensorflow" / "plugin").glob("settings.cc"),
    ]
    read = {
        name
        for source in sources
        for name in re.findall(r'"((?:TENSORWIRE|TF_RDMA)_[A-Z0-9_]+)"', source.read_text())
    }
    composed = {name for name in environment.NAMES if name not in read}
    assert read - environment.NAMES == {"TENSORWIRE_RUN"}
    assert all("VERBS" in name for name in composed)
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert [name for name in sorted(environment.NAMES) if f"`{name}`" not in pages] == []


def test_the_nearest_name() -> None:
    found = ["TENSORWIRE_TRANSPROT", "TF_RDMA_BUFSIZE", "TENSORWIRE_NOTHING_LIKE_IT", "PATH"]
    assert environment.unknown([*found, *environment.NAMES]) == {
        "TENSORWIRE_NOTHING_LIKE_IT": "",
        "TENSORWIRE_TRANSPROT": "TENSORWIRE_TRANSPORT",
        "TF_RDMA_BUFSIZE": "TF_RDMA_BUF_SIZE",
    }


def test_one_warning_in_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENSORWIRE_CHUNK_BYTE", "1M")
    with caplog.at_level(logging.WARNING, "tensorwire"):
        environment.tell_unknown()
        environment.tell_unknown()
    assert caplog.messages == [
        "TENSORWIRE_CHUNK_BYTE in the environment is no setting and has no effect; "
        "did you mean TENSORWIRE_CHUNK_BYTES?"
    ]


def test_doctor_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWIRE_CHUNK_BYTE", "1M")
    (finding,) = (f for f in doctor.examine_host()[0] if f.subject == "environment")
    assert (finding.value, finding.verdict) == ("TENSORWIRE_CHUNK_BYTE", "warn")
    assert "TENSORWIRE_CHUNK_BYTES" in finding.mend
