// SPDX-License-Identifier: Apache-2.0
// The plan of a message against an independent model of AR-gRPC's decision rule.
#include "message/plan.h"

#include <vector>

#include "test/message/model.h"

namespace tw {
namespace {

using test::Group;
using test::groups_of;
using test::Random;

std::vector<Step> planned(const std::vector<size_t>& sizes, const Profile& profile) {
  std::vector<Step> steps;
  plan(
      static_cast<uint32_t>(sizes.size()), [&](uint32_t i) { return sizes[i]; },
      [&](uint32_t i) {
        return goes_in_bulk(sizes[i], profile.eager_bytes, profile.coalesce_bytes);
      },
      profile.coalesce_bytes, steps);
  return steps;
}

bool agree(const std::vector<Step>& steps, const std::vector<Group>& groups) {
  if (steps.size() != groups.size()) return false;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].first != groups[i].segments.front()) return false;
    if (steps[i].count != groups[i].segments.size()) return false;
    if (steps[i].bulk != groups[i].bulk) return false;
  }
  return true;
}

constexpr Profile kProfile{"test", Bulk::kPush, 8192, 16384, 1 << 20, 4};

TEST_CASE("plan: each threshold, one below, at and one above") {
  struct Case {
    std::vector<size_t> sizes;
    std::vector<Step> steps;
  };
  const std::vector<Case> cases = {
      {{}, {}},
      {{0}, {{0, 1, false}}},
      {{0, 0, 0}, {{0, 3, false}}},
      {{8191, 1}, {{0, 2, false}}},
      {{8192, 1}, {{0, 1, false}, {1, 1, false}}},
      {{8192, 0}, {{0, 2, false}}},
      {{8191, 2}, {{0, 1, false}, {1, 1, false}}},
      {{1, 8193, 1}, {{0, 1, false}, {1, 1, false}, {2, 1, false}}},
      {{16383}, {{0, 1, false}}},
      {{16384}, {{0, 1, false}}},
      {{16385}, {{0, 1, true}}},
      {{10, 16385, 10, 10}, {{0, 1, false}, {1, 1, true}, {2, 2, false}}},
      {{16385, 16385}, {{0, 1, true}, {1, 1, true}}},
      {{16385, 0}, {{0, 1, true}, {1, 1, false}}},
  };
  for (const Case& c : cases) {
    CAPTURE(&c - cases.data());
    const auto steps = planned(c.sizes, kProfile);
    REQUIRE(steps.size() == c.steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      CAPTURE(i);
      CHECK(steps[i].first == c.steps[i].first);
      CHECK(steps[i].count == c.steps[i].count);
      CHECK(steps[i].bulk == c.steps[i].bulk);
    }
  }
}

TEST_CASE("plan: a coalescing size above the eager one counts as eager, too") {
  const Profile profile{"test", Bulk::kPush, 100, 10, 1 << 20, 4};
  const auto steps = planned({50, 50, 100, 101}, profile);
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].count == 2);
  CHECK_FALSE(steps[1].bulk);
  CHECK(steps[2].bulk);
}

TEST_CASE("plan: without eager sends only empty segments are not bulk") {
  const Profile profile{"test", Bulk::kPush, 0, 0, 1 << 20, 4};
  const auto steps = planned({0, 0, 1, 0}, profile);
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].count == 2);
  CHECK(steps[1].bulk);
  CHECK_FALSE(steps[2].bulk);
}

TEST_CASE("plan: agrees with the model for random segments and thresholds") {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Random random(seed);
    Profile profile = kProfile;
    profile.coalesce_bytes = random.up_to(40);
    profile.eager_bytes = profile.coalesce_bytes + random.up_to(40);
    std::vector<size_t> sizes(random.up_to(60));
    const size_t largest = random.chance(50) ? profile.coalesce_bytes : 2 * profile.eager_bytes + 2;
    for (size_t& size : sizes) size = random.up_to(largest);
    INFO("seed " << seed);
    REQUIRE(agree(planned(sizes, profile), groups_of(sizes, profile)));
  }
}

TEST_CASE("plan: is appended to what is there") {
  std::vector<Step> steps{{7, 1, true}};
  plan(
      2, [](uint32_t) { return size_t{1}; }, [](uint32_t) { return false; },
      kProfile.coalesce_bytes, steps);
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].first == 7);
  CHECK(steps[1].count == 2);
}

TEST_CASE("plan: what is decided stays, whatever the thresholds are later") {
  std::vector<OutSegment> segments(3);
  segments[0].size = 100;
  segments[1].size = 1000;
  segments[2].size = 1000;
  segments[2].bulk = false;
  decide(segments, 500, 50);
  decide(segments, 5000, 50);
  CHECK(segments[0].bulk == false);
  CHECK(segments[1].bulk == true);
  CHECK(segments[2].bulk == false);
}

}  // namespace
}  // namespace tw
