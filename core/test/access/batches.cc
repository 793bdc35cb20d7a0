// SPDX-License-Identifier: Apache-2.0
// Batches, signals, fences and flushes: one suite over every transport.
#include <algorithm>
#include <cstring>
#include <thread>

#include "test/access/one_sided.h"

namespace tw::test {
namespace {

Status run_batch(AccessPort& side, const Ref<AccessBatch>& batch,
                 std::optional<uint64_t> value = std::nullopt) {
  auto started = side.start(batch, value, {}, {}, true);
  return started ? ended(side, **started) : started.status();
}

TEST_CASE_TEMPLATE("one-sided: a batch of strided runs moves exactly its bytes", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  constexpr size_t kSize = 1 << 20;
  const auto [region, memory] = expose(ends, kSize, kAllRights, live);
  const auto [other, elsewhere] = expose(ends, 64, kAllRights, live);
  std::vector<std::byte> local = bytes_of(kSize), expected(kSize);
  // More runs than a window has pieces, of a length that fits no word.
  AccessRequest runs = access(Kind::kWrite, region, 3, local.data() + 5, 13);
  runs.count = 1000;
  runs.stride = 700;
  runs.local_stride = 17;
  for (size_t i = 0; i < runs.count; ++i)
    std::copy_n(local.data() + 5 + i * 17, 13, expected.data() + 3 + i * 700);
  const AccessRequest more = access(Kind::kWrite, other, 8, local.data(), 8);
  const auto batch = ends.here().prepare(std::array{runs, more}, std::nullopt).value();
  CHECK(batch->bytes() == 13'008);
  CHECK(batch->runs() == 1001);
  for (int round = 0; round < 3; ++round) {
    meet(ends.there());
    std::fill_n(memory->data(), kSize, std::byte{});
    meet(ends.there());
    REQUIRE(run_batch(ends.here(), batch).ok());
    meet(ends.there());
    CHECK(std::equal(expected.begin(), expected.end(), memory->data()));
    CHECK(std::equal(local.begin(), local.begin() + 8, elsewhere->data() + 8));
  }
  std::vector<std::byte> back(13 * 1000);
  AccessRequest reads = access(Kind::kRead, for_reading(ends, region, *memory), 3, back.data(), 13);
  reads.count = 1000;
  reads.stride = 700;
  reads.local_stride = 13;
  REQUIRE(
      run_batch(ends.here(), ends.here().prepare(std::array{reads}, std::nullopt).value()).ok());
  for (size_t i = 0; i < 1000; ++i)
    REQUIRE(
        std::equal(back.data() + 13 * i, back.data() + 13 * (i + 1), local.data() + 5 + 17 * i));
}

TEST_CASE_TEMPLATE("one-sided: a batch that cannot be right is refused when it is prepared", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const uint64_t region = expose(ends, 64, kMayRead | kMayWrite, live).first;
  std::array<std::byte, 64> local{};
  const auto code = [&](const AccessRequest& request, std::optional<Signal> signal = {}) {
    return ends.here().prepare(std::array{request}, signal).status().code();
  };
  const AccessRequest good = access(Kind::kWrite, region, 0, local.data(), 8);
  AccessRequest far = good;
  far.count = 3;
  far.stride = 30;
  CHECK(code(far) == Code::kOutOfRange);
  far.stride = UINT64_MAX / 2 + 1;
  CHECK(code(far) == Code::kOutOfRange);
  far.stride = far.local_stride = far.length = UINT64_MAX / 2;
  CHECK(code(far) == Code::kOutOfRange);
  CHECK(code(access(Kind::kRead, region + 5, 0, local.data(), 8)) == Code::kNotFound);
  CHECK(code(access(Kind::kFetchAdd, region, 0, local.data(), 8)) == Code::kInvalidArgument);
  CHECK(code(access(Kind::kRead, region, 0, local.data(), 8), Signal{region, 0, 1, false}) ==
        Code::kInvalidArgument);
  CHECK(code(good, Signal{region, 4, 1, false}) == Code::kInvalidArgument);
  CHECK(code(good, Signal{region, 64, 1, false}) == Code::kOutOfRange);
  CHECK(code(good, Signal{region, 0, 1, true}) == Code::kPermissionDenied);
  CHECK(code(good, Signal{region + 5, 0, 1, true}) == Code::kNotFound);
  const auto batch = ends.here().prepare(std::array{good}, std::nullopt).value();
  REQUIRE(run_batch(ends.here(), batch).ok());
  if (!by_runtime(*ends.client)) return;
  CHECK(ends.there().conceal(region).ok());
  CHECK(run_batch(ends.here(), batch).code() == Code::kNotFound);
}

TEST_CASE_TEMPLATE("one-sided: a signal is seen after all of its payload", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  constexpr size_t kSize = 100'000;
  const auto [region, memory] = expose(ends, kSize, kAllRights, live);
  const auto [flags, words] = expose(ends, 64, kAllRights, live);
  std::vector<std::byte> local(kSize);
  const auto batch = ends.here()
                         .prepare(std::array{access(Kind::kWrite, region, 0, local.data(), kSize)},
                                  Signal{flags, 8, 0, false})
                         .value();
  const auto word = ends.there().word(flags, 8).value();
  std::atomic<uint64_t> read{0};
  std::thread reader([&, at = memory->data()] {
    for (uint64_t turn = 1; turn <= 50; ++turn) {
      while (word.load() < turn)
        REQUIRE(ends.there().wait_word(word, turn, patience()) != Waited::kTimeout);
      const auto due = static_cast<std::byte>(turn);
      meet(ends.there());
      CHECK(std::all_of(at, at + kSize, [&](std::byte b) { return b == due; }));
      read = turn;
    }
  });
  for (uint64_t turn = 1; turn <= 50; ++turn) {
    std::ranges::fill(local, static_cast<std::byte>(turn));
    REQUIRE(run_batch(ends.here(), batch, turn).ok());
    CHECK(eventually([&] { return read == turn; }));
  }
  reader.join();
  (void)words;
}

TEST_CASE_TEMPLATE("one-sided: a wait for a word ends with its region, its link and its deadline",
                   Way, TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const uint64_t region = expose(ends, 64, kAllRights, live).first;
  const uint64_t another = expose(ends, 64, kAllRights, live).first;
  AccessPort& there = ends.there();
  CHECK(there.word(region, 60).status().code() == Code::kOutOfRange);
  CHECK(there.word(region, 4).status().code() == Code::kInvalidArgument);
  CHECK(there.word(99, 0).status().code() == Code::kNotFound);
  const auto first = there.word(region, 0).value(), second = there.word(another, 0).value();
  CHECK(there.wait_word(first, 1, now() + kMillisecond) == Waited::kTimeout);
  CHECK(there.change(first, 3, true) == 0);
  CHECK(there.wait_word(first, 3, patience()) == Waited::kDone);
  std::thread waits([&] { CHECK(there.wait_word(first, 9, patience()) == Waited::kDone); });
  CHECK(there.conceal(region).ok());
  waits.join();
  CHECK(there.ended(first).code() == Code::kNotFound);
  std::thread more([&] { CHECK(there.wait_word(second, 9, patience()) == Waited::kDone); });
  ends.client->link().close({Code::kCancelled, "enough"});
  more.join();
  CHECK(there.ended(second).code() == Code::kUnavailable);
}

TEST_CASE("one-sided: a wait for a word sees the stores of a peer that maps it only then") {
  std::atomic<int>& live = tally();
  OneSidedHouse<TcpWay> house;
  Ends<TcpWay> ends(house);
  OneSidedHouse<ShmWay> other_house;
  Ends<ShmWay> other(other_house);
  const auto memory = make_ref<Storage>(64, live, From::kShared);
  AccessPort& there = ends.there();
  const uint64_t region = there.expose(memory->data(), 64, kAllRights, memory).value();
  const auto word = there.word(region, 0).value();
  const uint64_t sleeps = ends.server->link().stats().sleeps;
  std::atomic<bool> woke{false};
  std::thread waits([&] {
    CHECK(there.wait_word(word, 1, kForever) == Waited::kDone);
    woke = true;
  });
  CHECK(eventually([&] { return ends.server->link().stats().sleeps != sleeps; }));
  const uint64_t same = other.there().expose(memory->data(), 64, kAllRights, memory).value();
  (void)arrived(other.here(), same);
  CHECK(other.here().mapped(same));
  const uint64_t one = 1;
  CHECK(write(other.here(), same, 0, std::as_bytes(std::span(&one, 1))).ok());
  CHECK(eventually([&] { return woke.load(); }));
  ends.client->link().close({Code::kCancelled, "enough"});  // which ends it in any case
  waits.join();
}

TEST_CASE_TEMPLATE("one-sided: what follows a fence happens after reads, and a flush ends last",
                   Way, TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  constexpr size_t kSize = 300'000;
  const auto [region, memory] = expose(ends, kSize, kAllRights, live);
  AccessPort& here = ends.here();
  CHECK(ended(here, *here.flush().value()).ok());
  std::vector<std::byte> ones(kSize, std::byte{1}), got(kSize, std::byte{9});
  const auto read_first = here.start(access(Kind::kRead, region, 0, got.data(), kSize), {}).value();
  here.fence();
  const auto then = here.start(access(Kind::kWrite, region, 0, ones.data(), kSize), {}).value();
  CHECK(ended(here, *then).ok());
  CHECK(read_first->ended());
  CHECK(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0}; }));
  std::vector<Ref<Access>> started;
  for (int i = 0; i < 20; ++i)
    started.push_back(here.start(access(Kind::kWrite, region, 0, ones.data(), kSize), {}).value());
  CHECK(ended(here, *here.flush().value()).ok());
  for (const auto& one : started) CHECK(one->ended());
  ends.client->link().close({Code::kCancelled, "enough"});
  CHECK(here.flush().status().code() == Code::kCancelled);
  (void)memory;
}

}  // namespace
}  // namespace tw::test
