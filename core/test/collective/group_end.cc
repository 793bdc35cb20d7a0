// SPDX-License-Identifier: Apache-2.0
// How a group ends, and what does not end it.
#include <doctest/doctest.h>

#include <thread>

#include "collective/group.h"
#include "process/runtime.h"
#include "test/call/world.h"
#include "test/collective/ranks.h"

namespace tw::test {
namespace {

// What an all-reduce of so many floats comes to.
Status all_reduce(Group& group, size_t count, Nanos time = kLong, ReduceOp op = ReduceOp::kSum) {
  std::vector<float> data(count);
  const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, op, 0, count};
  return group.run(call, bytes(data), bytes(data), within(time));
}

TEST_CASE("group: ranks that call different operations are told who called what") {
  for (const bool large : {false, true})
    as_ranks(3, [large](Group& group) -> std::string {
      const size_t count = large ? 100'000 : 4;
      const Status status = all_reduce(group, count + (group.rank() == 2 ? 1 : 0));
      // Who finds it tells the others.
      if (status.code() != Code::kAborted && status.code() != Code::kUnavailable)
        return "no disagreement: " + status.details();
      if (status.details().find("called all_reduce of ") == std::string::npos)
        return status.details();
      const Status later = all_reduce(group, 4);
      return later.details() == status.details() ? "" : "it went on: " + later.details();
    });
}

TEST_CASE("group: ranks that wait for each other in a circle are told who called what") {
  const Variable forced("TENSORWIRE_ALLREDUCE", "ring");
  as_ranks_of(kPlacements[2], 4, [](Group& group) -> std::string {
    // All but one go along a ring, and that one waits for its root.
    std::vector<float> data(1 << 16);
    const size_t count = data.size();
    const bool ring = group.rank() != 2;
    const CollectiveCall call{ring ? CollectiveKind::kAllReduce : CollectiveKind::kBroadcast,
                              DataType::kFloat32, ReduceOp::kSum, 0, count};
    const Status status = group.run(call, bytes(data), bytes(data), within(kLong));
    if (status.code() != Code::kAborted && status.code() != Code::kUnavailable)
      return "no disagreement: " + status.details();
    return status.details().find("called broadcast of ") == std::string::npos ? status.details()
                                                                              : std::string();
  });
}

TEST_CASE("group: who waits for a rank that does not come is told which, and all end") {
  as_ranks(3, [](Group& group) -> std::string {
    if (group.rank() == 1) {
      // The others end; this one finds the group ended.
      while (group.members().standing().ok() && !group.members().failed())
        std::this_thread::yield();
      const Status status = all_reduce(group, 4);
      return status.ok() ? "it went on" : "";
    }
    const Status status = all_reduce(group, 4, 200 * kMillisecond);
    // Beyond its host a rank knows only that the one that speaks for the others has not come.
    const bool late = status.code() == Code::kDeadlineExceeded &&
                      (status.details().find("rank 1") != std::string::npos ||
                       (group.rank() == 2 && group.fabric() != std::string("shared memory")));
    const bool told = status.code() == Code::kUnavailable &&
                      status.details().find("has not come") != std::string::npos;
    return late || told ? "" : status.details();
  });
}

TEST_CASE("group: a rank that leaves is missed by those who still need it, and by nobody else") {
  as_ranks(3, [](Group& group) -> std::string {
    if (Status status = all_reduce(group, 100'000); !status.ok()) return status.details();
    if (group.rank() == 2) return {};  // it leaves
    const Status status = all_reduce(group, 8);
    if (status.code() != Code::kUnavailable) return "it went on: " + status.details();
    return status.details().find("rank 2") != std::string::npos ? "" : status.details();
  });
}

TEST_CASE("group: an abort wakes all ranks") {
  as_ranks(3, [](Group& group) -> std::string {
    if (group.rank() == 0) {
      std::thread([&] { group.abort("the user had enough"); }).join();
      return all_reduce(group, 4).code() == Code::kCancelled ? "" : "it went on";
    }
    const Status status = all_reduce(group, 4);
    return status.details().find("the user had enough") != std::string::npos ? ""
                                                                             : status.details();
  });
}

TEST_CASE("group: an interrupted wait ends the group") {
  as_ranks(2, [](Group& group) -> std::string {
    std::vector<float> data(4);
    const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0, 4};
    if (group.rank() == 0) {
      const Wait wait{kForever, [](void*) { return 1; }, nullptr};
      return group.run(call, bytes(data), bytes(data), wait).code() == Code::kCancelled ? "" : "ok";
    }
    while (group.members().standing(0).ok()) std::this_thread::yield();
    return all_reduce(group, 4).code() == Code::kUnavailable ? "" : "it went on";
  });
}

TEST_CASE("group: arguments that are wrong by themselves change nothing") {
  as_ranks(2, [](Group& group) -> std::string {
    std::vector<float> data(4);
    CollectiveCall call{CollectiveKind::kBroadcast, DataType::kFloat32, ReduceOp::kSum, 2, 4};
    const auto code = [&] {
      return group.run(call, bytes(data), bytes(data), within(kLong)).code();
    };
    if (code() != Code::kInvalidArgument) return "root 2 of 2";
    call.root = -1;
    if (code() != Code::kInvalidArgument) return "root -1";
    call = {CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kBitAnd, 0, 4};
    if (code() != Code::kInvalidArgument) return "bits of floats";
    call = {CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0, ~uint64_t{0}};
    if (code() != Code::kInvalidArgument) return "a count of uneven shares";
    call.count = uint64_t{1} << 60;
    if (code() != Code::kInvalidArgument) return "a count beyond memory";
    call = {CollectiveKind::kAllReduce, DataType::kInt32, ReduceOp::kSum, 0, 4};
    if (group.run(call, bytes(data), bytes(data), within(kLong), 2).code() !=
        Code::kInvalidArgument)
      return "a factor of integers";
    call = {CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kMax, 0, 4};
    if (group.run(call, bytes(data), bytes(data), within(kLong), 2).code() !=
        Code::kInvalidArgument)
      return "a factor of a maximum";
    return all_reduce(group, 4).ok() ? "" : "the group has ended";
  });
}

TEST_CASE("group: a rank that gives another size than the other one takes is named") {
  as_ranks(2, [](Group& group) -> std::string {
    std::vector<int64_t> in(8), out(8);
    const size_t wrong = group.rank() == 0 ? 8 : 0;
    const std::vector<Fabric::Run> gives{{0, 16}, {16, 16 + wrong}}, takes{{0, 16}, {16, 16}};
    const CollectiveCall call{CollectiveKind::kAllToAll, DataType::kInt64, ReduceOp::kSum, 0,
                              CollectiveCall::kUneven};
    const Status status = group.exchange(call, bytes(in), gives, bytes(out), takes, within(kLong));
    if (group.rank() == 1 && status.code() != Code::kAborted) return "the code of another error";
    return status.details().find("gives 24 bytes to") != std::string::npos ? "" : status.details();
  });
}

TEST_CASE("group: a rank that would take from itself another size than it gives is refused") {
  as_ranks(2, [](Group& group) -> std::string {
    std::vector<int64_t> in(8), out(8);
    const std::vector<Fabric::Run> gives(2, {0, 16}), takes(2, {0, 24});
    const CollectiveCall call{CollectiveKind::kAllToAll, DataType::kInt64, ReduceOp::kSum, 0,
                              CollectiveCall::kUneven};
    if (group.exchange(call, bytes(in), gives, bytes(out), takes, within(kLong)).code() !=
        Code::kInvalidArgument)
      return "it was taken";
    return all_reduce(group, 4).ok() ? "" : "the group has ended";
  });
}

TEST_CASE("group: a rank that does not exist, or does not come, keeps nobody waiting") {
  MemoryStore store;
  CHECK(Group::make(store, {2, 2, "127.0.0.1"}, within(kLong)).status().code() ==
        Code::kInvalidArgument);
  CHECK(Group::make(store, {0, 0, "127.0.0.1"}, within(kLong)).status().code() ==
        Code::kInvalidArgument);
  const Status alone = Group::make(store, {0, 2, "127.0.0.1"}, within(50 * kMillisecond)).status();
  CHECK(alone.code() == Code::kDeadlineExceeded);
  CHECK(alone.details() ==
        "rank 1 has not come to the group of 2 in time; see whether its process runs, and has the "
        "same store");
}

TEST_CASE("group: what is in a store is no more than bytes") {
  class Spoiled final : public collective::Store {
   public:
    Status set(const std::string&, std::span<const std::byte>) override { return {}; }
    Result<std::vector<std::byte>> get(const std::string&, const Wait&) override {
      return std::vector<std::byte>(200, std::byte{0x5a});
    }
  };
  Spoiled store;
  CHECK(Group::make(store, {0, 2, "127.0.0.1"}, within(kLong)).status().code() ==
        Code::kInvalidArgument);
  CHECK(Group::make(store, {1, 2, "127.0.0.1"}, within(kLong)).status().code() ==
        Code::kFailedPrecondition);  // a welcome of another version
}

TEST_CASE("group: memory goes back when a group ends") {
  const auto used = [] { return runtime().arena().stats().used; };
  const size_t before = used();
  for (int round = 0; round < 3; ++round)
    as_ranks(3, [](Group& group) -> std::string {
      return all_reduce(group, 200'000).ok() ? "" : "all_reduce";
    });
  CHECK(eventually([&] { return used() <= before; }));
}

}  // namespace
}  // namespace tw::test
