// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/ring.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/futex.h"

namespace tw {
namespace {

// Both ends over the same memory, as two processes would map it.
class Rings {
 public:
  explicit Rings(size_t capacity)
      : memory_(new (std::align_val_t{4096}) std::byte[ring_memory_size(capacity)]{}),
        a(open_rings(memory_.get(), capacity, 0)),
        b(open_rings(memory_.get(), capacity, 1)) {}

  RingHeader<HardwareAtomics>& header() {
    return *reinterpret_cast<RingHeader<HardwareAtomics>*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
  };
  std::unique_ptr<std::byte[], Free> memory_;

 public:
  ShmRings a, b;
};

iovec part(const void* data, size_t size) { return {const_cast<void*>(data), size}; }

size_t write(ShmRings& ring, const std::string& text) {
  const iovec data = part(text.data(), text.size());
  const auto n = ring.write({&data, 1});
  REQUIRE(n.ok());
  return *n;
}

std::string read(ShmRings& ring, size_t most) {
  std::string text(most, '\0');
  const iovec room = part(text.data(), most);
  const auto n = ring.read({&room, 1});
  REQUIRE(n.ok());
  text.resize(*n);
  return text;
}

TEST_CASE("ring: capacities") {
  static_assert(ring_capacity(0) == 4096);
  static_assert(ring_capacity(4097) == 8192);
  static_assert(ring_capacity(~size_t{0}) == size_t{64} << 20);
  static_assert(valid_ring_capacity(4096) && valid_ring_capacity(size_t{64} << 20));
  static_assert(!valid_ring_capacity(2048) && !valid_ring_capacity(6000));
  static_assert(!valid_ring_capacity(size_t{128} << 20) && !valid_ring_capacity(0));
}

TEST_CASE("ring: each end reads what the other writes") {
  Rings rings(4096);
  CHECK_FALSE(rings.b.readable());
  CHECK(read(rings.b, 10).empty());
  CHECK(write(rings.a, "to b") == 4);
  CHECK(write(rings.b, "to a") == 4);
  CHECK(rings.b.readable());
  CHECK(read(rings.b, 2) == "to");
  CHECK(read(rings.b, 10) == " b");
  CHECK(read(rings.a, 10) == "to a");
  CHECK_FALSE(rings.a.readable());
}

TEST_CASE("ring: lists of buffers, empty ones among them") {
  Rings rings(4096);
  const std::array<iovec, 5> out = {part("", 0), part("abc", 3), part(nullptr, 0), part("defg", 4),
                                    part("", 0)};
  CHECK(*rings.a.write(out) == 7);
  std::string x(2, '.');
  std::string y(9, '.');
  const std::array<iovec, 4> in = {part(nullptr, 0), part(x.data(), 2), part(nullptr, 0),
                                   part(y.data(), 9)};
  CHECK(*rings.b.read(in) == 7);
  CHECK(x == "ab");
  CHECK(y == "cdefg....");
  CHECK(*rings.a.write({}) == 0);
  CHECK(*rings.b.read({}) == 0);
}

TEST_CASE("ring: a full ring takes what fits and says when there is room") {
  Rings rings(4096);
  const std::string text(5000, 'x');
  CHECK(write(rings.a, text) == 4096);
  CHECK(write(rings.a, text) == 0);
  CHECK(rings.a.prepare_sleep(Sleeper::kBackground));

  CHECK(read(rings.b, 1000).size() == 1000);
  CHECK(rings.b.after_read() == Sleeper::kNone);  // more than half full: not worth a wake-up
  CHECK(read(rings.b, 2000).size() == 2000);
  CHECK(rings.b.after_read() == Sleeper::kBackground);
  CHECK(rings.b.after_read() == Sleeper::kNone);

  // The writer that has not written yet does not go to sleep.
  CHECK_FALSE(rings.a.prepare_sleep(Sleeper::kDriver));
  CHECK(write(rings.a, text) == 3000);
  CHECK(rings.a.prepare_sleep(Sleeper::kDriver));
  CHECK(read(rings.b, 4096).size() == 4096);
  CHECK(rings.b.after_read() == Sleeper::kDriver);

  CHECK(write(rings.a, "all of it") == 9);
  CHECK(rings.a.prepare_sleep(Sleeper::kDriver));
  CHECK(read(rings.b, 100) == "all of it");
  CHECK(rings.b.after_read() == Sleeper::kNone);  // nobody waits for room any more
}

TEST_CASE("ring: a write that is given up is not waited for") {
  Rings rings(4096);
  CHECK(write(rings.a, std::string(5000, 'x')) == 4096);
  CHECK(read(rings.b, 4096).size() == 4096);
  CHECK_FALSE(rings.a.prepare_sleep(Sleeper::kDriver));
  rings.a.abandon();
  CHECK(rings.a.prepare_sleep(Sleeper::kDriver));
}

TEST_CASE("ring: one ring for each sleep") {
  Rings rings(4096);
  CHECK(write(rings.a, "1") == 1);
  CHECK(rings.a.after_write() == Sleeper::kNone);
  CHECK_FALSE(rings.b.prepare_sleep(Sleeper::kDriver));  // there is something to read
  CHECK(rings.b.sleep_word().load() == 0);
  CHECK(read(rings.b, 9) == "1");
  CHECK(rings.b.prepare_sleep(Sleeper::kDriver));
  CHECK(rings.b.sleep_word().load() == 2);
  CHECK(&rings.a.peer_sleep_word() == &rings.b.sleep_word());

  CHECK(write(rings.a, "2") == 1);
  CHECK(rings.a.after_write() == Sleeper::kDriver);
  CHECK(write(rings.a, "3") == 1);
  CHECK(rings.a.after_write() == Sleeper::kNone);
  rings.b.awake();

  CHECK(read(rings.b, 9) == "23");
  CHECK(rings.b.prepare_sleep(Sleeper::kBackground));
  rings.b.awake();  // changed its mind
  CHECK(write(rings.a, "4") == 1);
  CHECK(rings.a.after_write() == Sleeper::kNone);
}

TEST_CASE("ring: random writes and reads keep the order of bytes") {
  Rings rings(4096);
  std::mt19937 random(3);
  std::deque<char> expected;
  char next = 0;
  for (int i = 0; i < 4000; ++i) {
    if (random() % 2) {
      std::vector<std::string> texts(random() % 4);
      std::vector<iovec> list;
      for (auto& text : texts) {
        text.resize(random() % 3 ? random() % 200 : random() % 3000);
        for (char& c : text) c = next++;
        list.push_back(part(text.data(), text.size()));
      }
      const auto n = rings.a.write(list);
      REQUIRE(n.ok());
      size_t left = *n;
      size_t rest = 0;
      for (const auto& text : texts) {
        const size_t step = std::min(left, text.size());
        expected.insert(expected.end(), text.begin(), text.begin() + static_cast<long>(step));
        left -= step;
        rest += text.size() - step;
      }
      next = static_cast<char>(next - static_cast<char>(rest));
      REQUIRE((rest == 0 || expected.size() == 4096));
    } else {
      const std::string text = read(rings.b, random() % 3000);
      REQUIRE(text.size() <= expected.size());
      REQUIRE(std::equal(text.begin(), text.end(), expected.begin()));
      expected.erase(expected.begin(), expected.begin() + static_cast<long>(text.size()));
    }
  }
}

TEST_CASE("ring: whatever the peer writes into the header, nothing is read or written outside") {
  const std::string text(100, 'x');
  std::string buffer(8192, '\0');
  const iovec room = part(buffer.data(), buffer.size());

  for (const uint64_t lie :
       {uint64_t{4197}, uint64_t{5000}, ~uint64_t{0}, ~uint64_t{0} - 4096, uint64_t{1} << 63}) {
    CAPTURE(lie);
    {
      Rings rings(4096);
      CHECK(write(rings.a, text) == 100);
      rings.header().rings[0].head = lie;  // the reader claims bytes that were never written
      const std::string rest(4000, 'y');   // does not fit, so the writer looks for room
      const iovec more = part(rest.data(), rest.size());
      const auto n = rings.a.write({&more, 1});
      REQUIRE_FALSE(n.ok());
      CHECK(n.status().code() == Code::kInternal);
    }
    {
      Rings rings(4096);
      CHECK(write(rings.a, text) == 100);
      CHECK(read(rings.b, 100).size() == 100);
      rings.header().rings[0].tail = lie;
      const auto n = rings.b.read({&room, 1});
      REQUIRE_FALSE(n.ok());
      CHECK(n.status().code() == Code::kInternal);
      CHECK(n.status().details().find("impossible write cursor") != std::string::npos);
    }
  }
  SUBCASE("a cursor that goes back") {
    Rings rings(4096);
    CHECK(write(rings.a, text) == 100);
    CHECK(read(rings.b, 40).size() == 40);
    rings.header().rings[0].tail = 50;
    CHECK_FALSE(rings.b.read({&room, 1}).ok());
  }
  SUBCASE("its own cursors do not move an end") {
    Rings rings(4096);
    CHECK(write(rings.a, text) == 100);
    rings.header().rings[0].tail = 7;
    CHECK(write(rings.a, text) == 100);
    CHECK(read(rings.b, 200) == text + text);
    rings.header().rings[0].head = 3;
    CHECK(write(rings.a, std::string(3901, 'z')) == 3899);  // up to the head that it was told
    CHECK(read(rings.b, 5000).size() == 3899);
  }
  SUBCASE("unknown values of flags and words") {
    Rings rings(4096);
    rings.header().rings[0].wants_space = 0xffffffff;
    rings.header().sleep[0].word = 77;
    CHECK(rings.b.after_write() == Sleeper::kBackground);
    CHECK(rings.b.after_write() == Sleeper::kNone);
  }
  SUBCASE("random scribbling") {
    std::mt19937_64 random(5);
    for (int round = 0; round < 300; ++round) {
      Rings rings(4096);
      for (int i = 0; i < 30; ++i) {
        auto& cursors = rings.header().rings[0];
        auto& victim = random() % 2 ? cursors.tail : cursors.head;
        if (random() % 4 == 0) victim = random() % 2 ? victim + random() % 9000 : random();
        const bool writing = random() % 2;
        const iovec some = part(buffer.data(), random() % buffer.size());
        const auto n = writing ? rings.a.write({&some, 1}) : rings.b.read({&some, 1});
        if (!n.ok()) break;
        REQUIRE(*n <= some.iov_len);
      }
    }
  }
}

// Sleeps as a driver until it is rung; a wake-up that never comes fails the test.
void sleep(ShmRings& ring, std::atomic<int>& failures) {
  if (!ring.prepare_sleep(Sleeper::kDriver)) return;
  const Nanos deadline = now() + 20 * kSecond;
  while (ring.sleep_word().load(std::memory_order_relaxed) != 0) {
    if (futex_wait(ring.sleep_word(), 2, deadline, FutexScope::kShared) == FutexWait::kTimeout) {
      ++failures;
      break;
    }
  }
  ring.awake();
}

void wake(ShmRings& ring, Sleeper who) {
  if (who == Sleeper::kDriver) futex_wake(ring.peer_sleep_word(), 1, FutexScope::kShared);
}

TEST_CASE("ring: two threads that sleep whenever they can move all bytes in order") {
  Rings rings(4096);
  constexpr size_t kTotal = 2'000'000;
  std::atomic<int> failures{0};
  std::thread writer([&] {
    std::mt19937 random(1);
    std::string text;
    for (size_t sent = 0; sent < kTotal && failures == 0;) {
      text.resize(std::min<size_t>(kTotal - sent, 1 + random() % 6000));
      for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>((sent + i) * 31 >> 3);
      for (size_t done = 0; done < text.size() && failures == 0;) {
        const iovec data = part(text.data() + done, text.size() - done);
        const auto n = rings.a.write({&data, 1});
        if (!n) ++failures;
        if (!n) return;
        wake(rings.a, rings.a.after_write());
        done += *n;
        if (done < text.size()) sleep(rings.a, failures);
      }
      sent += text.size();
    }
  });
  std::mt19937 random(2);
  std::string buffer(6000, '\0');
  for (size_t received = 0; received < kTotal && failures == 0;) {
    const iovec room = part(buffer.data(), 1 + random() % buffer.size());
    const auto n = rings.b.read({&room, 1});
    if (!n) ++failures;
    if (!n) break;
    wake(rings.b, rings.b.after_read());
    for (size_t i = 0; i < *n; ++i)
      failures += buffer[i] != static_cast<char>((received + i) * 31 >> 3);
    received += *n;
    if (*n == 0) sleep(rings.b, failures);
  }
  CHECK(failures == 0);
  writer.join();
}

}  // namespace
}  // namespace tw
