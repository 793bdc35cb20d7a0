// SPDX-License-Identifier: Apache-2.0
#include "collective/polled_store.h"

#include <doctest/doctest.h>

namespace tw::test {
namespace {

using collective::PolledStore;

// A value that is there at the n-th look. The looks before are told to have waited in vain, which
// takes them no time.
struct Looks final : PolledStore {
  explicit Looks(int when, Status until_then = {Code::kDeadlineExceeded, "nobody has set it"})
      : there(when), missing(std::move(until_then)) {}
  Status set(const std::string&, std::span<const std::byte>) override { return {}; }
  Result<std::vector<std::byte>> look(const std::string& name, Nanos time) override {
    CHECK(name == "key");
    CHECK(time >= 0);
    CHECK(time <= kSlice);
    if (++looks == there) return std::vector<std::byte>(3, std::byte{7});
    return missing;
  }

  int looks = 0;
  const int there;
  const Status missing;
};

TEST_CASE("polled store: it looks until the value is there") {
  Looks store(3);
  const auto value = store.get("key", {kForever, nullptr, nullptr});
  REQUIRE(value.ok());
  CHECK(value->size() == 3);
  CHECK(store.looks == 3);
}

TEST_CASE("polled store: without time it looks once") {
  Looks there(1), missing(2);
  CHECK(there.get("key", {0, nullptr, nullptr}).ok());
  const auto value = missing.get("key", {now(), nullptr, nullptr});
  REQUIRE_FALSE(value.ok());
  CHECK(value.status().code() == Code::kDeadlineExceeded);
  CHECK(value.status().details() == "nobody has set it");
  CHECK(missing.looks == 1);
}

TEST_CASE("polled store: between looks it asks whether it is interrupted") {
  Looks store(9);
  int asked = 0;
  const auto twice = [](void* times) { return static_cast<int>(++*static_cast<int*>(times) == 2); };
  const auto value = store.get("key", {kForever, twice, &asked});
  REQUIRE_FALSE(value.ok());
  CHECK(value.status().code() == Code::kCancelled);
  CHECK(store.looks == 2);
  CHECK(asked == 2);
}

TEST_CASE("polled store: an error of the store's own ends the wait") {
  Looks store(9, {Code::kUnavailable, "the store has gone"});
  const auto value = store.get("key", {kForever, nullptr, nullptr});
  REQUIRE_FALSE(value.ok());
  CHECK(value.status().details() == "the store has gone");
  CHECK(store.looks == 1);
}

}  // namespace
}  // namespace tw::test
