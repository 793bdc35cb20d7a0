// SPDX-License-Identifier: Apache-2.0
// The link is lost after every byte and every step: nothing stays lent, held, queued or waited for.
#include "base/shortage.h"
#include "test/message/fake_link.h"
#include "test/not_tried.h"
#include "test/sanitized.h"
#include "test/shortage.h"

namespace tw::test {
namespace {

constexpr Profile minute(Bulk bulk) { return {"fake", bulk, 4, 8, 16, 2}; }

std::vector<Sample> samples() {
  Random random(7);
  const auto part = [&](size_t size, Owner owner) { return Part{random.bytes(size), owner}; };
  std::vector<Sample> out;
  out.push_back({1,
                 random.bytes(3),
                 {part(4, Owner::kCaller), part(7, Owner::kCaller), part(0, Owner::kHold),
                  part(40, Owner::kCaller), part(9, Owner::kSmallBlock)}});
  out.push_back({2, {}, {part(50, Owner::kBlock), part(17, Owner::kCaller)}});
  out.push_back({1, {}, {part(20, Owner::kHold)}});
  out.push_back({1, {}, {part(1, Owner::kHold)}});
  return out;
}

// Runs the conversation until `budget` is spent, loses the link, and checks what is left. True
// when the conversation was over before.
bool lose_after(size_t budget, size_t piece, Bulk bulk, const Ref<Arena>& arena,
                const Ref<Pool>& pool) {
  INFO("lost after " << budget << " bytes and steps, bulk " << static_cast<int>(bulk)
                     << ", in pieces of " << piece);
  FakeLink link({minute(bulk)}, {minute(bulk)}, arena, pool);
  link.log = false;
  link.b.keep = true;
  uint32_t lent = 0;
  for (End* end : {&link.a, &link.b}) {
    for (const Sample& sample : samples()) {
      auto outgoing = end->post(sample);
      REQUIRE(outgoing.ok());
      lent += static_cast<bool>(*outgoing);
    }
    end->sender.credit(1, 100);
  }
  size_t spent = link.settle(budget, piece);
  // The user takes what has come, and the leases go home.
  link.b.kept.clear();
  spent += link.settle(budget - spent, piece);

  link.lose();
  for (End* end : {&link.a, &link.b}) {
    REQUIRE(end->unfinished.empty());
    REQUIRE(end->held == 0);
    REQUIRE(end->sender.leases() == 0);
    REQUIRE(end->sender.leased_bytes() == 0);
    REQUIRE_FALSE(end->sender.pending());
    std::array<iovec, 8> runs;
    REQUIRE(end->sender.gather(runs) == 0);
  }
  REQUIRE(link.a.event.sequence() + link.b.event.sequence() == lent);
  // What had come before is still handed up, and is no reason to blame the peer.
  for (End* end : {&link.a, &link.b})
    while (link.on_the_way_to(*end) != 0) FakeLink::check(link.receive(*end, piece));
  return spent < budget;
}

// Of bytes: a sanitizer makes each try slow.
constexpr size_t kStep = kSanitized ? 7 : 1;

TEST_CASE("loss: after any byte and step, both ends let everything go") {
  const auto arena = make_ref<Arena>(size_t{64} << 20, size_t{16} << 20);
  const auto pool = make_ref<Pool>(size_t{64} << 20);
  for (const Bulk bulk : {Bulk::kPush, Bulk::kMap, Bulk::kRead}) {
    for (const size_t piece : {kAll, size_t{11}}) {
      size_t budget = 0;
      while (!lose_after(budget, piece, bulk, arena, pool)) {
        budget += kStep;
        REQUIRE(arena->stats().blocks == 0);
        REQUIRE(pool->stats().used == 0);
      }
      CHECK(budget > 1000);
    }
  }
}

TEST_CASE("loss: a sender that goes frees the callers who wait for it") {
  Event event;
  Ref<Outgoing> waiting;
  const Bytes lent(100);
  {
    Sender sender(tiny(Bulk::kPush), [](Slab&) { return Status{}; });
    OutSegment segment{lent.data(), lent.size(), {}, {}, {}, {}};
    auto outgoing = sender.submit(1, {}, std::span(&segment, 1), &event);
    REQUIRE(outgoing.ok());
    waiting = *outgoing;
    REQUIRE(waiting);
    CHECK(waiting->borrowed());
  }
  CHECK_FALSE(waiting->borrowed());
  CHECK(event.sequence() == 1);
}

TEST_CASE("loss: who waits for a message is free, wherever the memory for its sending ran out") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  const Bytes lent(100 * 64);
  bool failed = false;
  Event event;
  Ref<Outgoing> waiting;
  {
    Sender sender(tiny(Bulk::kPush), [](Slab&) { return Status{}; });
    OutSegment segment{lent.data(), lent.size(), {}, {}, {}, {}};
    waiting = sender.submit(1, {}, std::span(&segment, 1), &event).value();
    REQUIRE(waiting);
    std::array<iovec, 8> room;
    // A place for the next chunk takes memory now and then.
    while (!failed && sender.pending()) {
      const size_t runs = sender.gather(room);
      size_t bytes = 0;
      for (size_t i = 0; i < runs; ++i) bytes += room[i].iov_len;
      Failing failing(1);
      failed = !has_memory_for([&] { sender.sent(bytes); });
    }
  }
  REQUIRE(failed);
  CHECK_FALSE(waiting->borrowed());
  CHECK(event.sequence() == 1);
}

TEST_CASE("loss: received memory outlives the machine that received it") {
  const auto arena = make_ref<Arena>(size_t{64} << 20, size_t{16} << 20);
  const auto pool = make_ref<Pool>(size_t{64} << 20);
  std::vector<InMessage> kept;
  const Sample sample{1,
                      Bytes(3, std::byte{1}),
                      {{Bytes(5, std::byte{2}), Owner::kHold},
                       {Bytes(100, std::byte{3}), Owner::kHold},
                       {Bytes(200, std::byte{4}), Owner::kBlock}}};
  {
    FakeLink link({tiny(Bulk::kMap)}, {tiny(Bulk::kMap)}, arena, pool);
    link.b.keep = true;
    REQUIRE(link.a.post(sample).ok());
    link.settle();
    kept = std::move(link.b.kept);
  }
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].header.front() == std::byte{1});
  CHECK(kept[0].segments.at(0).data[4] == std::byte{2});
  CHECK(kept[0].segments.at(1).data[99] == std::byte{3});
  CHECK(kept[0].segments.at(2).view() != nullptr);
  CHECK(kept[0].leased());
  CHECK(kept[0].segments.at(2).data[199] == std::byte{4});
  kept[0].segments.back() = {};
  CHECK_FALSE(kept[0].leased());
  kept.clear();
  CHECK(pool->stats().used == 0);
}

}  // namespace
}  // namespace tw::test
