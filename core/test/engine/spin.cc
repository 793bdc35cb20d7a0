// SPDX-License-Identifier: Apache-2.0
#include "engine/spin.h"

#include <doctest/doctest.h>

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

TEST_CASE("spin: a link's first wait does not poll, the next ones do until they do not pay" *
          doctest::skip(single_cpu())) {
  Spinner spinner(10 * kMicrosecond);
  CHECK(looks(spinner) == 1);
  for (int i = 0; i < 16; ++i) CHECK(looks(spinner) > 1);
  int polled = 0;
  for (int i = 0; i < 32; ++i) polled += looks(spinner) > 1;
  CHECK(polled == 2);
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
