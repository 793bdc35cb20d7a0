// SPDX-License-Identifier: Apache-2.0
// More memory is exposed at once than a link's control socket takes.
#include <set>

#include "test/access/one_sided.h"
#include "test/base/descriptors.h"
#include "test/call/helper.h"

namespace tw::test {
namespace {

constexpr uint64_t kBurst = 1000;
constexpr size_t kSmall = 64;

uint64_t noted() { return runtime().audit().count(Incident::kBudgetMapping); }

// Says how many of the regions it maps, and what is in the last of them, for each burst that it is
// told of.
TEST_CASE("helper: one-sided crowd" * doctest::skip()) {
  const auto link = follow(read_thing<Invite>(kFromTest));
  for (;;) {
    const auto first = read_thing<uint64_t>(kFromTest), last = read_thing<uint64_t>(kFromTest);
    if (first == 0) return;
    arrived(link->access(), last);
    uint64_t mapped = 0;
    for (uint64_t region = first; region <= last; ++region) mapped += link->access().mapped(region);
    uint64_t value = 0;
    (void)read(link->access(), last, 0, std::as_writable_bytes(std::span(&value, 1)));
    write_thing(kToTest, mapped);
    write_thing(kToTest, value);
  }
}

// Another process with a link to this one.
struct Crowd {
  explicit Crowd(OneSidedHouse<ShmWay>& house) : helper("one-sided crowd") {
    std::set<ServerPort*> before;
    for (const auto& port : ports_of(house.server())) before.insert(port.get());
    helper.tell(invite(house.invitation("shm")));
    REQUIRE(eventually([&] {
      for (const auto& port : ports_of(house.server()))
        if (!before.contains(port.get())) link = port;
      return link.get() != nullptr;
    }));
  }
  AccessPort& access() { return link->access(); }
  uint64_t expose(const Ref<SharedMemory>& memory, Rights rights = kAllRights) {
    auto region = access().expose(memory->data(), kSmall, rights, memory);
    REQUIRE_MESSAGE(region.ok(), region.status().details());
    return *region;
  }
  // How many of these it maps; in the last it has to find `value`.
  uint64_t maps(uint64_t first, uint64_t last, uint64_t value) {
    helper.tell(first);
    helper.tell(last);
    const auto mapped = helper.hear<uint64_t>();
    CHECK(helper.hear<uint64_t>() == value);
    return mapped;
  }
  void end() {
    helper.tell(uint64_t{0});
    helper.tell(uint64_t{0});
  }

  Helper helper;
  Ref<ServerPort> link;
};

Ref<SharedMemory> memory_with(uint64_t value) {
  auto memory = runtime().shared_memories().make(kSmall).value();
  std::memcpy(memory->data(), &value, sizeof value);
  return memory;
}

TEST_CASE("one-sided: a burst of regions is mapped by each of several peers") {
  OneSidedHouse<ShmWay> house;
  const uint64_t before = noted();
  Crowd peers[3] = {Crowd(house), Crowd(house), Crowd(house)};
  uint64_t first[3], last[3];
  const auto memory = memory_with(5);
  for (uint64_t i = 0; i < kBurst; ++i)
    for (size_t peer = 0; peer < 3; ++peer) {
      last[peer] = peers[peer].expose(memory, i % 2 ? kAllRights : kMayRead);
      if (i == 0) first[peer] = last[peer];
    }
  for (size_t peer = 0; peer < 3; ++peer) {
    CHECK(peers[peer].maps(first[peer], last[peer], 5) == kBurst);
    CHECK(peers[peer].access().link().alive());
    peers[peer].end();
  }
  CHECK(noted() == before);
}

TEST_CASE("one-sided: a peer that stands still maps a burst of regions once it goes on") {
  OneSidedHouse<ShmWay> house;
  const uint64_t before = noted();
  Crowd stopped(house), other(house);
  const auto memory = memory_with(7);
  const auto block = runtime().arena().allocate(kSmall).value();
  std::memset(block->data(), 0, kSmall);
  stopped.helper.stop();
  const uint64_t first = stopped.expose(memory);
  for (uint64_t i = 1; i < kBurst; ++i) {
    if (i % 2)
      stopped.expose(memory);
    else
      REQUIRE(stopped.access().expose(block->data(), kSmall, kMayRead, block).ok());
  }
  const uint64_t last = stopped.expose(memory, kMayRead);
  CHECK(last - first == kBurst);
  // Nobody else notices.
  const uint64_t begun = other.expose(memory);
  for (uint64_t i = 1; i < kBurst; ++i) other.expose(memory);
  CHECK(other.maps(begun, begun + kBurst - 1, 7) == kBurst);
  other.end();
  CHECK(unary(*house.connect<ShmWay>(), "/t/Echo", {out(bytes_of(10))}).code == Code::kOk);
  stopped.helper.go_on();
  CHECK(stopped.maps(first, last, 7) == kBurst + 1);
  stopped.end();
  CHECK(noted() == before);
}

}  // namespace
}  // namespace tw::test
