// SPDX-License-Identifier: Apache-2.0
// The table of a link's calls, by calls that begin and end there.
#include <random>

#include "test/call/world.h"
#include "test/shortage.h"

namespace tw::test {
namespace {

// So many calls that nobody has begun to send.
std::vector<Ref<ClientCall>> begun(CallPort& port, size_t count) {
  std::vector<Ref<ClientCall>> calls;
  calls.reserve(count);
  while (calls.size() < count) {
    auto call = port.new_call(kForever);
    REQUIRE(call.ok());
    calls.push_back(std::move(*call));
  }
  return calls;
}

void end_in_any_order(CallPort& port, std::vector<Ref<ClientCall>> calls) {
  std::shuffle(calls.begin(), calls.end(), std::mt19937(5));
  for (size_t left = calls.size(); !calls.empty(); calls.pop_back()) {
    REQUIRE(port.calls() == left--);
    CHECK(calls.back()->cancel(Code::kCancelled, ""));
    REQUIRE(port.calls() == left);
  }
}

TEST_CASE("stream table: hundreds of calls, which end in any order") {
  House house(echo);
  Closing link(house.connect<ShmWay>());
  for (const size_t count : {size_t{1}, size_t{16}, size_t{17}, size_t{700}, size_t{3}})
    end_in_any_order(*link, begun(*link, count));
  CHECK(unary(*link, "/t/Empty", {}).code == Code::kOk);
}

TEST_CASE("stream table: calls of other numbers are found among them") {
  House house(echo);
  Closing link(house.connect<ShmWay>());
  const auto open = begun(*link, 100);
  const auto bytes = bytes_of(100);
  for (int i = 0; i < 200; ++i)
    REQUIRE(same(unary(*link, "/t/Echo", {out(bytes)}).segments.at(0), bytes));
  CHECK(link->calls() == open.size());
  link->close();
  for (const auto& call : open) {
    CHECK(eventually([&] { return call->ended(); }));
    CHECK(call->outcome().code == Code::kCancelled);
  }
  CHECK(link->calls() == 0);
}

TEST_CASE("stream table: without memory to grow it takes more calls all the same") {
  if (!kFailsOnDemand) return;
  House house(echo);
  Closing link(house.connect<ShmWay>());
  auto calls = begun(*link, 16);
  calls.reserve(17);
  {
    Failing failing(2);  // the first one is the call's own
    auto call = link->new_call(kForever);
    CHECK(failing.end());
    REQUIRE(call.ok());
    calls.push_back(std::move(*call));
  }
  end_in_any_order(*link, std::move(calls));
}

}  // namespace
}  // namespace tw::test
