// SPDX-License-Identifier: Apache-2.0
// Credit: both ends of a stream's window, joined by grants that may be late.
#include "link/window.h"

#include <deque>

#include "test/wire/support.h"

namespace tw {
namespace {

using test::Random;

TEST_CASE("window: a message costs its payload and an overhead") {
  SendWindow window(2 * kMessageOverhead);
  CHECK(window.open());
  window.spend(0);
  CHECK(window.open());
  window.spend(0);
  CHECK_FALSE(window.open());
  CHECK(window.grant(1));
  CHECK(window.open());
}

TEST_CASE("window: a message larger than the window passes, alone") {
  SendWindow sender(100);
  ReceiveWindow receiver(100);
  sender.spend(1'000'000);
  CHECK_FALSE(sender.open());
  CHECK(receiver.arrive(1'000'000));
  CHECK_FALSE(receiver.arrive(0));
  CHECK(sender.grant(receiver.consume(1'000'000)));
  CHECK(sender.open());
  CHECK(receiver.arrive(0));
}

TEST_CASE("window: grants beyond anything that was sent are refused and change nothing") {
  SendWindow window(1000);
  CHECK_FALSE(window.grant(UINT64_MAX));
  CHECK_FALSE(window.grant((uint64_t{1} << 62) + 1));
  CHECK_FALSE(window.grant((uint64_t{1} << 62) - 999));
  CHECK(window.grant((uint64_t{1} << 62) - 1000));
  CHECK_FALSE(window.grant(1));
  window.spend(0);
  CHECK(window.grant(kMessageOverhead));
  CHECK_FALSE(window.grant(1));

  SendWindow whole(uint64_t{1} << 62);
  CHECK_FALSE(whole.grant(1));
  whole.spend(uint64_t{16} << 30);
  CHECK(whole.open());
  CHECK(whole.grant(window_cost(uint64_t{16} << 30)));
}

TEST_CASE("window: few bytes are granted together") {
  ReceiveWindow window(4000);
  for (int i = 0; i < 9; ++i) {
    REQUIRE(window.arrive(36));
    REQUIRE(window.consume(36) == 0);
  }
  REQUIRE(window.arrive(36));
  CHECK(window.consume(36) == 1000);
}

// Any sizes, any window, grants on their way for any time: the receiver never sees a message
// without credit, the credit never passes the window, and once everything has been consumed and
// every grant has come the sender may send.
TEST_CASE("window: an honest sender is never refused and never stuck") {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const size_t size = 1 + random.up_to(size_t{1} << random.up_to(20));
    SendWindow sender(size);
    ReceiveWindow receiver(size);
    std::deque<size_t> sent, waiting;
    std::deque<uint64_t> grants;
    size_t messages = 0;
    const auto consume = [&] {
      if (const uint64_t grant = receiver.consume(waiting.front())) grants.push_back(grant);
      waiting.pop_front();
    };
    for (int i = 0; i < 500; ++i) {
      switch (random.up_to(3)) {
        case 0:
          if (!sender.open()) break;
          sent.push_back(random.chance(10) ? random.up_to(3 * size) : random.up_to(size / 8 + 1));
          sender.spend(sent.back());
          ++messages;
          break;
        case 1:
          if (sent.empty()) break;
          REQUIRE(receiver.arrive(sent.front()));
          waiting.push_back(sent.front());
          sent.pop_front();
          break;
        case 2:
          if (!waiting.empty()) consume();
          break;
        default:
          if (grants.empty()) break;
          REQUIRE(sender.grant(grants.front()));
          grants.pop_front();
      }
    }
    while (!sent.empty()) {
      REQUIRE(receiver.arrive(sent.front()));
      waiting.push_back(sent.front());
      sent.pop_front();
    }
    while (!waiting.empty()) consume();
    for (const uint64_t grant : grants) REQUIRE(sender.grant(grant));
    REQUIRE(messages != 0);
    REQUIRE(sender.open());
  }
}

}  // namespace
}  // namespace tw
