// SPDX-License-Identifier: Apache-2.0
#include "engine/blocking.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>

#include "test/engine/patience.h"

namespace tw::test {
namespace {

// Says so whenever it is asked, and counts how often that is.
struct Interrupting {
  Wait wait() {
    return {patience(),
            [](void* self) {
              ++static_cast<Interrupting*>(self)->times;
              return 1;
            },
            this};
  }
  int times = 0;
};

TEST_CASE("blocking: tokens that are there are taken, as many as there is room for") {
  const auto queue = make_ref<EventQueue>();
  for (uint64_t token = 1; token <= 3; ++token) queue->push(token);
  std::array<uint64_t, 2> room{};
  size_t count = 0;
  Interrupting interrupting;
  CHECK(await_tokens(*queue, room, count, interrupting.wait()) == Ended::kDone);
  CHECK(count == 2);
  CHECK(room == std::array<uint64_t, 2>{1, 2});
  CHECK(interrupting.times == 0);
  queue->close();
  CHECK(await_tokens(*queue, room, count, {0}) == Ended::kDone);  // what was left comes first
  CHECK(count == 1);
  CHECK(room[0] == 3);
  CHECK(await_tokens(*queue, room, count, {kForever}) == Ended::kClosed);
  CHECK(count == 0);
}

TEST_CASE(
    "blocking: an empty queue is waited for until a token, time, an interruption or its end") {
  const auto queue = make_ref<EventQueue>();
  std::array<uint64_t, 2> room{};
  size_t count = 7;
  SUBCASE("a token") {
    // The wait is under way, and goes on after a look whether it is interrupted.
    std::atomic<bool> asked{false};
    const Wait wait{patience(),
                    [](void* flag) {
                      *static_cast<std::atomic<bool>*>(flag) = true;
                      return 0;
                    },
                    &asked};
    std::thread pushes([&] {
      CHECK(eventually([&] { return asked.load(); }));
      queue->push(5);
    });
    CHECK(await_tokens(*queue, room, count, wait) == Ended::kDone);
    pushes.join();
    CHECK(count == 1);
    CHECK(room[0] == 5);
  }
  SUBCASE("time") {
    CHECK(await_tokens(*queue, room, count, {now() + kMillisecond}) == Ended::kTimeout);
    CHECK(count == 0);
  }
  SUBCASE("an interruption") {
    Interrupting interrupting;
    CHECK(await_tokens(*queue, room, count, interrupting.wait()) == Ended::kInterrupted);
    CHECK(interrupting.times == 1);
    CHECK(count == 0);
  }
  SUBCASE("its end") {
    std::thread closes([&] { queue->close(); });
    CHECK(await_tokens(*queue, room, count, {patience()}) == Ended::kClosed);
    closes.join();
    CHECK(count == 0);
  }
}

TEST_CASE("blocking: the lines of an audit, until it is closed") {
  Audit audit;
  Audit::Line line;
  Interrupting interrupting;
  CHECK(await_line(audit, line, {now() + kMillisecond}) == Ended::kTimeout);
  CHECK(await_line(audit, line, interrupting.wait()) == Ended::kInterrupted);
  audit.note(Incident::kHandshakeProof, "unix:", "no secret");
  CHECK(await_line(audit, line, {patience()}) == Ended::kDone);
  CHECK(line.what == "no secret");
  audit.close();
  CHECK(await_line(audit, line, {kForever}) == Ended::kClosed);
}

}  // namespace
}  // namespace tw::test
