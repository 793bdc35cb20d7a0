// SPDX-License-Identifier: Apache-2.0
// Tagged messages between the two ends of a link, over each transport.
#include "tagged/port.h"

#include <random>

#include "base/shortage.h"
#include "test/call/world.h"
#include "test/not_tried.h"
#include "test/shortage.h"

namespace tw::test {
namespace {

// A client's link and the server's end of it.
template <class Way>
struct Ends {
  Ends() : client(house.template connect<Way>()) {
    auto call = start(*client, "/t/Meet");
    const auto served = calls.take();
    server = Ref<CallPort>::share(&served->port());
    finish(*served);
    call->cancel(Code::kCancelled, "");
  }

  TaggedPort& here() { return client->tagged(); }
  TaggedPort& there() { return server->tagged(); }

  Slot<Ref<ServerCall>> calls;
  House house{[this](Ref<ServerCall> call) {
                calls.put(std::move(call));
                return Ref<ServerCall>{};
              },
              1};
  Closing client;
  Ref<CallPort> server;
};

bool send(TaggedPort& port, uint64_t tag, std::vector<OutSegment> segments) {
  return sent(port.send(tag, segments, {patience()}));
}

bool send(TaggedPort& port, uint64_t tag, std::span<const std::byte> bytes) {
  return send(port, tag, std::vector{out(bytes)});
}

// How it ended, without a status of doctest's own in between.
Status ended(TaggedPort& port, TaggedReceive& receive) {
  REQUIRE(port.wait(receive, {patience()}) == Ended::kDone);
  return receive.status();
}

InMessage take(TaggedPort& port, TaggedReceive& receive) {
  const Status how = ended(port, receive);
  REQUIRE_MESSAGE(how.ok(), how.details());
  InMessage message;
  receive.take(message);
  return message;
}

InMessage next(TaggedPort& port, uint64_t tag) {
  auto receive = port.receive(tag);
  REQUIRE(receive.ok());
  return take(port, **receive);
}

class Memory final : public RefCounted {
 public:
  Memory(size_t size, std::atomic<int>& live) : bytes(size), live_(live) { ++live_; }
  ~Memory() override { --live_; }
  std::vector<std::byte> bytes;

 private:
  std::atomic<int>& live_;
};

Ref<PostedBuffer> memory_of(size_t size, std::atomic<int>& live) {
  auto memory = make_ref<Memory>(size, live);
  std::byte* const data = memory->bytes.data();
  return make_ref<PostedBuffer>(data, size, std::move(memory));
}

// 1 MiB that its link may read after its test.
OutSegment lent(std::atomic<int>& live) {
  auto memory = make_ref<Memory>(1 << 20, live);
  OutSegment segment = out(memory->bytes);
  segment.hold = std::move(memory);
  return segment;
}

TEST_CASE_TEMPLATE("tagged: messages of one tag come in order, from either end, of any size", Way,
                   TENSORWIRE_LINKS) {
  Ends<Way> ends;
  const size_t sizes[] = {0, 1, 8, 700, 8192, 20'000, 300'000, 3'000'000};
  for (TaggedPort* from : {&ends.here(), &ends.there()}) {
    TaggedPort& to = from == &ends.here() ? ends.there() : ends.here();
    std::thread sender([&] {
      for (uint32_t i = 0; i < 40; ++i) CHECK(send(*from, i % 3, bytes_of(sizes[i % 8], i)));
    });
    // In another order than they were sent.
    for (const uint64_t tag : {2, 0, 1}) {
      for (uint32_t i = static_cast<uint32_t>(tag); i < 40; i += 3) {
        const InMessage message = next(to, tag);
        REQUIRE(message.segments.size() == 1);
        CHECK(same(message.segments[0], bytes_of(sizes[i % 8], i)));
      }
    }
    sender.join();
    CHECK(to.waiting() == 0);
  }
}

TEST_CASE_TEMPLATE("tagged: a message that has begun leaves, while its sender waits for nothing",
                   Way, TENSORWIRE_LINKS) {
  Ends<Way> ends;
  const auto bytes = bytes_of(64 << 20, 1);  // more than any socket takes at once
  std::vector<OutSegment> segments{out(bytes)};
  auto begun = ends.here().begin(1, segments, {patience()});
  REQUIRE(begun.ok());
  REQUIRE(begun->has_value());
  CHECK(same(next(ends.there(), 1).segments.at(0), bytes));
  CHECK_FALSE(ends.here().withdraw(**begun));
}

TEST_CASE_TEMPLATE("tagged: segments of a message stay apart, and become one in given memory", Way,
                   TENSORWIRE_LINKS) {
  std::atomic<int>& live = tally();
  {
    Ends<Way> ends;
    const auto a = bytes_of(10, 1), b = bytes_of(400'000, 2), c = bytes_of(5000, 3);
    REQUIRE(send(ends.here(), 7, std::vector{out(a), out(b), out(c)}));
    const InMessage apart = next(ends.there(), 7);
    REQUIRE(apart.segments.size() == 3);
    CHECK(same(apart.segments[0], a));
    CHECK(same(apart.segments[1], b));
    CHECK(same(apart.segments[2], c));
    REQUIRE(send(ends.here(), 7, std::vector{out(a), out(b), out(c)}));
    const auto into = memory_of(500'000, live);
    const auto receive = ends.there().receive(7, into);
    REQUIRE(receive.ok());
    const InMessage together = take(ends.there(), **receive);
    CHECK(together.payload_bytes == 405'010);
    REQUIRE(together.segments.size() == 1);
    CHECK(together.segments[0].data == into->data());
    CHECK(std::memcmp(into->data(), a.data(), a.size()) == 0);
    CHECK(std::memcmp(into->data() + 10, b.data(), b.size()) == 0);
    CHECK(std::memcmp(into->data() + 400'010, c.data(), c.size()) == 0);
  }
  CHECK(live == 0);
}

TEST_CASE_TEMPLATE("tagged: a large message comes straight into the memory that waits for it", Way,
                   TENSORWIRE_LINKS) {
  std::atomic<int>& live = tally();
  Ends<Way> ends;
  const auto bytes = bytes_of(8 << 20, 5);
  const auto pushes = ends.here().link().profile().bulk == Bulk::kPush;
  const auto taken_of_pool = [] {
    const PoolStats stats = runtime().pool().stats();
    return stats.recycled + stats.fresh;
  };
  const uint64_t taken = taken_of_pool();
  for (int i = 0; i < 3; ++i) {
    const auto into = memory_of(bytes.size(), live);
    const auto receive = ends.there().receive(1, into);
    REQUIRE(receive.ok());
    std::thread sender([&] { CHECK(send(ends.here(), 1, bytes)); });
    const InMessage message = take(ends.there(), **receive);
    CHECK(message.segments[0].data == into->data());
    CHECK(std::memcmp(into->data(), bytes.data(), bytes.size()) == 0);
    sender.join();
  }
  // No buffer of the pool has been in between.
  if (pushes) CHECK(taken_of_pool() == taken);
  CHECK(eventually([&] { return live == 0; }));
}

TEST_CASE_TEMPLATE("tagged: a message that is too large for its memory is dropped, no other", Way,
                   TENSORWIRE_LINKS) {
  std::atomic<int>& live = tally();
  Ends<Way> ends;
  for (const size_t size : {size_t{11}, size_t{700'000}}) {
    const auto receive = ends.there().receive(1, memory_of(10, live));
    REQUIRE(receive.ok());
    REQUIRE(send(ends.here(), 1, bytes_of(size)));
    const Status how = ended(ends.there(), **receive);
    CHECK(how.code() == Code::kOutOfRange);
    CHECK(how.details() ==
          "a message of " + std::to_string(size) + " bytes came for memory of 10 bytes");
    REQUIRE(send(ends.here(), 1, bytes_of(10, 9)));
    const auto again = ends.there().receive(1, memory_of(10, live));
    REQUIRE(again.ok());
    CHECK(same(take(ends.there(), **again).segments[0], bytes_of(10, 9)));
  }
}

TEST_CASE_TEMPLATE("tagged: what nobody asks for waits within one credit, and then its sender does",
                   Way, TENSORWIRE_LINKS) {
  Ends<Way> ends;
  const auto bytes = bytes_of(64 << 10);
  const uint64_t window = runtime().settings().stream_window_bytes;
  uint64_t count = 0;
  for (std::vector list{out(bytes)};; list = {out(bytes)}) {
    const auto done = ends.here().send(count, list, {now() + 50 * kMillisecond});
    if (!done) {
      CHECK(done.status().code() == Code::kDeadlineExceeded);
      break;
    }
    REQUIRE(++count * bytes.size() <= window + bytes.size());
  }
  REQUIRE(count * (bytes.size() + 1280) >= window);
  REQUIRE(eventually([&] { return ends.there().waiting() == count; }));
  // The one that was given up cost nothing: as many fit again.
  for (int round = 0; round < 2; ++round) {
    std::thread sender([&] {
      for (uint64_t i = 0; i < count; ++i) CHECK(send(ends.here(), count + i, bytes));
    });
    const uint64_t first = static_cast<uint64_t>(round) * count;
    for (uint64_t i = 0; i < count; ++i)
      CHECK(same(next(ends.there(), round == 0 ? i : first + i).segments[0], bytes));
    sender.join();
    if (round == 0) continue;
    CHECK(ends.there().waiting() <= count);
  }
}

TEST_CASE("tagged: the credit of all tags admits what a sender may send, in any order") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    constexpr size_t kWindow = 1000;
    TaggedWindow window(kWindow);
    SendWindow sender(kWindow);
    std::vector<size_t> on_their_way, announced, unread;
    for (int step = 0; step < 300; ++step) {
      const auto any = [&](std::vector<size_t>& list) {
        std::swap(list[random() % list.size()], list.back());
        const size_t one = list.back();
        list.pop_back();
        return one;
      };
      switch (random() % 6) {
        case 0:
          if (!sender.open()) break;
          on_their_way.push_back(kMessageOverhead + random() % (random() % 4 ? 200 : 3000));
          sender.spend(on_their_way.back() - kMessageOverhead);
          break;
        case 1:
          if (on_their_way.empty()) break;
          unread.push_back(any(on_their_way));
          REQUIRE(window.arrive(unread.back()));
          break;
        case 2:
          if (on_their_way.empty()) break;
          announced.push_back(any(on_their_way));
          REQUIRE(window.announce(announced.back()));
          break;
        case 3:
          if (announced.empty()) break;
          unread.push_back(any(announced));
          window.complete(unread.back());
          break;
        case 4: {
          if (announced.empty() || random() % 4) break;
          const size_t given_up = any(announced);
          window.give_up(given_up);
          sender.refund(given_up - kMessageOverhead);
          break;
        }
        default:
          if (unread.empty()) break;
          if (const uint64_t grant = window.consume(any(unread))) REQUIRE(sender.grant(grant));
      }
    }
  }
  TaggedWindow window(1000);
  CHECK(window.arrive(5000));
  CHECK(window.arrive(900));
  CHECK(window.announce(99));
  CHECK_FALSE(window.arrive(1));
  // Not even the largest counts for long.
  TaggedWindow under_way(1000);
  CHECK(under_way.announce(5000));
  CHECK(under_way.announce(999));
  CHECK_FALSE(under_way.announce(1));
  under_way.give_up(1);
  under_way.give_up(5000);
  CHECK(under_way.announce(900));
  CHECK_FALSE(under_way.arrive(100));
}

TEST_CASE_TEMPLATE("tagged: threads that compete for the last of the credit all get through", Way,
                   TENSORWIRE_LINKS) {
  Ends<Way> ends;
  const auto bytes = bytes_of(3 << 20);
  constexpr uint64_t kThreads = 4, kMessages = 12;
  std::vector<std::thread> senders;
  for (uint64_t tag = 0; tag < kThreads; ++tag)
    senders.emplace_back([&, tag] {
      for (uint64_t i = 0; i < kMessages; ++i) CHECK(send(ends.here(), tag, bytes));
    });
  // One tag after the other, so that the others run out of credit; whoever asks first lets them go.
  std::vector<Ref<TaggedReceive>> receives;
  for (uint64_t i = 0; i < kMessages; ++i)
    for (uint64_t tag = 0; tag < kThreads; ++tag)
      receives.push_back(ends.there().receive(tag).value());
  for (const auto& receive : receives)
    CHECK(take(ends.there(), *receive).payload_bytes == bytes.size());
  for (auto& sender : senders) sender.join();
  CHECK(ends.client->link().alive());
}

TEST_CASE_TEMPLATE("tagged: what crosses a close is dropped, and its lease goes home", Way,
                   TENSORWIRE_LINKS) {
  ArenaWatch arena;
  {
    Ends<Way> ends;
    const auto bytes = bytes_of(1 << 20);
    std::atomic<bool> closed{false};
    std::thread sender([&] {
      while (!closed) {
        std::vector list{out(bytes)};
        (void)ends.there().send(1, list, {now() + kMillisecond});
      }
    });
    REQUIRE(eventually([&] { return ends.here().waiting() > 2; }));
    ends.client->link().close({Code::kCancelled, "the test is over"});
    REQUIRE(eventually([&] { return ends.client->link().lost(); }));
    CHECK(ends.here().waiting() == 0);
    closed = true;
    sender.join();
  }
  CHECK(arena.restored());
}

TEST_CASE_TEMPLATE("tagged: a receive that is cancelled ends, and leaves the message to the next",
                   Way, TENSORWIRE_LINKS) {
  std::atomic<int>& live = tally();
  Ends<Way> ends;
  auto first = ends.there().receive(1, memory_of(10, live));
  const auto second = ends.there().receive(1);
  auto third = ends.there().receive(1);
  REQUIRE((first.ok() && second.ok() && third.ok()));
  std::thread canceller([&] { CHECK(ends.there().cancel(**first)); });
  CHECK(ended(ends.there(), **first).code() == Code::kCancelled);
  canceller.join();
  CHECK_FALSE(ends.there().cancel(**first));
  CHECK(ends.there().cancel(**third));
  *first = nullptr;
  CHECK(live == 0);
  REQUIRE(send(ends.here(), 1, bytes_of(10, 3)));
  CHECK(same(take(ends.there(), **second).segments[0], bytes_of(10, 3)));
  CHECK_FALSE(ends.there().cancel(**second));
  REQUIRE(send(ends.here(), 1, bytes_of(10, 4)));
  CHECK(same(next(ends.there(), 1).segments[0], bytes_of(10, 4)));
}

TEST_CASE("tagged: a receive that cannot be cancelled has ended, with its message") {
  constexpr uint32_t kMessages = 4000;
  Ends<TcpWay> ends;
  std::atomic<uint32_t> taken{0};
  // One at a time: it comes while the other thread asks and cancels.
  std::thread sender([&] {
    for (uint32_t i = 0; i < kMessages; ++i) {
      CHECK(send(ends.here(), 1, bytes_of(64, i)));
      while (taken == i) std::this_thread::yield();
    }
  });
  uint32_t early = 0, wrong = 0;
  while (taken < kMessages) {
    const auto receive = ends.there().receive(1).value();
    if (ends.there().cancel(*receive)) continue;
    early += !receive->ended();
    CHECK(ended(ends.there(), *receive).ok());
    InMessage message;
    if (!receive->take(message) || !same(message.segments[0], bytes_of(64, taken))) ++wrong;
    ++taken;
  }
  sender.join();
  CHECK(early == 0);
  CHECK(wrong == 0);
}

TEST_CASE("tagged: a receive ends without memory for a sentence, too") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  std::atomic<int>& live = tally();
  Ends<TcpWay> ends;
  const auto into = memory_of(10, live);
  REQUIRE(send(ends.here(), 1, bytes_of(100)));
  REQUIRE(eventually([&] { return ends.there().waiting() == 1; }));
  Ref<TaggedReceive> receive;
  for (int n = 1; !receive; ++n) {
    Failing failing(n);
    (void)has_memory_for([&] { receive = ends.there().receive(1, into).value(); });
    failing.end();
    if (!receive) {
      REQUIRE(ends.there().waiting() == 1);
      continue;
    }
    REQUIRE(receive->ended());
    CHECK(receive->status().code() == Code::kOutOfRange);
    if (!receive->status().details().empty()) break;
    receive = nullptr;
    REQUIRE(send(ends.here(), 1, bytes_of(100)));
    REQUIRE(eventually([&] { return ends.there().waiting() == 1; }));
  }
}

TEST_CASE("tagged: a message that is withdrawn without memory is read no more") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  for (int n = 1;; ++n) {
    Ends<TcpWay> ends;
    std::vector<std::byte> message(size_t{64} << 20);
    std::vector<OutSegment> segments{out(message)};
    auto begun = ends.here().begin(1, segments, {patience()});
    REQUIRE(begun.ok());
    REQUIRE(begun->has_value());
    Failing failing(n);
    const bool withdrawn = ends.here().withdraw(**begun);
    if (!failing.end()) break;
    CHECK(withdrawn);
    message = {};
    const auto bytes = bytes_of(10);
    std::vector<OutSegment> more{out(bytes)};
    // It comes, or its link, which may have taken it already, is lost.
    (void)ends.here().send(2, more, {patience()});
    const auto receive = ends.there().receive(2).value();
    InMessage came;
    if (ended(ends.there(), *receive).ok() && receive->take(came))
      CHECK(same(came.segments[0], bytes));
    else
      CHECK(eventually([&] { return ends.here().link().lost(); }));
  }
}

TEST_CASE_TEMPLATE("tagged: an end is told to a queue", Way, TENSORWIRE_LINKS) {
  Ends<Way> ends;
  auto queue = make_ref<EventQueue>();
  std::vector<Ref<TaggedReceive>> receives;
  for (uint64_t tag = 0; tag < 3; ++tag)
    receives.push_back(ends.there().receive(tag, nullptr, Notice(queue, 10 + tag)).value());
  REQUIRE(send(ends.here(), 2, bytes_of(8)));
  std::vector<uint64_t> tokens;
  REQUIRE(take_tokens(*queue, tokens, 8, patience()) == Waited::kDone);
  CHECK(tokens == std::vector<uint64_t>{12});
  CHECK(receives[2]->ended());
  CHECK_FALSE(receives[0]->ended());
  ends.client->link().close({Code::kCancelled, "the test is over"});
  std::vector<uint64_t> rest;
  while (rest.size() < 2) {
    REQUIRE(take_tokens(*queue, tokens, 8, patience()) == Waited::kDone);
    rest.insert(rest.end(), tokens.begin(), tokens.end());
  }
  std::ranges::sort(rest);
  CHECK(rest == std::vector<uint64_t>{10, 11});
}

TEST_CASE_TEMPLATE("tagged: with their link receives end, and what had come is still there", Way,
                   TENSORWIRE_LINKS) {
  Ends<Way> ends;
  REQUIRE(send(ends.here(), 5, bytes_of(100'000, 1)));
  REQUIRE(eventually([&] { return ends.there().waiting() == 1; }));
  const auto there = ends.there().receive(1), here = ends.here().receive(1);
  REQUIRE((there.ok() && here.ok()));
  ends.client->link().close({Code::kCancelled, "the test is over"});
  CHECK(ended(ends.here(), **here).code() == Code::kCancelled);
  CHECK(ended(ends.there(), **there).code() == Code::kUnavailable);
  CHECK(same(next(ends.there(), 5).segments[0], bytes_of(100'000, 1)));
  const auto late = ends.there().receive(5);
  REQUIRE(late.ok());
  CHECK(ended(ends.there(), **late).code() == Code::kUnavailable);
  std::vector list{out(std::span<const std::byte>{})};
  CHECK(ends.here().send(1, list, {patience()}).status().code() == Code::kCancelled);
  CHECK(ends.there().send(1, list, {patience()}).status().code() == Code::kUnavailable);
}

TEST_CASE_TEMPLATE("tagged: a sender that waits for credit ends with its link", Way,
                   TENSORWIRE_LINKS) {
  Ends<Way> ends;
  const auto bytes = bytes_of(1 << 20);
  std::atomic<bool> waits{false};
  Status how;
  std::thread sender([&] {
    for (;;) {
      std::vector list{out(bytes)};
      const auto done = ends.here().send(1, list, {now() + 100 * kMillisecond});
      if (done) continue;
      waits = true;
      if ((how = done.status()).code() != Code::kDeadlineExceeded) return;
    }
  });
  REQUIRE(eventually([&] { return waits.load(); }));
  ends.server->link().close({Code::kCancelled, "the server was closed"});
  sender.join();
  CHECK(how.code() == Code::kUnavailable);
}

TEST_CASE_TEMPLATE("tagged: threads of both ends exchange messages and calls at once", Way,
                   TENSORWIRE_LINKS) {
  Ends<Way> ends;
  constexpr uint32_t kMessages = 200;
  std::vector<std::thread> threads;
  for (uint64_t tag = 0; tag < 3; ++tag)
    for (TaggedPort* port : {&ends.here(), &ends.there()})
      threads.emplace_back([port, tag] {
        std::mt19937 random(static_cast<uint32_t>(tag));
        for (uint32_t i = 0; i < kMessages; ++i) {
          const size_t size = random() % (i % 20 == 0 ? 200'000 : 2000);
          const auto bytes = bytes_of(size, i);
          // A ring: each sends before it receives what is as large.
          CHECK(send(*port, tag, bytes));
          CHECK(same(next(*port, tag).segments[0], bytes));
        }
      });
  for (auto& thread : threads) thread.join();
  CHECK(ends.client->link().alive());
  CHECK(ends.here().waiting() + ends.there().waiting() == 0);
}

TEST_CASE("tagged: what is lent comes home once it was received, and not before") {
  ArenaWatch arena;
  {
    Ends<ShmWay> ends;
    const auto bytes = bytes_of(1 << 20);
    const auto block = block_of(bytes);
    block->publish();
    OutSegment segment = out({block->data(), bytes.size()});
    segment.block = block;
    REQUIRE(send(ends.here(), 1, std::vector{std::move(segment)}));
    {
      const InMessage message = next(ends.there(), 1);
      REQUIRE(message.segments[0].view());
      CHECK(same(message.segments[0], bytes));
      CHECK(block->on_lease());
    }
    CHECK(eventually([&] { return !block->on_lease(); }));
  }
  CHECK(arena.restored());
}

TEST_CASE("tagged: wrong tags, and a peer that knows none") {
  Ends<TcpWay> ends;
  std::vector list{out(std::span<const std::byte>{})};
  CHECK(ends.here().send(uint64_t{1} << 63, list, {}).status().code() == Code::kInvalidArgument);
  CHECK(ends.here().receive(~uint64_t{0}).status().code() == Code::kInvalidArgument);
  REQUIRE(send(ends.here(), TaggedPort::kMaxTag, list));
  (void)next(ends.there(), TaggedPort::kMaxTag);

  auto pair = Tcp::make({});
  Peer peer;
  peer.address = "ipv4:10.0.0.1:1";
  peer.features = wire::kOneSided;
  const Closing old(
      CallPort::create(runtime(), std::move(pair.a), std::move(peer), 1 << 20).value());
  CHECK(old->tagged().send(1, list, {}).status().code() == Code::kUnimplemented);
  CHECK(old->tagged().receive(1).status().code() == Code::kUnimplemented);
}

TEST_CASE("tagged: a wait that is interrupted leaves nothing behind") {
  Ends<TcpWay> ends;
  const Wait interrupted{kForever, [](void*) { return 1; }, nullptr};
  const auto receive = ends.here().receive(1);
  REQUIRE(receive.ok());
  CHECK(ends.here().wait(**receive, interrupted) == Ended::kInterrupted);
  CHECK_FALSE((*receive)->ended());
  CHECK(ends.here().cancel(**receive));
}

TEST_CASE("tagged: a peer that breaks the rules loses its link") {
  std::atomic<int>& live = tally();
  Ends<TcpWay> ends;
  const std::byte byte{};
  SUBCASE("a header") {
    REQUIRE(ends.client->link().send(wire::kTaggedStreams | 1, {&byte, 1}, {}, nullptr, {}).ok());
  }
  SUBCASE("a header, with bytes to come") {
    std::vector list{lent(live)};
    REQUIRE(ends.client->link().send(wire::kTaggedStreams | 1, {&byte, 1}, list, nullptr, {}).ok());
  }
  SUBCASE("no credit") {
    const uint64_t window = runtime().settings().stream_window_bytes;
    for (uint64_t sum = 0; sum <= window + (3 << 20); sum += 1 << 20) {
      std::vector list{lent(live)};
      if (!ends.client->link().send(wire::kTaggedStreams | 1, {}, list, nullptr, {}).ok()) break;
    }
  }
  SUBCASE("credit for what was never sent") {
    ends.client->link().send_credit(wire::kTaggedStreams, uint64_t{1} << 62);
  }
  CHECK(eventually([&] { return !ends.server->link().alive(); }));
  CHECK(ends.server->link().death().code() == Code::kInternal);
}

}  // namespace
}  // namespace tw::test
