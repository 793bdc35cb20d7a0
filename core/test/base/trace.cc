// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace tw::test {
namespace {

TEST_CASE("trace: nothing is kept until it is switched on, nor after") {
  Trace trace;
  trace.note(true, TraceStep::kMessage, 1, 1, 1, 10);
  CHECK(trace.record().total == 0);
  trace.keep(8);
  CHECK(trace.on());
  trace.note(true, TraceStep::kMessage, 1, 1, 1, 10);
  CHECK(trace.record().total == 1);
  trace.keep(0);
  CHECK_FALSE(trace.on());
  trace.note(true, TraceStep::kMessage, 1, 1, 1, 10);
  CHECK(trace.record().total == 0);
  CHECK(trace.record().events.empty());
}

TEST_CASE("trace: the last events are kept in their order, and all are counted") {
  for (const size_t keep : {1, 3, 7, 20}) {
    CAPTURE(keep);
    Trace trace;
    trace.keep(keep);
    for (uint64_t i = 0; i < 10; ++i)
      trace.note(i % 2 == 0, i < 4 ? TraceStep::kRts : TraceStep::kFin, 5, i, 7, 100 + i, i);
    const Trace::Record record = trace.record();
    CHECK(record.total == 10);
    REQUIRE(record.events.size() == std::min<size_t>(keep, 10));
    for (size_t i = 0; i < record.events.size(); ++i) {
      const TraceEvent& event = record.events[i];
      const uint64_t number = 10 - record.events.size() + i;
      CHECK(event.message == number);
      CHECK(event.id == number);
      CHECK(event.stream == 5);
      CHECK(event.segment == 7);
      CHECK(event.bytes == 100 + number);
      CHECK(event.sent == (number % 2 == 0));
      if (i != 0) CHECK(event.time >= record.events[i - 1].time);
    }
    const auto sum = [&](bool sent, TraceStep step) {
      return record.sums[sent][static_cast<size_t>(step)];
    };
    CHECK(sum(true, TraceStep::kRts).count == 2);
    CHECK(sum(true, TraceStep::kRts).bytes == 202);
    CHECK(sum(false, TraceStep::kFin).count == 3);
    CHECK(sum(false, TraceStep::kSend).count == 0);
  }
}

TEST_CASE("trace: threads may note and look at the same time") {
  Trace trace;
  trace.keep(100);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 5000; ++i) {
        trace.note(t % 2 == 0, TraceStep::kSend, 0, 0, 0, 1);
        if (i % 500 == 0) CHECK(trace.record().events.size() <= 100);
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(trace.record().total == 20'000);
  CHECK(trace.record().sums[1][static_cast<size_t>(TraceStep::kSend)].bytes == 10'000);
}

}  // namespace
}  // namespace tw::test
