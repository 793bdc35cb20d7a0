// SPDX-License-Identifier: Apache-2.0
// The rings' memory orders: enough, and none to spare.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "test/model/ring_programs.h"
#include "test/not_tried.h"
#include "test/sanitized.h"

namespace tw::model {
namespace {

using test::kSanitized;

constexpr SleepStyle kBackground{Sleeper::kBackground};
constexpr SleepStyle kDriver{Sleeper::kDriver};

using Setup = std::function<void(Program&)>;

Setup one_way_of(SleepStyle style, size_t capacity, std::vector<size_t> messages, size_t room) {
  return [=](Program& program) { one_way(program, style, capacity, messages, room); };
}
Setup both_ways_of(SleepStyle style, std::array<size_t, 2> bytes) {
  return [=](Program& program) { both_ways(program, style, bytes); };
}
Setup lend_of(SleepStyle style) {
  return [=](Program& program) { lend(program, style); };
}
Setup driver_beside_sender_of(SleepStyle style) {
  return [=](Program& program) { driver_beside_sender(program, style); };
}

std::string violation(const Setup& setup, Shortcuts shortcuts = Shortcuts::kTaken) {
  Program program(setup);
  return explore(program, shortcuts).violation;
}

// No execution breaks a rule; tells how if one does.
void holds(const Setup& setup) {
  Program program(setup);
  const Report report = explore(program);
  std::string trace;
  for (const std::string& line : report.trace) trace += line + '\n';
  INFO(trace);
  CHECK(report.violation == "");
  CHECK(report.states > 100);
}

// Makes one order weaker while it lives.
class Weakened {
 public:
  explicit Weakened(RingSite site) { ModelAtomics::weakened = site; }
  ~Weakened() { ModelAtomics::weakened.reset(); }
  Weakened(const Weakened&) = delete;
  Weakened& operator=(const Weakened&) = delete;
};

TEST_CASE("rings: bytes arrive in order and nobody sleeps for ever") {
  holds(one_way_of(kBackground, 1, {1, 1}, 2));
  // Sanitizers look at the explorer, not at the rings, and slow it down thirtyfold: small programs
  // do.
  if (kSanitized)
    return test::not_tried("a sanitizer slows the explorer down: small programs only");
  holds(one_way_of(kBackground, 1, {3}, 1));
  holds(one_way_of(kDriver, 1, {3}, 1));
  holds(one_way_of(kBackground, 2, {1, 2}, 1));
  holds(one_way_of(kDriver, 2, {3, 2}, 2));
  holds(one_way_of({Sleeper::kBackground, 1}, 1, {2}, 1));
  holds(one_way_of({Sleeper::kDriver, 1}, 1, {2}, 1));
}

TEST_CASE("rings: two ends that both have more to send than there is room for") {
  holds(both_ways_of(kBackground, {1, 1}));
  if (kSanitized)
    return test::not_tried("a sanitizer slows the explorer down: small programs only");
  holds(both_ways_of(kBackground, {2, 1}));
  holds(both_ways_of(kDriver, {2, 2}));
}

TEST_CASE("rings: memory that was lent is written to again only after its reader is done") {
  holds(lend_of(kBackground));
  holds(lend_of(kDriver));
}

TEST_CASE("rings: a sender may be cut short while another thread of its end goes to sleep") {
  holds(driver_beside_sender_of(kBackground));
}

TEST_CASE("rings: no order can be spared") {
  const auto caught = [](RingSite site, const Setup& setup) {
    const Weakened weakened(site);
    return violation(setup);
  };
  const Setup stream = one_way_of(kBackground, 1, {2}, 1);
  CHECK(caught(RingSite::kStoreTail, stream).starts_with("data race"));
  CHECK(caught(RingSite::kLoadTail, stream).starts_with("data race"));
  CHECK(caught(RingSite::kStoreHead, stream).starts_with("data race"));
  CHECK(caught(RingSite::kLoadHead, stream).starts_with("data race"));
  for (const SleepStyle style : {kBackground, kDriver}) {
    const Setup sleepy = one_way_of(style, 1, {2}, 1);
    CHECK(caught(RingSite::kFenceAfterWrite, sleepy) == "threads wait for ever");
    CHECK(caught(RingSite::kFenceBeforeSleep, sleepy) == "threads wait for ever");
    CHECK(caught(RingSite::kFenceAfterRead, sleepy) == "threads wait for ever");
  }
  // One thread alone looks for room once more before it sleeps; two need the fence in the write.
  CHECK(caught(RingSite::kFenceWhenFull, driver_beside_sender_of(kBackground)) ==
        "threads wait for ever");
  // The lease comes home through the same orders as bytes.
  CHECK(caught(RingSite::kStoreTail, lend_of(kDriver)).starts_with("data race"));
  CHECK(caught(RingSite::kLoadTail, lend_of(kDriver)).starts_with("data race"));
}

TEST_CASE("rings: the explorer's shortcuts change no verdict") {
  std::vector<Setup> programs = {one_way_of(kBackground, 1, {1}, 1),
                                 both_ways_of(kBackground, {1, 1})};
  if (!kSanitized) programs.push_back(one_way_of(kDriver, 1, {2}, 1));
  for (size_t i = 0; i < programs.size(); ++i) {
    CAPTURE(i);
    CHECK(violation(programs[i], Shortcuts::kNotTaken) == "");
    for (int site = 0; site <= static_cast<int>(RingSite::kFenceAfterRead); ++site) {
      CAPTURE(site);
      const Weakened weakened(static_cast<RingSite>(site));
      CHECK(violation(programs[i]).empty() == violation(programs[i], Shortcuts::kNotTaken).empty());
    }
  }
}

}  // namespace
}  // namespace tw::model
