# SPDX-License-Identifier: Apache-2.0
"""Tables of pages agree with the files that they come from, and are made of what was measured."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.figures import calls, pages, profiles, records, repeated, sets
from tests.figures.pages import TABLES, Table
from tests.figures.rows import MB, Rows
from tests.figures.sets import ROOT, SETS, Set

from tensorwire import cli
from tensorwire.bench.harness.rows import Report, Row
from tensorwire.bench.suites.tf_grpc.suite import BENCHMARKS
from tensorwire.bench.suites.train.command import ROUNDS
from tensorwire.cli.bench import Commands
from tensorwire.observe.profile import MOST_MESSAGES


@pytest.mark.parametrize("table", TABLES, ids=lambda each: f"{each.page}-{each.name}")
def test_a_table_agrees_with_its_file(table: Table) -> None:
    """One whose file is missing was written by hand."""
    (found,) = pages.place(table.name).findall((ROOT / table.page).read_text())
    if table.measured:
        assert found[1] == table.text, "run: make benchmarks ARGS=--pages-only"
    else:
        assert ".json" not in found[1]


def test_the_folder_has_what_comes_of_sets_only() -> None:
    names = {path.name for path in sets.FOLDER.iterdir()} - {"index.md"}
    for name in SETS:
        if sets.file_of(name).exists():
            assert sets.load(name)
            assert f"{name}.md" in names
        pictures = {f"{name}-{place + 1}.png" for place in range(len(sets.kept(name)))}
        assert pictures <= names
        names -= {f"{name}.json", f"{name}.md", *pictures}
    assert names == {profiles.file().name}
    assert sum(path.stat().st_size for path in sets.FOLDER.iterdir()) < 5 * MB


@pytest.mark.parametrize(("path", "text"), [*records.pages()], ids=lambda each: str(each)[-20:])
def test_a_page_of_a_set_agrees_with_its_file(path: Path, text: str) -> None:
    assert path.read_text() == text, "run: make benchmarks ARGS=--pages-only"


def test_bands_of_the_paper_are_in_the_recorded_messages() -> None:
    """Of ResNet-50 over stock gRPC: each is a line of its picture, and where the paper has it,
    unless framing made most of the distance."""
    found = list(profiles.lines())
    assert len(profiles.load()["profile"]["trace"]) == MOST_MESSAGES
    for line in found:
        assert len(line.sizes) >= profiles.FEWEST, line.band.paper
        assert abs(line.off) <= (0.5 if line.band.framed else profiles.WITHIN), line.band.paper
    assert [line.band.paper for line in found if line.band.framed] == ["64 B", "350 B"]
    capped = found[-1]
    assert capped.band.paper == "a line at 4 MB"
    assert {*capped.sizes} == {4 << 20}


def test_a_band_that_is_gone_has_no_line(measured: Path) -> None:
    recorded = profiles.load()
    recorded["profile"]["trace"] = [[2048] * 19 + [4096], [279, 300, 301]]
    profiles.file().write_text(json.dumps(recorded))
    text = profiles.bands()
    assert "| 2.1 to 2.3 KB | 2,048 | 19 | -2% | of 512 channels |" in text
    assert "| 350 B | 279 to 301 | 3 | -14% |" in text
    assert "64 KB" not in text
    assert "All are within 15% of the paper's." in text


def test_two_runs_of_one_command_differ_by_less_than_their_noise() -> None:
    if not sets.file_of("repeated").exists():
        pytest.skip("not measured yet: make benchmarks ARGS=repeated")
    found = repeated.comparison()
    assert found.changes
    own = [each for each in found.changes if each.after.role == "own"]
    assert [each.verdict for each in own] == ["same"] * len(own)


def test_tables_are_of_sets_and_all_takes_no_more_than_40_minutes() -> None:
    assert {name for table in TABLES for name in table.sets} <= SETS.keys()
    assert sum(each.seconds for each in SETS.values() if not each.apart) <= 40 * 60
    assert sum(each.seconds for each in SETS.values() if each.headline) <= 12 * 60
    assert round(records.took_in_all() / 60) <= 40  # as pages say it


def test_pages_tell_how_long_it_takes() -> None:
    whole, quick = records.minutes_of_all(), records.minutes_of_headline()
    figures = (ROOT / "docs" / "figures.md").read_text()
    assert sum(each.apart for each in SETS.values()) == 9
    assert f"# all sets but nine, in about {whole} minutes on two cores\n" in figures
    told = re.findall(r"(?m)^make benchmarks ARGS=\"(.*)\" +# .* in (?:about )?(\d+)", figures)
    assert {name for names, _ in told for name in names.split()} == {
        name for name, each in SETS.items() if each.apart
    }
    for names, minutes in told:
        assert int(minutes) == round(sum(SETS[name].seconds for name in names.split()) / 60)
    assert f"# rpc, bytes and tensorflow, in about {quick}\n" in figures
    (line,) = re.findall(r"(?m)^\| `make benchmarks` \|.*$", (ROOT / "CONTRIBUTING.md").read_text())
    assert f"in {whole} minutes on an idle machine" in line
    assert f"what matters most in {quick} minutes" in line


def test_what_the_readme_and_the_changelog_quote_is_measured_by_make_benchmarks() -> None:
    """Without naming a set."""
    quoted = {
        name for each in TABLES if each.page in ("README.md", "CHANGELOG.md") for name in each.sets
    }
    assert quoted
    assert not any(SETS[name].apart for name in quoted)


COMMANDS = [each for made in SETS.values() for each in made.commands]


def words_of(text: str) -> list[str]:
    """Without variables of the environment."""
    words = shlex.split(text)
    return words[words.index("tensorwire") :]


def parameters(text: str) -> dict[str, Any]:
    """As a command is run with them: those that are given, and the defaults of others."""
    command: Any = typer.main.get_command(cli.app)
    rest = words_of(text)[1:]
    while hasattr(command, "summaries"):
        command = command.load(rest.pop(0))
    with command.make_context("tensorwire", rest, resilient_parsing=False) as context:
        found: dict[str, Any] = context.params
    return found


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_are_of_five_rounds(text: str) -> None:
    """Or have a reason to be of fewer."""
    rounds = parameters(text)["rounds"] or ROUNDS
    fewer = any(" ".join(words_of(text)).startswith(begin) for begin in sets.FEWER_ROUNDS)
    assert (rounds < sets.LEAST_ROUNDS) == fewer, f"{rounds} rounds"


def test_each_reason_for_fewer_rounds_is_of_a_command() -> None:
    for begin, reason in sets.FEWER_ROUNDS.items():
        assert reason
        assert any(" ".join(words_of(text)).startswith(begin) for text in COMMANDS), begin


def test_every_bench_is_of_five_rounds_by_default() -> None:
    for name in Commands.summaries:
        if name != "compare":
            assert parameters(f"tensorwire bench {name}")["rounds"] >= sets.LEAST_ROUNDS, name


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_are_those_that_there_are(text: str) -> None:
    """They parse; nothing runs."""
    peers = parameters(text).get("peers") or []
    known = {name for names in contenders(words_of(text)[2]) for name in names}
    assert {each for peer in peers for each in peer.split(",")} <= known | {"all", "none"}


def contenders(word: str) -> Iterator[list[str]]:
    group = "tf_grpc" if word in BENCHMARKS else word
    for each in entry_points(group=f"tensorwire.bench.contenders.{group}"):
        yield [each.name, *each.load()().variants()]


def test_a_command_that_pages_name_beside_a_table_is_of_its_set() -> None:
    """In the README, what stands in brackets ahead of a table."""
    readme = " ".join((ROOT / "README.md").read_text().split())
    quoted = re.findall(r"`(tensorwire bench [^`]*)`", readme)
    assert quoted
    for command in quoted:
        options = command.split("tensorwire bench ")[1]
        listed = [each for made in SETS.values() for each in made.commands]
        assert any(options in each for each in listed), command


def test_commands_beside_figures_are_those_that_made_them() -> None:
    """With all of their options."""
    figures = " ".join((ROOT / "docs" / "figures.md").read_text().split())
    quoted = re.findall(r"`(tensorwire (?:bench|train) [^`]*)`", figures)
    assert quoted
    assert {*quoted} <= {*COMMANDS}


def test_times_stand_in_tables_that_come_from_files() -> None:
    """What is written by hand stays behind what is measured anew."""
    figures = (ROOT / "docs" / "figures.md").read_text()
    text = re.sub(r"<!-- figures: (?s:.*?)<!-- end of figures -->", "", figures)
    assert re.findall(r"\b[\d.]+ (?:ns|us|ms)\b", text) == []


def test_a_comparison_has_its_figures_from_files() -> None:
    """What others take changes with each run of ours."""
    text = (ROOT / "docs" / "comparison.md").read_text()
    text = re.sub(r"<!-- figures.*?end of figures -->", "", text, flags=re.DOTALL)
    assert re.findall(r"\b[\d.]+ (?:ns|us|ms|s)\b", text) == []


def test_whether_a_host_was_quiet_is_told_by_the_files_alone() -> None:
    for table in TABLES:
        noisy = [run for name in table.sets if table.measured for run in sets.runs_of(name)]
        text = " ".join(table.text.split()) if table.measured else ""
        assert ("The speed of the machine itself changed in" in text) == any(
            run.noise for run in noisy
        ), table.name
    figures = " ".join((ROOT / "docs" / "figures.md").read_text().split())
    assert not re.search(r"nothing else (ran|running|was running)|\bidle (AMD|Intel|host)", figures)


def test_figures_of_the_changelog_are_those_of_its_tables() -> None:
    """Of what is not released: other text would stay behind what is measured anew."""
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(r"^## Unreleased\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    speeds = r"\b\d[\d.]*(?:x\b| times\b| [munµ]s\b| [kMG]?B/s| [kM]?/s)"
    assert re.search(speeds, found[1])
    told = re.sub(r"<!-- figures: (?s:.*?)<!-- end of figures -->", "", found[1])
    assert re.findall(speeds, told) == []


def test_every_place_on_a_page_is_of_a_table() -> None:
    texts = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    places = {
        (str(page.relative_to(ROOT)), name)
        for page in texts
        for name in re.findall(r"<!-- figures: (\w+) -->", page.read_text())
    }
    assert places == {(table.page, table.name) for table in TABLES}


def test_tables_show_what_was_measured(measured: Path) -> None:
    assert len(pages.write(measured)) == len(TABLES)
    figures = (measured / "docs" / "figures.md").read_text()
    assert "| 64 MiB, a call, tensorwire over tcp | 10 ms | 25 ms | 2.5x |" in figures
    assert "| 1 GiB of weights, tensorwire over tcp | 10 ms | 25 ms | 2.5x |" in figures
    readme = (measured / "README.md").read_text()
    assert "| 8 B, p50 | 1 ms | 10 us (**100x**) | 100 us (10x) |" in readme
    # What is only announced has a time, and no ratio.
    assert "| 64 MiB published, not read (*) | 1 ms | 10 us | 100 us (10x) |" in readme
    assert "| 8 B messages on one stream | 1 k/s | 100 k/s (**100x**) | 10 k/s (10x) |" in readme
    assert "| CPU seconds per GB at 64 MiB | 1 | 0.01 | 0.1 |" in readme
    assert "| 16 MiB | 60 ms | 5 ms (**12x**) | 20 ms (3.0x) |" in readme
    assert "Made from [rpc.json](docs/benchmarks/rpc.json) and [bytes.json]" in readme
    assert "(docs/benchmarks/tensorflow.json) (a processor)." in readme
    assert "went from 10 to 30 images/s" in readme
    queued = "900 items/s | grpcio 90 items/s, **10x**; `multiprocessing` 30 items/s, **30x** |"
    assert f"(docs/queue.md) | {queued}" in readme
    assert "of 64 MiB | 10 us | MPICH 5 us, **0.50x** (5 us); gloo 60 us, **6.0x** |" in readme
    assert "Others in the same run, 64 MiB, all of it read: the same with `cubic` " in readme
    figures = (measured / "docs" / "figures.md").read_text()
    assert "| 8 B request, p50 (p99) | 100x (200x) | 10x (20x) |" in figures
    assert "| 64 MiB request against NIXL (ours published, both read) | 4.0x | |" in figures
    assert "| 64 MiB request against plain sockets with cubic, not read | | 0.97x |" in figures
    assert "| CPU seconds per GB at 64 MiB | 1/100 | 1/10 |" in figures
    assert "| 1, 16, 64, 256 MiB | 12x, 12x, 12x, 12x | 3.0x, 3.0x, 3.0x, 3.0x |" in figures
    assert "| parameter-server step, 100 MiB (CPU seconds) | 12x (1/12) | 3.0x (1/3.0) |" in figures
    # Over tcp it is another run, with a stock of its own.
    assert "| alexnet 2 | 10 | 30 (3.0x) | 20 (1.25x) | 40 | 0.10, 0.03 | 4 |" in figures
    assert "| fcn5 32 | 10 | 30 (3.0x) | | 40 | 0.10, 0.03 | 34 |" in figures
    protobuf = (measured / "docs" / "protobuf.md").read_text()
    assert "| 8 B | 1 ms | 10 us (100x) | 5 us (**200x**) | 50 us (20x) |" in protobuf
    assert "| Ray, shm | 500 us (50x) | 500 us (50x) | 500 us (50x) |" in figures
    assert "| Mooncake, tcp | 50 us (0.50x) |" in figures
    assert "| latency, uniform | 90 us | 10 us (**9.0x**) | 30 us (3.0x) |" in figures
    assert "| 4 nodes, fully connected, uniform | 11.1 k RPC/s | 100 k RPC/s" in figures
    assert (
        "| all-reduce, 2 ranks, 8 MiB | 10 us | **6.0x** | 0.50x (5 us) | 2.0x | 0.40 |" in figures
    )
    assert (
        "| all-reduce, 4 ranks, 64 MiB | 10 us | **6.0x** | 0.50x (5 us) | 2.0x | 0.40 |" in figures
    )
    assert "| all-reduce over TCP, 2 ranks, 1 MiB | 30 us | **2.0x** |" in figures
    assert "| `ping_pong`, a message, 8 B | 10 us | **6.0x** |" in figures
    assert "| `broadcast`, 2 ranks, 64 MiB | 10 us | **6.0x** |" in figures
    assert "| read 8 B | 1 us | MPICH 2 us, NIXL 3 us | 20 us | 10 us |" in figures
    assert "| shm, adopted | 3 ms | |" in figures
    copied = "memcpy by both 100 ms (0.50x), MPICH 400 ms (2.0x), NIXL 500 ms (2.5x), gloo 1 s"
    assert f"{copied} (5.0x)" in figures
    assert "MPICH 400 ms (0.80x), NIXL over tcp 3 s (6.0x), gloo 1 s (2.0x)" in figures
    assert "| shm, from four trainers, in parts | 100 ms | memcpy by both" in figures
    report = (measured / "docs" / "report.md").read_text()
    assert "| tensorwire shm, 8 | 10 us | 10 us | 1.00x | not known | unknown |" in report
    comparison = (measured / "docs" / "comparison.md").read_text()
    assert "| NIXL, shm | 40 us | 40 us | 40 us |" in comparison
    guide = (measured / "docs" / "tensorflow.md").read_text()
    assert "| AlexNet 2 | 3.0x | 0.75 | 4 |" in guide
    many = "| 4 KiB | 90 ms | 30 ms (3.0x) | 10 ms (9.0x) | 45 ms (2.0x) | 15 ms (6.0x) |"
    assert many in guide
    assert "| lenet | 10 | 11 | 1.10 | 10%, 10% |" in guide
    text = " ".join(readme.split())
    assert "reads 400 variables of 4 KiB: 90 ms over grpc, 30 ms (3.0x) over shared" in text


def test_how_little_of_trainings_was_measured_is_told(measured: Path) -> None:
    pages.write(measured)
    figures, readme, guide = (
        " ".join((measured / page).read_text().split())
        for page in ("docs/figures.md", "README.md", "docs/tensorflow.md")
    )
    made = "--batch_size N --num_batches B --num_warmup_batches 3 --rounds 1` (B: from 10 to 20)"
    assert f"tensorwire train --compare --model MODEL {made}" in figures
    assert "Each was measured once, over as few steps as the last column tells." in figures
    assert "Each was measured once, over 3 to 34 steps." in readme
    assert "Each was measured once, over so few steps." in guide


@pytest.mark.parametrize("equal", [True, False, None])
def test_losses_are_told_as_they_were(measured: Path, equal: bool | None) -> None:
    found = json.loads(sets.file_of("training").read_text())
    found[1]["report"]["details"]["losses_equal"] = equal
    sets.file_of("training").write_text(json.dumps(found))
    pages.write(measured)
    for page in ("docs/figures.md", "README.md", "docs/tensorflow.md"):
        text = " ".join((measured / page).read_text().split())
        assert ("Losses are the same, bit for bit." in text) == (equal is True)
        assert ("Losses of alexnet 2 were not equal." in text) == (equal is False)


def test_copies_of_weights_by_publish_are_counted_or_told(measured: Path) -> None:
    """Others send from the parameters: ours is compared with them from there, where it can be."""
    pages.write(measured)
    for page in ("README.md", "CHANGELOG.md", "docs/figures.md"):
        text = " ".join((measured / page).read_text().split())
        assert "is not counted here, and takes one more copy of all the bytes." in text
    found = json.loads(sets.file_of("weights").read_text())
    for name, p50_us in (("tensorwire", 4e5), ("tensorwire-tcp", 8e5)):
        row = Row(name, "way", "published", 1 << 30, p50_us=p50_us)
        found[0]["report"]["rows"].append(Report("", "", {}, [row]).to_json()["rows"][0])
    sets.file_of("weights").write_text(json.dumps(found))
    pages.write(measured)
    figures = (measured / "docs" / "figures.md").read_text()
    assert "| shm, into the receivers' own memory | 200 ms | |" in figures
    counted = "| shm, the same, `publish()` counted | 400 ms | memcpy by both 100 ms (0.25x), MPICH"
    assert f"{counted} 400 ms (1.00x), NIXL 500 ms (1.25x)" in figures
    assert "| tcp, the same, `publish()` counted | 800 ms | memcpy by both" in figures
    readme = (measured / "README.md").read_text()
    assert "to two receivers | 400 ms | NIXL 500 ms, **1.25x**; gloo 1 s, **2.5x**" in readme
    assert "| the same, from when `publish()` has ended | 200 ms | |" in readme
    assert "with that counted, both begin at the same moment." in " ".join(readme.split())
    assert "is not counted here" not in readme + figures


def test_weights_are_measured_from_the_parameters_on() -> None:
    assert parameters(SETS["weights"].commands[0])["cases"] == "copied,adopted,published"


def test_tables_are_written_again_when_a_set_is_measured_again(measured: Path) -> None:
    pages.write(measured)
    once = (measured / "README.md").read_text()
    pages.write(measured)
    assert (measured / "README.md").read_text() == once
    faster = json.loads(sets.file_of("rpc").read_text())
    for row in faster[0]["report"]["rows"]:
        row["p50_us"] /= 2
    sets.file_of("rpc").write_text(json.dumps(faster))
    pages.write(measured)
    assert "| 8 B, p50 | 500 us | 5 us" in (measured / "README.md").read_text()


def test_what_was_not_measured_has_no_line(measured: Path) -> None:
    found = json.loads(sets.file_of("rpc").read_text())
    report = found[0]["report"]
    report["rows"] = [row for row in report["rows"] if row["contender"] not in ("nixl", "mpi")]
    sets.file_of("rpc").write_text(json.dumps(found))
    assert "NIXL" not in calls.calls()
    assert "pyzmq" in calls.calls()


def test_a_ratio_of_rounds_far_apart_is_about_that(measured: Path) -> None:
    found = json.loads(sets.file_of("peers").read_text())
    for row in found[0]["report"]["rows"]:
        row["p50_spread"] = 0.6 if row["contender"] == "ray" else 0.4
    sets.file_of("peers").write_text(json.dumps(found))
    pages.write(measured)
    figures = " ".join((measured / "docs" / "figures.md").read_text().split())
    assert "| Ray, shm | 500 us (about 50x) |" in figures
    assert "| Mooncake, tcp | 50 us (0.50x) |" in figures
    assert "About: the rounds of one of the two were apart by more than 50%" in figures


UNSTEADY = {
    "rpc": ("README.md", "| 8 B, p50 | 1 ms | 10 us (about **100x**) | 100 us (about 10x) |"),
    "sizes": ("docs/figures.md", "| 64 KiB | 1 ms | 10 us (about **100x**) | 100 us (about 10x) |"),
    "protobuf": ("docs/protobuf.md", "| 5 us (about **200x**) | 50 us (about 20x) |"),
    "tensorflow": ("docs/figures.md", "(CPU seconds) | about 12x (1/12) | about 3.0x (1/3.0) |"),
    "many": ("docs/tensorflow.md", "| 90 ms | 30 ms (about 3.0x) | 10 ms (about 9.0x) |"),
    "tf-grpc": ("docs/figures.md", "| 90 us | 10 us (about **9.0x**) | 30 us (about 3.0x) |"),
    "queue": ("README.md", "900 items/s | grpcio 90 items/s, about **10x**; `multiprocessing`"),
    "first": ("docs/figures.md", "tensorwire over tcp | 10 ms | 25 ms | about 2.5x |"),
}


@pytest.mark.parametrize("name", UNSTEADY)
def test_a_ratio_is_about_that_where_the_baseline_was_unsteady(measured: Path, name: str) -> None:
    page, line = UNSTEADY[name]
    found = json.loads(sets.file_of(name).read_text())
    base = ("grpcio", "grpc") if name != "first" else ("tensorwire-tcp",)
    for each in found:
        for row in each["report"]["rows"]:
            row["p50_spread"] = 0.6 if row["contender"] in base else 0.1
    sets.file_of(name).write_text(json.dumps(found))
    pages.write(measured)
    assert line in (measured / page).read_text()


def test_a_ratio_of_bandwidths_is_that_of_the_figures_shown(measured: Path) -> None:
    """Not of their times."""
    found = json.loads(sets.file_of("tf-grpc").read_text())
    found[1]["report"]["rows"][1]["gb_per_s"] *= 2
    sets.file_of("tf-grpc").write_text(json.dumps(found))
    pages.write(measured)
    figures = (measured / "docs" / "figures.md").read_text()
    assert "| bandwidth, uniform | 11.1 MB/s | 200 MB/s (**18x**) | 33.3 MB/s (3.0x) |" in figures


def test_pages_of_sets_have_all_that_their_files_have(measured: Path) -> None:
    keep("rpc", "peers")
    found = dict(records.pages())
    index = found[sets.FOLDER / "index.md"]
    assert "| [Calls, beside other libraries](rpc.md) | 2026-11-25 | 0123456789ab-dirty |" in index
    assert "| Queues | not yet | |" in index
    assert "\nqueue\n" not in index
    page = found[sets.FOLDER / "peers.md"]
    # Where others are ahead, and by how much; what is missing, and how to get it.
    assert "| mooncake tcp request 8 read | tensorwire tcp request 8 read |" in page
    assert "| 50 us | 100 us | 2.00x |" in page
    assert "- nixl over tcp: left out: nixl is not installed: pip install nixl\n" in page
    assert "| ray | shm | request | 64M | ordinary | yes | 1 | 500 us |" in page
    assert "The list of commands has others by now" not in page


def test_pages_are_written_with_a_picture_for_each_command(measured: Path) -> None:
    keep("tf-grpc", "remote")
    (sets.FOLDER / "queue-1.png").write_bytes(b"of a file that is gone")
    assert len(records.write()) == 3
    written = {path.name for path in sets.FOLDER.glob("*.png")}
    assert written == {
        f"{name}-{number}.png"
        for name, count in (("remote", 3), ("tf-grpc", 2))
        for number in range(1, count + 1)
    }
    page = (sets.FOLDER / "tf-grpc.md").read_text()
    assert "](tf-grpc-2.png)" in page.partition("## p2p-bandwidth")[2]


def keep(*names: str) -> None:
    for name in SETS.keys() - {*names}:
        sets.file_of(name).unlink(missing_ok=True)


def test_runs_of_a_page_have_titles_of_their_own() -> None:
    for path, text in records.pages():
        contents = re.findall(r"^- \[(.*)\]\(#(.*)\)$", text, re.MULTILINE)
        assert all(title and anchor for title, anchor in contents), path
        assert len({*contents}) == len(contents)
        pictures = re.findall(r"^!\[(.*)\]\(.*png\)$", text, re.MULTILINE)
        assert len({*pictures}) == len(pictures)
        if path.name == "training.md":
            assert any("batch size 1" in title for title, _ in contents)


def test_what_a_file_lacks_of_its_commands_is_told(measured: Path) -> None:
    keep("rpc")
    found = json.loads(sets.file_of("rpc").read_text())
    found[0]["command"] += " --rounds 1"
    sets.file_of("rpc").write_text(json.dumps(found))
    assert sets.outdated("rpc") == SETS["rpc"].commands
    page = dict(records.pages())[sets.FOLDER / "rpc.md"]
    listed, made = page.split("```sh\n")[1:]
    assert listed.startswith(SETS["rpc"].commands[0])
    assert made.startswith(found[0]["command"])


def test_a_file_of_another_schema_is_refused(measured: Path) -> None:
    found = json.loads(sets.file_of("rpc").read_text())
    row = found[0]["report"]["rows"][0]
    row["p50_ms"] = row.pop("p50_us")
    sets.file_of("rpc").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="missing or unknown: p50_ms, p50_us"):
        sets.load("rpc")
    found[0]["report"]["schema"] = 0
    sets.file_of("rpc").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="schema 0, and this version of tensorwire reads 1"):
        sets.load("rpc")


def test_a_set_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = (
        "TENSORWIRE_SPIN_US=0 tensorwire bench rpc --transport shm --sizes 8 --cases request "
        "--origin ordinary --reads no --no-limits --rounds 1 --seconds 0.001"
    )
    wrong = "tensorwire bench rpc --sizes 9"
    monkeypatch.setitem(SETS, "rpc", Set("Calls", "Quick ones.", [quick, wrong], 1))
    monkeypatch.setattr(sets, "FOLDER", tmp_path / "figures")
    with pytest.raises(SystemExit) as ended:
        sets.measure("rpc")
    assert ended.value.code == 2
    # What had ended before is kept.
    row = calls.call(Rows(sets.load("rpc")), "shm", "request", 8)
    assert row is not None
    assert row.ratio is not None
    assert row.ratio > 0
    (made,) = sets.kept("rpc")
    assert made["command"] == quick
    assert made["seconds"] >= 0
    assert sets.outdated("rpc") == [wrong]


def test_times_of_single_calls_and_many_digits_are_not_kept() -> None:
    report = {
        "details": {"rows": [{"samples_us": [[1.0]], "min_us": 1.23456789}], "servers": 2},
        "rows": [{"p50_us": 123456.789, "calls": 12345678}],
    }
    assert sets.trimmed(report) == {
        "details": {"rows": [{"min_us": 1.23457}], "servers": 2},
        "rows": [{"p50_us": 123457.0, "calls": 12345678}],
    }
