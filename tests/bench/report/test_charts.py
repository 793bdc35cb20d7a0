# SPDX-License-Identifier: Apache-2.0
"""What pictures are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.bench.report import made

from tensorwire.bench.report import charts, picture, ratios, timelines
from tensorwire.bench.report.charts import METRICS
from tensorwire.bench.report.comparison import compare
from tensorwire.bench.report.picture import COLOURS, PLAIN, Chart
from tensorwire.bench.report.runs import Run

BY_FIELD = {metric.field: metric for metric in METRICS}
RUN = made.run(
    [
        *made.sweep("grpcio", 3),
        *made.sweep("tensorwire"),
        *made.sweep("tensorwire", 0.5, origin="published"),
        *made.sweep("memcpy", 0.1),
    ]
)


def of(run: Run, field: str) -> list[Chart]:
    return [*charts.draw(run, BY_FIELD[field])]


def schemes() -> Run:
    """As of a bench whose cases are schemes, each with its own size."""
    return made.run(
        [
            each
            for scheme, size in (("uniform", 1000), ("random", 1500), ("skew", 6_000_000))
            for contender in ("grpcio", "tensorwire")
            for each in made.sweep(contender, 1, (size,), case=scheme, payload="serialized")
        ]
    )


def test_latency_and_bandwidth_over_size_are_lines_on_logarithmic_axes() -> None:
    for field in ("p50_us", "p99_us", "gb_per_s", "cpu_s_per_gb"):
        (chart,) = of(RUN, field)
        layout = chart.figure["layout"]
        assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("log", "log")
        assert layout["xaxis"]["ticktext"] == ["8 B", "64 KiB", "1 MiB"]
        assert [trace["type"] for trace in chart.figure["data"]] == ["scatter"] * 4
    (chart,) = of(RUN, "p50_us")
    ours = next(each for each in chart.figure["data"] if each["name"] == "tensorwire tcp")
    assert ours["x"] == [8, 65536, 1 << 20]
    assert ours["y"] == pytest.approx([10, 15.6, 100], rel=0.01)
    assert ours["customdata"][2] == "1 MiB: 100 us"


def test_marks_go_from_the_least_round_to_the_largest() -> None:
    (chart,) = of(RUN, "p50_us")
    for trace in chart.figure["data"]:
        error = trace["error_y"]
        for middle, up, down in zip(trace["y"], error["array"], error["arrayminus"], strict=True):
            assert middle + up == pytest.approx(1.02 * middle)
            assert middle - down == pytest.approx(0.98 * middle)
    (chart,) = of(made.run(made.sweep("zmq"), rounds=False), "p50_us")
    assert "error_y" not in chart.figure["data"][0]


def test_schemes_are_bars() -> None:
    (chart,) = of(schemes(), "p50_us")
    assert [trace["type"] for trace in chart.figure["data"]] == ["bar", "bar"]
    assert [trace["name"] for trace in chart.figure["data"]] == ["grpcio grpc", "tensorwire tcp"]
    assert chart.title == "Latency: uniform, random, skew"
    assert chart.figure["data"][0]["x"] == [
        "uniform<br>serialized<br>1000 B",
        "random<br>serialized<br>1.46 KiB",
        "skew<br>serialized<br>5.72 MiB",
    ]
    assert chart.figure["data"][0]["customdata"][0] == "uniform serialized 1000 B: 10.1 us"
    assert "tensorwire tcp: 10.1 us at serialized 1000 B," in chart.words
    assert chart.figure["layout"]["yaxis"]["type"] == "linear"


def test_ratios_have_a_line_at_one() -> None:
    (chart,) = of(RUN, "ratio")
    (line,) = chart.figure["layout"]["shapes"]
    assert (line["y0"], line["y1"], line["xref"]) == (1, 1, "paper")


def test_cases_and_receivers_that_read_have_pictures_of_their_own() -> None:
    rows = [
        *made.sweep("zmq", case="pull"),
        *made.sweep("zmq"),
        *made.sweep("zmq", 2, reads=True),
    ]
    assert [chart.title for chart in of(made.run(rows), "p50_us")] == [
        "Latency: pull",
        "Latency: request, not read",
        "Latency: request, the receiver reads",
    ]


def test_what_is_only_announced_is_marked() -> None:
    sizes = (8, 65536, 1 << 20)
    lent = {"transport": "shm", "origin": "published"}
    run = made.run([*made.sweep("grpcio", 3), *made.sweep("tensorwire", 1, sizes, **lent)])
    (chart,) = of(run, "p50_us")
    theirs, ours = chart.figure["data"]
    assert theirs["marker"]["symbol"] == ["circle-open"] * 3
    assert ours["marker"]["symbol"] == ["circle", "circle-open", "circle-open"]
    assert [each.endswith(", only announced") for each in ours["customdata"]] == [
        *(False, True, True)
    ]
    assert "100 us at 1 MiB, only announced." in chart.words
    (chart,) = of(made.run(made.sweep("tensorwire", 1, (1 << 20,), **lent)), "p50_us")
    assert chart.figure["data"][0]["marker"]["opacity"] == [charts.PALE]
    (chart,) = of(made.run(made.sweep("tensorwire", 1, (1 << 20,), reads=True, **lent)), "p50_us")
    assert chart.figure["data"][0]["marker"]["opacity"] == [1]


def test_what_says_nothing_new_has_no_picture() -> None:
    """Calls of one caller are its latency once more, CPU of a call that for each GB."""
    assert of(RUN, "calls_per_s") == []
    assert of(RUN, "cpu_s_per_call") == []
    assert of(RUN, "items_per_s") == []
    assert len(of(made.run(made.sweep("zmq", callers=2)), "calls_per_s")) == 1
    empty = made.run(made.sweep("zmq", 1, (0,)))
    assert [len(of(empty, name)) for name in ("gb_per_s", "cpu_s_per_gb", "cpu_s_per_call")] == [
        *(0, 0, 1)
    ]


def test_the_figure_by_which_a_suite_compares_has_a_picture() -> None:
    """Items in a second of a queue with one producer are no latency once more."""
    run = made.run(made.sweep("zmq", 1, (1 << 20,)), figure="calls_per_s")
    (chart,) = of(run, "calls_per_s")
    assert chart.figure["data"][0]["y"] == pytest.approx([1e4])


def test_what_has_no_size_in_a_sweep_has_bars() -> None:
    rows = made.run([*made.sweep("zmq"), *made.sweep("zmq", 1, (0,))])
    (chart,) = of(rows, "cpu_s_per_call")
    assert [trace["type"] for trace in chart.figure["data"]] == ["bar"]


def test_words_tell_what_a_picture_shows() -> None:
    (chart,) = of(RUN, "p50_us")
    assert "tensorwire tcp: 10 us at 8 B, 15.6 us at 64 KiB, 100 us at 1 MiB." in chart.words
    (chart,) = of(made.run(made.sweep("zmq", 1, (0, 8, 16))), "p50_us")
    assert "What has no payload is in the table only." in chart.words
    many = [each for number in range(25) for each in made.sweep(f"c{number}", 1, (8, 16))]
    (chart,) = of(made.run(many), "p50_us")
    assert len(chart.figure["data"]) == picture.MAX_SERIES
    assert "5 more are in the table only." in chart.words


def test_a_contender_looks_the_same_in_all_pictures_and_unlike_others() -> None:
    rows = [
        *made.sweep("grpcio"),
        *made.sweep("memcpy"),
        *(each for number in range(12) for each in made.sweep(f"c{number}")),
    ]
    run = made.run(rows)
    looks: dict[str, set[Any]] = {}
    for field in ("p50_us", "gb_per_s"):
        for trace in of(run, field)[0].figure["data"]:
            (symbol,) = {*trace["marker"]["symbol"]}
            look = (trace["line"]["color"], trace["line"]["dash"], symbol)
            looks.setdefault(trace["name"], set()).add(look)
    assert all(len(each) == 1 for each in looks.values())
    assert len(set.union(*looks.values())) == 14
    assert looks["grpcio grpc"] == {(PLAIN, "solid", "circle-open")}


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def styled(name: str) -> list[str]:
    """A colour of the page, in light and in dark."""
    style = (Path(charts.__file__).parent / "style.css").read_text()
    return re.findall(rf"--{name}: (#\w+);", style)


@pytest.mark.parametrize("colour", [*COLOURS, PLAIN])
def test_colours_stand_out_on_light_and_dark_paper(colour: str) -> None:
    """At least 3:1, as WCAG 2.2 asks of graphics (1.4.11)."""
    papers = styled("paper")
    assert len(papers) == 2
    for paper in papers:
        assert contrast(colour, paper) >= 3


def test_text_stands_out_on_light_and_dark_paper() -> None:
    for name in ("ink", "quiet"):
        for ink, paper in zip(styled(name), styled("paper"), strict=True):
            assert contrast(ink, paper) >= 4.5


def sampled(*samples: dict[str, Any]) -> Run:
    return made.run(made.sweep("zmq"), samples=list(samples))


def test_resources_over_time_are_together_by_case_and_resource() -> None:
    seconds = [0, 1, 2]
    run = sampled(
        *(
            {
                "contender": contender,
                "transport": "tcp",
                "case": "uniform",
                "seconds": seconds,
                "figures": {"CPU, cores": [0.5, 1.5, 1], "memory, MiB": [1, 2, 3]},
            }
            for contender in ("zmq", "tensorwire")
        )
    )
    cpu, memory = timelines.draw(run)
    assert (cpu.title, memory.title) == ("CPU, cores: uniform", "memory, MiB: uniform")
    assert [trace["name"] for trace in cpu.figure["data"]] == ["zmq tcp", "tensorwire tcp"]
    assert cpu.figure["data"][0]["x"] == seconds
    assert cpu.figure["data"][0]["y"] == [0.5, 1.5, 1.0]
    assert "zmq tcp: from 0.5 to 1.5 in 2 seconds." in cpu.words


def test_long_timelines_are_thinned_and_empty_ones_are_none() -> None:
    many = {"contender": "zmq", "seconds": [*range(10_000)], "figures": {"a": [1] * 10_000}}
    (chart,) = timelines.draw(sampled(many))
    assert len(chart.figure["data"][0]["x"]) == timelines.MAX_POINTS
    (chart,) = timelines.draw(sampled({"contender": "a", "seconds": [], "figures": {"b": []}}))
    assert chart.figure["data"][0]["x"] == []


def test_changes_with_their_intervals() -> None:
    old, new = (
        made.run([*made.sweep("grpcio", 3), *made.sweep("tensorwire", factor)]) for factor in (1, 2)
    )
    chart = ratios.draw(compare(old, new))
    (slower,) = chart.figure["data"]
    assert slower["name"] == "slower"
    assert slower["x"] == pytest.approx([0.5] * 3)
    assert all(each > 0 for each in (*slower["error_x"]["array"], *slower["error_x"]["arrayminus"]))
    assert "tensorwire tcp request 8: 0.50x, slower." in chart.words


def texts(found: Any) -> Sequence[str]:
    if isinstance(found, dict):
        return [text for each in found.values() for text in texts(each)]
    if isinstance(found, list):
        return [text for each in found for text in texts(each)]
    return [found] if isinstance(found, str) else []


def test_plotly_reads_no_markup_of_a_stranger() -> None:
    more: dict[str, Any] = {
        "case": made.HOSTILE,
        "payload": made.HOSTILE,
        "transport": made.HOSTILE,
    }
    swept = made.run([*made.sweep(made.HOSTILE, **more)])
    single = made.run([*made.sweep(made.HOSTILE, 1, (8,), **more)])
    found = [chart for run in (swept, single) for chart in of(run, "p50_us")]
    figures = {made.HOSTILE: [1]}
    samples = {"contender": made.HOSTILE, "case": made.HOSTILE, "seconds": [1], "figures": figures}
    found += [*timelines.draw(sampled(samples)), ratios.draw(compare(swept, swept))]
    assert len(found) == 4
    for chart in found:
        said = [text for text in texts(chart.figure) if "alert" in text]
        assert said
        assert not [text for text in said if "<" in text.replace("<br>", "")]


def test_plotly_knows_every_property() -> None:
    from plotly import graph_objects  # takes a second

    runs = [RUN, schemes(), made.run(made.sweep("zmq"))]
    found = [chart for run in runs for field in BY_FIELD for chart in of(run, field)]
    samples = {"contender": "zmq", "seconds": [0, 1], "figures": {"a": [1, 2]}}
    found += [*timelines.draw(sampled(samples)), ratios.draw(compare(RUN, RUN))]
    for chart in found:
        graph_objects.Figure(chart.figure)  # ValueError for one that it does not know
