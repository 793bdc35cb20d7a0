# SPDX-License-Identifier: Apache-2.0
"""How long the plugin believes what it knows of the way to a worker, and who asks anew."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.tensorflow.unit import compiled

PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "belief.h"

using tensorwire::Belief;

// Each argument: a second of the clock; what is known when somebody needs the way, which prints
// what is to be done; or what came of asking.
int main(int count, char** words) {
  const std::map<std::string, Belief::Known> known{{"nothing", Belief::Known::kNothing},
                                                   {"way", Belief::Known::kWay},
                                                   {"refusal", Belief::Known::kRefusal}};
  Belief belief;
  Belief::Clock::time_point now{std::chrono::hours(1)};
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto at = known.find(word);
    if (at != known.end()) {
      const Belief::Advice advice = belief.consult(at->second, now);
      std::printf("%s%s\\n", advice.use ? "use" : "wait", advice.ask ? " ask" : "");
    } else if (word == "linked") {
      belief.linked(Belief::Clock::time_point::max());
    } else if (word == "stands-in") {
      belief.linked(now + std::chrono::seconds(60));
    } else if (word == "declined") {
      belief.declined(now);
    } else if (word == "unreached") {
      belief.unreached(now);
    } else if (word == "unanswered") {
      belief.unanswered(now);
    } else {
      now = Belief::Clock::time_point(std::chrono::hours(1) +
                                      std::chrono::seconds(std::atoi(words[i])));
    }
  }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("belief"), "belief.cc", PROGRAM)


def advice(program: Path, events: str) -> list[str]:
    done = subprocess.run(
        [program, *events.split()], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("nothing nothing nothing", ["wait ask", "wait", "wait"]),
        ("nothing linked way 999999 way", ["wait ask", "use", "use"]),
        # A link that has died.
        (
            "nothing linked way nothing nothing linked way",
            ["wait ask", "use", "wait ask", "wait", "use"],
        ),
        # A link that stands in for another goes on being used, and one asks for the other.
        ("stands-in 59 way 60 way way 99 way", ["use", "use ask", "use", "use"]),
        ("stands-in 60 way unanswered way 61 way", ["use ask", "use", "use ask"]),
        ("stands-in 60 way linked 9999 way", ["use ask", "use"]),
        # It has died while it was asked for the other: that answer is waited for.
        ("stands-in 60 way nothing linked way", ["use ask", "wait", "use"]),
        # gRPC, because the worker has nothing else.
        (
            "declined 29 way 30 way way declined 59 way 60 way",
            ["use", "use ask", "use", "use", "use ask"],
        ),
        # A transport is required that cannot be had: whoever comes later waits for better news.
        ("declined 29 refusal 30 refusal refusal", ["use", "wait ask", "wait"]),
    ],
)
def test_what_is_done(program: Path, events: str, expected: list[str]) -> None:
    assert advice(program, events) == expected


@pytest.mark.parametrize(
    ("before", "seconds"),
    [
        ("unreached", 30),
        ("unreached unreached", 60),
        ("unreached unreached unreached", 120),
        ("unreached " * 4, 240),
        ("unreached " * 5, 300),
        ("unreached " * 40, 300),
        ("unreached " * 5 + "linked unreached", 30),
        ("unreached " * 5 + "declined unreached", 30),
        ("unreached unanswered unreached", 60),
        ("unreached " * 5 + "unanswered", 1),
    ],
)
def test_how_long_it_is_believed(program: Path, before: str, seconds: int) -> None:
    then = f"{seconds - 1} way {seconds} way way"
    assert advice(program, f"{before} {then}") == ["use", "use ask", "use"]
