// SPDX-License-Identifier: Apache-2.0
// Messages between the ranks of a group.
#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <set>
#include <thread>

#include "collective/group.h"
#include "test/call/world.h"
#include "test/collective/ranks.h"

namespace tw::test {
namespace {

TEST_CASE("group: messages between two ranks come by their tags") {
  as_ranks(2, [](Group& group) -> std::string {
    const int other = 1 - group.rank();
    const auto mine = array_of<double>(group.rank(), 300'000);
    std::vector<double> theirs(300'000);
    const Wait wait = within(kLong);
    const auto view = std::as_bytes(std::span(mine));
    for (const uint64_t tag : {uint64_t{0}, Group::kMaxTag})
      if (Status status = group.send(other, tag, view, wait); !status.ok()) return status.details();
    for (const uint64_t tag : {Group::kMaxTag, uint64_t{0}}) {
      const Status status =
          group.receive(other, tag, std::as_writable_bytes(std::span(theirs)), wait);
      if (!status.ok() || theirs != array_of<double>(other, 300'000)) return "receive";
    }
    if (group.send(other, Group::kMaxTag + 1, view, wait).code() != Code::kInvalidArgument)
      return "a tag too high";
    if (group.send(group.rank(), 1, view, wait).code() != Code::kInvalidArgument)
      return "to itself";
    if (group.send(other, 7, view.first(16), wait).code() != Code::kOk) return "send";
    std::vector<double> wrong(3);
    const Status larger = group.receive(other, 7, std::as_writable_bytes(std::span(wrong)), wait);
    return larger.code() == Code::kOutOfRange ? "" : "another size";
  });
}

TEST_CASE("group: each message goes to one receive, in its rank's order, whoever asks") {
  constexpr uint64_t kTag = 5;
  constexpr int kEach = 300, kRanks = 3, kAll = kEach * (kRanks - 1);
  as_ranks(kRanks, [](Group& group) -> std::string {
    if (group.rank() != 0) {
      for (int i = 0; i < kEach; ++i) {
        const std::array<int, 2> message{group.rank(), i};
        const Status sent = group.send(0, kTag, std::as_bytes(std::span(message)), within(kLong));
        if (!sent.ok()) return sent.details();
      }
      const auto done =
          group.run({CollectiveKind::kBarrier, DataType::kUint8, ReduceOp::kSum, 0, 0}, nullptr,
                    nullptr, within(kLong));
      return done.details();
    }
    std::mutex mutex;
    std::string wrong;
    std::set<std::array<int, 2>> seen;
    std::atomic<int> taken{0};
    // Two that ask all ranks, and one for each rank; they give up all the time.
    const auto ask = [&](int rank) {
      std::array<int, kRanks> next{};
      const auto give_up = now() + kLong;
      while (taken < kAll && now() < give_up) {
        std::array<int, 2> message{};
        const auto into = std::as_writable_bytes(std::span(message));
        const Wait wait = within(kMillisecond / 4);
        const Result<int> from = rank < 0 ? group.receive_any(kTag, into, wait) : [&] {
          const Status status = group.receive(rank, kTag, into, wait);
          return status.ok() ? Result<int>(rank) : Result<int>(status);
        }();
        if (!from && from.status().code() == Code::kDeadlineExceeded) continue;
        const std::lock_guard lock(mutex);
        ++taken;
        if (!from) {
          wrong = from.status().details();
          taken = kAll;
        } else if (message[0] != *from || message[1] < next[static_cast<size_t>(*from)] ||
                   !seen.insert(message).second) {
          wrong = "a message of rank " + std::to_string(*from) + " came twice or late";
        } else {
          next[static_cast<size_t>(*from)] = message[1] + 1;
        }
      }
    };
    std::vector<std::thread> threads;
    for (const int rank : {-1, -1, 1, 2}) threads.emplace_back(ask, rank);
    for (std::thread& thread : threads) thread.join();
    if (!wrong.empty()) return wrong;
    if (seen.size() != kAll) return "messages are missing";
    const auto done = group.run({CollectiveKind::kBarrier, DataType::kUint8, ReduceOp::kSum, 0, 0},
                                nullptr, nullptr, within(kLong));
    return done.details();
  });
}

}  // namespace
}  // namespace tw::test
