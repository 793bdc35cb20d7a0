// SPDX-License-Identifier: Apache-2.0
// What a transport must do whose large segments are fetched (Bulk::kRead).
#include <set>

#include "test/transport/pair.h"

namespace tw::test {
namespace {

constexpr size_t kSlab = 1 << 20;

Ref<Slab> slab_of_pattern(uint32_t index, uint32_t generation = 1) {
  auto slab = Slab::make(index, generation, kSlab);
  REQUIRE(slab.ok());
  for (size_t i = 0; i < kSlab; ++i) (*slab)->base()[i] = pattern(i);
  return std::move(*slab);
}

bool is_pattern(std::span<const std::byte> bytes, uint64_t at) {
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != pattern(at + i)) return false;
  return true;
}

// The peer knows of it once it has received what was sent afterwards.
void share_and_tell(TransportPair& pair, Slab& slab) {
  REQUIRE(pair.a->share(slab).ok());
  REQUIRE(send_pattern(*pair.a, 0, 1) == 1);
  while (receive_pattern(*pair.b, 0, 1) == 0)
    REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
}

// What has ended, when nobody else looks; waits for `count` of them.
std::vector<Completion> wait_ended(Transport& transport, size_t count) {
  std::vector<Completion> all;
  while (all.size() < count) {
    Completion some[3];
    const size_t n = transport.completed(some);
    for (size_t i = 0; i < n; ++i) all.push_back(std::move(some[i]));
    if (n == 0) REQUIRE(transport.sleep(false, patience()) == Wake::kReady);
  }
  return all;
}

TEST_CASE_TEMPLATE("fetching: every byte of every fetch, whatever their number and order", Maker,
                   TENSORWIRE_READERS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  const auto slab = slab_of_pattern(3);
  share_and_tell(pair, *slab);
  constexpr size_t kFetches = 60, kLength = 9'001;
  std::vector<std::vector<std::byte>> to(kFetches, std::vector<std::byte>(kLength));
  std::set<uint64_t> ended;
  size_t started = 0, full = 0;
  while (ended.size() < kFetches) {
    if (started < kFetches) {
      const auto began = pair.b->fetch(started, {3, 1, started * 100, kLength}, to[started].data());
      REQUIRE(began.ok());
      if (*began) {
        ++started;
        continue;
      }
      ++full;
    }
    for (const Completion& one : wait_ended(*pair.b, 1)) {
      CHECK(one.status.ok());
      REQUIRE(one.id < started);
      REQUIRE(ended.insert(one.id).second);
      CHECK(is_pattern(to[one.id], one.id * 100));
    }
  }
  Completion none[1];
  CHECK(pair.b->completed(none) == 0);
  CHECK(pair.a->completed(none) == 0);
}

TEST_CASE_TEMPLATE(
    "fetching: bytes that are sent and bytes that are fetched do not wait for each "
    "other",
    Maker, TENSORWIRE_READERS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  const auto slab = slab_of_pattern(0);
  share_and_tell(pair, *slab);
  const uint64_t sent = fill(*pair.a);
  std::vector<std::byte> to(1000);
  REQUIRE(*pair.b->fetch(7, {0, 1, 500, 1000}, to.data()));
  CHECK(wait_ended(*pair.b, 1)[0].id == 7);
  CHECK(is_pattern(to, 500));
  uint64_t received = 0;
  while (received < sent) received += receive_pattern(*pair.b, received, 8192);
}

TEST_CASE_TEMPLATE("fetching: memory that was not shared is refused", Maker, TENSORWIRE_READERS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  const auto slab = slab_of_pattern(3, 7);
  share_and_tell(pair, *slab);
  CHECK(pair.a->share(*slab).ok());  // again: known already
  std::byte to[8];
  for (const RegionRef& wrong :
       {RegionRef{2, 7, 0, 8}, RegionRef{3, 6, 0, 8}, RegionRef{3, 8, 0, 8},
        RegionRef{3, 7, kSlab, 8}, RegionRef{3, 7, kSlab - 7, 8},
        RegionRef{3, 7, ~uint64_t{0} - 3, 8}, RegionRef{~uint32_t{0}, 7, 0, 8}}) {
    CAPTURE(wrong.slab);
    CAPTURE(wrong.generation);
    CAPTURE(wrong.offset);
    const auto refused = pair.b->fetch(1, wrong, to);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code() == Code::kInternal);
  }
  // It was shared by one end only.
  CHECK_FALSE(pair.a->fetch(1, {3, 7, 0, 8}, to).ok());
  REQUIRE(*pair.b->fetch(1, {3, 7, kSlab - 8, 8}, to));
  CHECK(wait_ended(*pair.b, 1)[0].status.ok());
  CHECK(is_pattern(to, kSlab - 8));
}

TEST_CASE_TEMPLATE("fetching: a completion wakes whoever sleeps, and the background", Maker,
                   TENSORWIRE_READERS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  const auto slab = slab_of_pattern(0);
  share_and_tell(pair, *slab);
  Watched watched(*pair.b);
  std::vector<std::byte> to(300'000);
  for (uint64_t round = 0; round < 50; ++round) {
    REQUIRE(*pair.b->fetch(round, {0, 1, round, to.size()}, to.data()));
    Completion one[1];
    size_t ended = 0;
    const Nanos end = patience();
    while (ended == 0) {
      REQUIRE(now() < end);
      ended = pair.b->completed(one);
      if (ended != 0) break;
      if (round % 2) {
        REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
      } else {
        pair.b->arm(false);
        REQUIRE(watched.wait());
        pair.b->disarm();
      }
    }
    CHECK(one[0].id == round);
    CHECK(is_pattern(to, round));
  }
}

TEST_CASE_TEMPLATE("fetching: after revoke() nothing is read or written any more", Maker,
                   TENSORWIRE_READERS) {
  TENSORWIRE_NEEDS(Maker);
  for (const bool by_owner : {false, true}) {
    CAPTURE(by_owner);
    TransportPair pair = Maker::make();
    const auto slab = slab_of_pattern(0);
    share_and_tell(pair, *slab);
    std::vector<std::vector<std::byte>> to;
    for (uint64_t id = 0; id < 30; ++id) {
      to.emplace_back(kSlab);
      const auto began = pair.b->fetch(id, {0, 1, 0, kSlab}, to.back().data());
      REQUIRE(began.ok());
      if (!*began) break;
    }
    (by_owner ? pair.a : pair.b)->revoke();
    const auto as_it_was = to;
    std::fill_n(slab->base(), kSlab, std::byte{0});  // what a late fetch would bring along
    std::byte more[8];
    const auto late = pair.b->fetch(99, {0, 1, 0, 8}, more);
    if (!by_owner) CHECK(late.status().code() == Code::kUnavailable);
    (by_owner ? pair.a : pair.b).reset();
    CHECK(to == as_it_was);
  }
}

}  // namespace
}  // namespace tw::test
