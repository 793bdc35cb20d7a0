// SPDX-License-Identifier: Apache-2.0
// What every transport must do with bytes, and how its end is seen. See sleeping.cc for the waits.
#include <random>
#include <thread>

#include "test/transport/pair.h"

namespace tw::test {
namespace {

TEST_CASE_TEMPLATE("transport: bytes arrive in order, whatever the sizes", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  std::mt19937 random(1);
  Transport* ends[2] = {pair.a.get(), pair.b.get()};
  uint64_t sent[2] = {}, received[2] = {};
  for (int i = 0; i < 3000; ++i) {
    const size_t from = random() % 2;
    const size_t size = random() % 4 ? random() % 100 : random() % 20'000;
    if (random() % 2)
      sent[from] += send_pattern(*ends[from], sent[from], size);
    else
      received[from] += receive_pattern(*ends[1 - from], received[from], 1 + size);
    REQUIRE(received[from] <= sent[from]);
  }
  for (size_t from : {0, 1})
    while (received[from] != sent[from]) {
      const size_t n = receive_pattern(*ends[1 - from], received[from], 50'000);
      if (n == 0) REQUIRE(ends[1 - from]->sleep(false, patience()) == Wake::kReady);
      received[from] += n;
    }
  CHECK(receive_pattern(*pair.a, 0, 10) == 0);
  CHECK(receive_pattern(*pair.b, 0, 10) == 0);
}

TEST_CASE_TEMPLATE("transport: lists of buffers are one run of bytes", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  const std::string first = "ab", second, third = "cdef";
  const iovec out[] = {run_of(first.data(), 2), run_of(second.data(), 0), run_of(third.data(), 4)};
  REQUIRE(*pair.a->send(out) == 6);
  REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
  CHECK(pair.b->readable());
  char x[1], y[10];
  const iovec in[] = {run_of(x, sizeof x), run_of(y, sizeof y)};
  std::string got;
  while (got.size() < 6) {
    auto n = pair.b->receive(in);
    REQUIRE(n.ok());
    if (*n == 0) REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
    got.append(x, std::min<size_t>(*n, 1));
    if (*n > 1) got.append(y, *n - 1);
  }
  CHECK(got == "abcdef");
}

TEST_CASE_TEMPLATE("transport: a full pipe takes nothing more, and goes on once there is room",
                   Maker, TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  uint64_t sent = fill(*pair.a);
  CHECK(sent > 0);
  CHECK(send_pattern(*pair.a, sent, 1) == 0);
  // The other direction is another pipe.
  CHECK(send_pattern(*pair.b, 0, 100) == 100);

  uint64_t received = 0;
  const uint64_t goal = sent + 100'000;
  while (received < goal) {
    const size_t n = receive_pattern(*pair.b, received, 8192);
    received += n;
    if (sent < goal)
      sent += send_pattern(*pair.a, sent, std::min<uint64_t>(goal - sent, 10'000));
    else if (n == 0)
      REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
  }
  CHECK(received == sent);
}

TEST_CASE_TEMPLATE("transport: who is gone is heard to the end first", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  REQUIRE(send_pattern(*pair.b, 0, 5000) == 5000);
  REQUIRE(pair.a->sleep(false, patience()) == Wake::kReady);
  SUBCASE("while its end is still there") {}
  SUBCASE("and its end has hung up") { pair.b->hang_up(); }
  pair.a->peer_gone("it fell");
  pair.a->peer_gone("a later reason changes nothing");
  CHECK(pair.a->readable());
  uint64_t received = 0;
  while (received < 5000) received += receive_pattern(*pair.a, received, 700);
  char more;
  const iovec room = run_of(&more, 1);
  const auto after = pair.a->receive({&room, 1});
  REQUIRE_FALSE(after.ok());
  CHECK(after.status().code() == Code::kUnavailable);
  CHECK(after.status().details() == "it fell");
  const auto sent = pair.a->send({&room, 1});
  REQUIRE_FALSE(sent.ok());
  CHECK(sent.status().code() == Code::kUnavailable);
  CHECK(sent.status().details() == "it fell");
}

TEST_CASE_TEMPLATE("transport: a hang-up reaches the peer after the last byte", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  Watched watched(*pair.b);
  REQUIRE(send_pattern(*pair.a, 0, 3000) == 3000);
  pair.a->hang_up();
  SUBCASE("while the other end is still there") {}
  SUBCASE("and has been destroyed") { pair.a.reset(); }
  uint64_t received = 0;
  for (;;) {
    std::byte bytes[1000];
    const iovec room = run_of(bytes, sizeof bytes);
    const auto got = pair.b->receive({&room, 1});
    if (!got.ok()) {
      CHECK(got.status().code() == Code::kUnavailable);
      CHECK_FALSE(got.status().details().empty());
      break;
    }
    for (size_t i = 0; i < *got; ++i) REQUIRE(bytes[i] == pattern(received + i));
    received += *got;
    if (*got != 0) continue;
    pair.b->arm(false);
    REQUIRE(watched.wait());
    pair.b->disarm();
  }
  CHECK(received == 3000);
}

TEST_CASE_TEMPLATE("transport: what is delivered outlives an end that has read nothing", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  REQUIRE(send_pattern(*pair.b, 0, 3000) == 3000);
  uint64_t sent = 0;
  for (int full = 0; full < 100;) {
    const uint64_t more = send_pattern(*pair.a, sent, 1000);
    sent += more;
    full = more == 0 ? full + 1 : 0;
  }
  Watched watched(*pair.b);
  uint64_t received = 0;
  bool ended = false;
  const auto receive = [&] {
    std::byte bytes[1000] = {};
    const iovec room = run_of(bytes, sizeof bytes);
    const auto got = pair.b->receive({&room, 1});
    ended = !got.ok();
    if (ended) return size_t{0};
    for (size_t i = 0; i < *got; ++i) REQUIRE(bytes[i] == pattern(received + i));
    received += *got;
    return *got;
  };
  if (std::string_view(pair.a->profile().name) == "tcp") CHECK(pair.a->undelivered());
  const Nanos deadline = patience();
  while (pair.a->undelivered() && now() < deadline) receive();
  REQUIRE_FALSE(pair.a->undelivered());
  pair.a->hang_up();
  pair.a.reset();
  while (!ended) {
    if (receive() != 0 || ended) continue;
    pair.b->arm(false);
    REQUIRE(watched.wait());
    pair.b->disarm();
  }
  CHECK(received == sent);
}

TEST_CASE_TEMPLATE("transport: only what maps locates the peer's memory", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  CHECK((pair.a->profile().bulk == Bulk::kMap) == Maker::kMaps);
  CHECK((pair.a->profile().bulk != Bulk::kPush) == Maker::kShares);
  auto slab = Slab::make(3, 7, 64 << 10);
  REQUIRE(slab.ok());
  for (size_t i = 0; i < 5000; ++i) (*slab)->base()[i] = pattern(i);
  const Status shared = pair.a->share(**slab);
  const auto located = pair.b->locate({3, 7, 1000, 4000});
  if (!Maker::kMaps) {
    CHECK(shared.ok() == Maker::kShares);
    if (!Maker::kShares) CHECK(shared.code() == Code::kInternal);
    REQUIRE_FALSE(located.ok());
    CHECK(located.status().code() == Code::kInternal);
    return;
  }
  REQUIRE(shared.ok());
  CHECK(pair.a->share(**slab).ok());  // again: known already
  REQUIRE(located.ok());
  REQUIRE(located->bytes.size() == 4000);
  for (size_t i = 0; i < 4000; ++i) REQUIRE(located->bytes[i] == pattern(1000 + i));
  // What the owner writes later is seen, what the reader writes is not.
  (*slab)->base()[1000] = std::byte{0xee};
  CHECK(located->bytes[0] == std::byte{0xee});
  const_cast<std::byte&>(located->bytes[1]) = std::byte{0xdd};
  CHECK((*slab)->base()[1001] == pattern(1001));

  for (const RegionRef& wrong :
       {RegionRef{2, 7, 0, 1}, RegionRef{3, 6, 0, 1}, RegionRef{3, 8, 0, 1},
        RegionRef{3, 7, 64 << 10, 1}, RegionRef{3, 7, 1, 64 << 10},
        RegionRef{3, 7, ~uint64_t{0}, 2}, RegionRef{3, 7, 2, ~uint64_t{0}},
        RegionRef{~uint32_t{0}, 7, 0, 1}}) {
    CAPTURE(wrong.slab);
    CAPTURE(wrong.generation);
    CAPTURE(wrong.offset);
    CAPTURE(wrong.length);
    const auto refused = pair.b->locate(wrong);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code() == Code::kInternal);
  }
  CHECK(pair.b->locate({3, 7, 0, 64 << 10}).ok());

  // A dropped slab is dead for the peer once the next one is shared; what it holds stays readable.
  (*slab)->drop();
  auto next = Slab::make(3, 8, 4096);
  REQUIRE(next.ok());
  REQUIRE(pair.a->share(**next).ok());
  CHECK(pair.b->locate({3, 8, 0, 4096}).ok());
  CHECK_FALSE(pair.b->locate({3, 7, 0, 1}).ok());
  CHECK(located->bytes[5] == pattern(1005));
}

TEST_CASE_TEMPLATE("transport: a peer that takes in no slabs is not waited for", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  if (!Maker::kMaps) return;
  TransportPair pair = Maker::make();
  std::vector<Ref<Slab>> slabs;
  Status status;
  while (slabs.size() < 3000) {
    auto slab = Slab::make(static_cast<uint32_t>(slabs.size()), 1, 4096);
    REQUIRE(slab.ok());
    status = pair.a->share(**slab);
    if (!status.ok()) break;
    slabs.push_back(std::move(*slab));
    slabs.back()->base()[0] = pattern(slabs.size());
  }
  CHECK(status.code() == Code::kResourceExhausted);
  const auto last = static_cast<uint32_t>(slabs.size() - 1);
  const auto located = pair.b->locate({last, 1, 0, 1});
  REQUIRE(located.ok());
  CHECK(located->bytes[0] == pattern(slabs.size()));
  auto slab = Slab::make(last + 1, 1, 4096);
  REQUIRE(slab.ok());
  REQUIRE(pair.a->share(**slab).ok());
  CHECK(pair.b->locate({last + 1, 1, 0, 1}).ok());
}

}  // namespace
}  // namespace tw::test
