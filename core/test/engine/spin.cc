// SPDX-License-Identifier: Apache-2.0
#include "engine/spin.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "test/not_tried.h"

namespace tw {
namespace {

// How often a wait looks whether something has come, when nothing does.
int looks(Spinner& spinner) {
  int count = 0;
  CHECK_FALSE(spinner([&] {
    ++count;
    return false;
  }));
  return count;
}

// Whether a wait polls at all that ends after so long.
bool ends_after(Spinner& spinner, Nanos time) {
  const Nanos end = now() + time;
  bool polled = false;
  return spinner([&] {
    const bool due = now() >= end;
    return std::exchange(polled, true) && due;
  });
}

TEST_CASE("spin: a link's first wait does not poll, the next ones do until they do not pay") {
  if (single_cpu()) return test::not_tried("there is one CPU only");
  Spinner spinner(10 * kMicrosecond);
  CHECK(looks(spinner) == 1);
  for (int i = 0; i < 16; ++i) CHECK(looks(spinner) > 1);
  // Ever more rarely.
  std::vector<int> polled;
  for (int i = 0; i < 600; ++i)
    if (looks(spinner) > 1) polled.push_back(i);
  REQUIRE(polled.size() >= 3);
  CHECK(polled.size() <= 8);
  for (size_t i = 1; i + 1 < polled.size(); ++i)
    CHECK(polled[i + 1] - polled[i] >= polled[i] - polled[i - 1]);
}

TEST_CASE("spin: where longer waits end in time, all are polled for as long") {
  if (single_cpu()) return test::not_tried("there is one CPU only");
  // Of a loaded machine: by far the longest, so that a thread that is put aside is in time, too.
  Spinner spinner(10 * kSecond);
  CHECK_FALSE(ends_after(spinner, 0));  // the first
  const Nanos longer = 2 * Spinner::kUsual;
  // The 16th finds it, unless the thread is put aside in that wait: then a later one.
  int in_a_row = 0;
  for (int i = 0; i < 256 && in_a_row < 17; ++i)
    in_a_row = ends_after(spinner, longer) ? in_a_row + 1 : 0;
  CHECK(in_a_row == 17);
}

TEST_CASE("spin: what is there at once is found without polling") {
  Spinner spinner(10 * kMicrosecond);
  int count = 0;
  CHECK(spinner([&] {
    ++count;
    return true;
  }));
  CHECK(count == 1);
}

}  // namespace
}  // namespace tw
