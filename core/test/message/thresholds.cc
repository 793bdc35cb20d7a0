// SPDX-License-Identifier: Apache-2.0
// Whose word about a link's thresholds counts.
#include "message/thresholds.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "base/text.h"

namespace tw::test {
namespace {

constexpr Profile kProfile{"any", Bulk::kPush, 8, 16, 32, 1, false, 64 << 10};

TEST_CASE("thresholds: an argument counts more than the environment, and that more than a table") {
  Settings settings;
  settings.eager_given = true;
  const Wanted table{100, 200, std::nullopt}, arguments{std::nullopt, std::nullopt, 300};
  Profile profile = kProfile;
  const Thresholds found = settle(profile, settings, table, arguments);
  CHECK(found.bytes == std::array<size_t, 3>{100, 16, 300});
  CHECK(found.sources == std::array{Source::kTable, Source::kEnvironment, Source::kArgument});
  CHECK(profile.coalesce_bytes == 100);
  CHECK(profile.eager_bytes == 16);
  CHECK(profile.chunk_bytes == 300);
}

TEST_CASE("thresholds: where nobody says any, they are the transport's") {
  Profile profile = kProfile;
  const Thresholds found = settle(profile, {}, {}, {});
  CHECK(found.bytes == std::array<size_t, 3>{8, 16, 32});
  CHECK(found.sources == std::array<Source, 3>{});
}

TEST_CASE("thresholds: no table makes chunks larger than the transport's, a user does") {
  const Wanted large{std::nullopt, std::nullopt, 1 << 20};
  Profile profile = kProfile;
  CHECK(settle(profile, {}, large, {}).bytes[2] == 64 << 10);
  CHECK(profile.chunk_bytes == 64 << 10);
  CHECK(settle(profile, {}, {}, large).bytes[2] == 1 << 20);
  CHECK(profile.chunk_bytes == 1 << 20);
  Settings settings;
  settings.chunk_given = true;
  profile = kProfile;
  profile.chunk_bytes = 2 << 20;
  CHECK(settle(profile, settings, large, {}).bytes[2] == 2 << 20);
}

TEST_CASE("thresholds: names lead back to them") {
  for (const auto threshold : {Threshold::kCoalesce, Threshold::kEager, Threshold::kChunk})
    CHECK(threshold_named(name_of(threshold)) == threshold);
  CHECK(threshold_named("eager") == std::nullopt);
}

TEST_CASE("thresholds: what a program asks for has to be one") {
  const auto ask = [](int64_t coalesce, int64_t eager, int64_t chunk) {
    return wanted_by(std::array<int64_t, kThresholds>{coalesce, eager, chunk});
  };
  REQUIRE(ask(-1, 0, -1).ok());
  CHECK(*ask(-1, 0, -1) == Wanted{std::nullopt, 0, std::nullopt});
  for (size_t i = 0; i < kThresholds; ++i) {
    const auto threshold = static_cast<Threshold>(i);
    CAPTURE(name_of(threshold));
    const setting::Size& sizes = sizes_of(threshold);
    std::array<int64_t, kThresholds> arguments{-1, -1, -1};
    for (const uint64_t good : {sizes.lowest, sizes.highest}) {
      arguments[i] = static_cast<int64_t>(good);
      const auto wanted = wanted_by(arguments);
      REQUIRE(wanted.ok());
      CHECK((*wanted)[i] == good);
    }
    std::vector<int64_t> wrongs{-2, std::numeric_limits<int64_t>::min(),
                                static_cast<int64_t>(sizes.highest) + 1};
    if (sizes.lowest != 0) wrongs.push_back(static_cast<int64_t>(sizes.lowest) - 1);
    for (const int64_t wrong : wrongs) {
      arguments[i] = wrong;
      const auto wanted = wanted_by(arguments);
      REQUIRE_FALSE(wanted.ok());
      CHECK(wanted.status().code() == Code::kInvalidArgument);
      CHECK(wanted.status().details() ==
            text({name_of(threshold), " is ", wrong, ", not a number from ", sizes.lowest, " to ",
                  sizes.highest}));
    }
  }
}

}  // namespace
}  // namespace tw::test
