// SPDX-License-Identifier: Apache-2.0
// One-sided operations of who blocks on them, and how their waits end.
#include "access/blocking.h"

#include "test/access/one_sided.h"

namespace tw::test {
namespace {

// A wait whose caller has been interrupted.
Wait interrupted() {
  return {patience(), [](void*) { return 1; }, nullptr};
}
Wait patient() { return {patience(), nullptr, nullptr}; }
constexpr Wait kNoTime{0, nullptr, nullptr};

void check_late(const Result<bool>& done, std::string_view details) {
  REQUIRE_FALSE(done.ok());
  CHECK(done.status().code() == Code::kDeadlineExceeded);
  CHECK(done.status().details() == details);
}
void check_interrupted(const Result<bool>& done) {
  REQUIRE(done.ok());
  CHECK_FALSE(*done);
}
void check_done(const Result<bool>& done) {
  REQUIRE_MESSAGE(done.ok(), done.status().details());
  CHECK(*done);
}

// A write without bytes, with this immediate.
void notify(AccessPort& side, uint64_t region, uint32_t value) {
  auto request = access(Kind::kWriteImmediate, region, 0, nullptr, 0);
  request.immediate = value;
  REQUIRE(run(side, request).ok());
}

TEST_CASE_TEMPLATE("blocking: a wait for an immediate", Way, TENSORWIRE_WAYS) {
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  AccessPort& there = ends.there();
  const uint64_t region = expose(ends, 8, kAllRights, live).first;
  uint32_t value = 0;
  SUBCASE("has no time, or is interrupted") {
    check_late(await_immediate(there, kNoTime, value), "no write with immediate came in time");
    check_interrupted(await_immediate(there, interrupted(), value));
  }
  SUBCASE("takes what is there without any time") {
    notify(ends.here(), region, 7);
    REQUIRE(eventually([&] { return there.wait_immediate(0) == Waited::kDone; }));
    check_done(await_immediate(there, kNoTime, value));
    CHECK(value == 7);
  }
  SUBCASE("ends with the link, after all values that came before") {
    notify(ends.here(), region, 8);
    REQUIRE(eventually([&] { return there.wait_immediate(0) == Waited::kDone; }));
    std::thread waits([&] {
      check_done(await_immediate(there, patient(), value));
      CHECK(value == 8);
      const auto done = await_immediate(there, patient(), value);
      REQUIRE_FALSE(done.ok());
      CHECK(done.status().code() == Code::kUnavailable);
      CHECK(done.status().details() == there.link().death().details());
    });
    ends.client->link().close({Code::kCancelled, "enough"});
    waits.join();
  }
  SUBCASE("goes on when another thread has taken the value") {
    constexpr uint32_t kValues = 200;
    std::array<std::atomic<int>, kValues> taken{};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&] {
        uint32_t mine = 0;
        while (await_immediate(there, patient(), mine).ok()) ++taken[mine];
      });
    for (uint32_t i = 0; i < kValues; ++i) notify(ends.here(), region, i);
    CHECK(eventually(
        [&] { return std::ranges::all_of(taken, [](const auto& times) { return times == 1; }); }));
    ends.client->link().close({Code::kCancelled, "enough"});
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_CASE_TEMPLATE("blocking: a wait for a word", Way, TENSORWIRE_WAYS) {
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  AccessPort& there = ends.there();
  const uint64_t region = expose(ends, 64, kAllRights, live).first;
  uint64_t value = 99;
  const auto await = [&](uint64_t at_least, const Wait& wait) {
    return await_word(there, region, 8, at_least, wait, value);
  };
  REQUIRE(update(ends.here(), Kind::kFetchAdd, region, 8, 3) == 0);
  SUBCASE("tells the value, whatever it comes to") {
    check_late(await(4, kNoTime), "the word has not been reached in time");
    CHECK(value == 3);
    value = 99;
    check_interrupted(await(4, interrupted()));
    CHECK(value == 3);
    value = 99;
    check_done(await(3, kNoTime));
    CHECK(value == 3);
  }
  SUBCASE("is interrupted, also where the word comes meanwhile") {
    struct Both {
      AccessPort& side;
      uint64_t region;
    } both{ends.here(), region};
    const auto comes = [](void* context) {
      auto& [side, of] = *static_cast<Both*>(context);
      (void)update(side, Kind::kFetchAdd, of, 8, 2);
      return 1;
    };
    check_interrupted(await(5, {patience(), comes, &both}));
    check_done(await(5, kNoTime));
  }
  SUBCASE("is over once the peer has written so much") {
    std::thread waits([&] { check_done(await(5, patient())); });
    (void)update(ends.here(), Kind::kFetchAdd, region, 8, 2);
    waits.join();
    CHECK(value == 5);
  }
  SUBCASE("is over when the region is") {
    std::thread waits([&] {
      const auto done = await(5, patient());
      REQUIRE_FALSE(done.ok());
      CHECK(done.status().code() == Code::kNotFound);
    });
    check_done(conceal(there, region, patient()));
    waits.join();
    CHECK(await(3, patient()).status().code() == Code::kNotFound);
  }
  SUBCASE("needs a word") {
    CHECK(await_word(there, region, 60, 1, patient(), value).status().code() == Code::kOutOfRange);
    CHECK(value == 99);
  }
}

TEST_CASE_TEMPLATE("blocking: an operation can be waited for again", Way, TENSORWIRE_WAYS) {
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const uint64_t region = expose(ends, 8, kMayWrite, live).first;
  auto local = make_ref<Storage>(8, live);
  local->words()[0] = 5;
  Ref<Access> operation;
  {
    const Link::Sending stalled(ends.server->link());  // nothing is served there meanwhile
    operation = ends.here().start(access(Kind::kWrite, region, 0, local->data(), 8), local).value();
    check_late(await_end(ends.here(), *operation, kNoTime), "the operation has not ended yet");
    check_interrupted(await_end(ends.here(), *operation, interrupted()));
  }
  check_done(await_end(ends.here(), *operation, patient()));
  check_done(await_end(ends.here(), *operation, kNoTime));
}

TEST_CASE_TEMPLATE("blocking: an operation that failed says how", Way, TENSORWIRE_WAYS) {
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const uint64_t region = expose(ends, 8, kMayWrite, live).first;
  auto local = make_ref<Storage>(8, live);
  Ref<Access> operation;
  const Link::Sending stalled(ends.server->link());
  operation = ends.here().start(access(Kind::kWrite, region, 0, local->data(), 8), local).value();
  ends.client->link().close({Code::kCancelled, "enough"});
  const auto done = await_end(ends.here(), *operation, patient());
  REQUIRE_FALSE(done.ok());
  CHECK(done.status().code() == Code::kCancelled);
}

TEST_CASE("blocking: a wait for any of several words") {
  SharedMemories home{1 << 20};
  const Ref<SharedMemory> first = home.make(16).value(), second = home.make(16).value();
  std::vector<AwaitedWord> words{{first.get(), 0, 1, 0}, {second.get(), 8, 1, 0}};
  check_late(await_any(words, 0, kNoTime), "none of the words has been reached in time");
  check_interrupted(await_any(words, 0, interrupted()));
  CHECK(await_any({}, 0, patient()).status().code() == Code::kInvalidArgument);
  words[1].offset = 4;
  CHECK(await_any(words, 0, patient()).status().code() == Code::kInvalidArgument);
  words[1].offset = 16;
  CHECK(await_any(words, 0, patient()).status().code() == Code::kOutOfRange);
  words[1].offset = 8;
  std::thread waits([&] { check_done(await_any(words, 0, patient())); });
  nudge(*second);
  waits.join();
}

}  // namespace
}  // namespace tw::test
