// SPDX-License-Identifier: Apache-2.0
// Which way the operations of a group go: as it is told, by a table, or by sizes and ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <semaphore>
#include <thread>

#include "collective/group.h"
#include "test/call/world.h"
#include "test/collective/operations.h"

namespace tw::test {
namespace {

TEST_CASE("group: each algorithm has the same bits on all ranks, for any number of them") {
  const std::vector<int> sizes = kSanitized ? std::vector{3, 5} : std::vector{2, 3, 5, 8};
  for (const char* algorithm :
       {"direct", "pairwise", "ring", "recursive_doubling", "halving_doubling"})
    for (const int size : sizes) {
      CAPTURE(algorithm);
      CAPTURE(size);
      const Variable forced("TENSORWIRE_ALLREDUCE", algorithm);
      as_ranks_of(kPlacements[0], size, [](Group& group) -> std::string {
        for (const size_t count : {0, 5, 1000, 150'003}) {
          const auto n = static_cast<size_t>(count);
          for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
            const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, op, 0, n};
            auto data = array_of<float>(group.rank(), n);
            const auto sum = sum_of<float>(group.size(), n);
            for (const bool in_place : {false, true}) {
              std::vector<float> out(n);
              const auto mine = data;
              Status status = group.run(call, bytes(in_place ? data : mine),
                                        bytes(in_place ? data : out), within(kLong));
              if (!status.ok()) return status.details();
              if (in_place) out = data;
              for (size_t i = 0; i < n && op != ReduceOp::kMax; ++i) {
                const float whole = op == ReduceOp::kSum
                                        ? sum[i]
                                        : sum[i] * (1.0f / static_cast<float>(group.size()));
                if (out[i] != whole) return "wrong at " + std::to_string(i);
              }
              std::vector<float> first = out;
              status = group.run({CollectiveKind::kBroadcast, DataType::kFloat32, op, 0, n},
                                 nullptr, bytes(first), within(kLong));
              if (!status.ok()) return status.details();
              if (first != out) return "other bits than rank 0";
            }
          }
          // Floats that are rounded once, whatever the algorithm: 256 + 1 is 256 in bfloat16.
          std::vector<uint16_t> halves(n, group.rank() == 0 ? 0x4380 : 0x3f80);
          const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kBfloat16, ReduceOp::kSum,
                                    0, n};
          const Status status = group.run(call, bytes(halves), bytes(halves), within(kLong));
          if (!status.ok()) return status.details();
          const float whole = 256.0f + static_cast<float>(group.size() - 1);
          const auto rounded = std::bit_cast<uint32_t>(whole) + 0x7fff +
                               ((std::bit_cast<uint32_t>(whole) >> 16) & 1);
          if (std::ranges::any_of(halves, [&](uint16_t half) { return half != rounded >> 16; }))
            return "bfloat16 is rounded more than once";
        }
        return {};
      });
    }
}

// What two ranks are told that do not fit together. `differ` makes their seats differ.
std::array<Status, 2> told_apart(void (*differ)(collective::Seat&)) {
  MemoryStore store;
  std::vector<std::thread> threads;
  std::array<Status, 2> ends;
  std::mutex mutex;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      collective::Seat seat{rank, 2, "127.0.0.1", {}};
      differ(seat);
      auto group = Group::make(store, seat, within(kLong));
      const std::lock_guard lock(mutex);
      ends[static_cast<size_t>(rank)] = group.status();
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST_CASE("group: ranks that were told different algorithms are told so") {
  for (const Status& end : told_apart([](collective::Seat& seat) {
         seat.algorithm = seat.rank == 0 ? Algorithm::kRing : Algorithm::kDirect;
       })) {
    CAPTURE(end.details());
    CHECK(end.details().find("TENSORWIRE_ALLREDUCE") != std::string::npos);
  }
}

TEST_CASE("group: ranks of which one is to be deterministic are told so") {
  for (const Status& end :
       told_apart([](collective::Seat& seat) { seat.deterministic = seat.rank == 1; })) {
    CAPTURE(end.details());
    const size_t with = end.details().find("rank 1 (");
    CHECK(with < end.details().find(" has joined a deterministic group, and rank 0 ("));
    CHECK(end.details().find(" one that is not") != std::string::npos);
  }
}

TEST_CASE("group: an algorithm that is forced does not go with a deterministic group") {
  for (const Status& end : told_apart([](collective::Seat& seat) {
         seat.deterministic = true;
         if (seat.rank == 1) seat.algorithm = Algorithm::kRing;
       })) {
    CAPTURE(end.details());
    CHECK(end.details().find("rank 1 (") != std::string::npos);
    CHECK(end.details().find(" was started with TENSORWIRE_ALLREDUCE") != std::string::npos);
  }
}

TEST_CASE("group: operations have their results by each way of a table") {
  const std::map<std::string, std::vector<std::string>> ways = {
      {"one_step", {"all_reduce", "reduce", "broadcast", "all_gather", "gather"}},
      {"stage",
       {"all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "all_to_all"}},
      {"in_place", {"broadcast", "all_gather", "gather", "scatter", "all_to_all"}},
  };
  for (const auto& entry : ways) {
    const std::string& way = entry.first;
    std::string rules;
    for (const std::string& operation : entry.second)
      rules += operation + " memory 3 281474976710656 " + way + "\n";
    const Rules table(rules);
    const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
    CAPTURE(way);
    for (const bool readable : {true, false}) {
      const Placement placement{"shared memory", nullptr, 0, readable};
      as_ranks_of(placement, 3, [&](Group& group) -> std::string {
        if (!group.tuned()) return "not tuned: " + group.why_not_tuned();
        if (std::string wrong = every_count(group); !wrong.empty()) return wrong;
        bool taken = false;
        group.tally().each([&](CollectiveKind, collective::Way went, uint64_t, uint64_t) {
          taken = taken || way == collective::name_of(went);
        });
        return taken || way == "in_place" ? "" : "no operation went that way";
      });
    }
  }
}

TEST_CASE("group: a table decides between hosts, but not which floats are rounded once") {
  const Rules table(
      "all_reduce tcp 3 100 ring\nall_reduce tcp 3 200 recursive_doubling\n"
      "all_reduce other 3 400 halving_doubling\nreduce_scatter tcp 3 100 ring");
  const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
  as_ranks_of(kPlacements[2], 3, [](Group& group) -> std::string {
    std::map<std::string, uint64_t> went;
    for (const DataType type : {DataType::kFloat32, DataType::kBfloat16})
      for (const size_t size : {size_t{40}, size_t{160}, size_t{400}}) {
        std::vector<std::byte> data(size);
        const CollectiveCall call{CollectiveKind::kAllReduce, type, ReduceOp::kSum, 0,
                                  size / size_of(type)};
        Status status = group.run(call, data.data(), data.data(), within(kLong));
        if (!status.ok()) return status.details();
        if (size != 40) continue;
        const CollectiveCall scatter{CollectiveKind::kReduceScatter, type, ReduceOp::kSum, 0, 3};
        std::vector<std::byte> share(3 * size_of(type));
        status = group.run(scatter, data.data(), share.data(), within(kLong));
        if (!status.ok()) return status.details();
      }
    group.tally().each([&](CollectiveKind, collective::Way way, uint64_t n, uint64_t) {
      went[collective::name_of(way)] += n;
    });
    return went == std::map<std::string, uint64_t>{{"ring", 2},
                                                   {"recursive_doubling", 1},
                                                   {"direct", 5}}
               ? ""
               : "went other ways";
  });
}

// Of an operation, how often each way was taken.
std::map<std::string, uint64_t> ways_of(const Group& group, CollectiveKind kind) {
  std::map<std::string, uint64_t> went;
  group.tally().each([&](CollectiveKind of, collective::Way way, uint64_t n, uint64_t) {
    if (of == kind) went[collective::name_of(way)] += n;
  });
  return went;
}

struct Told {
  CollectiveKind kind;
  const char* way;
};
constexpr Told kBetweenHosts[] = {
    {CollectiveKind::kReduce, "direct"},        {CollectiveKind::kReduce, "pairwise"},
    {CollectiveKind::kBroadcast, "tree"},       {CollectiveKind::kBroadcast, "scatter_all_gather"},
    {CollectiveKind::kAllGather, "direct"},     {CollectiveKind::kAllGather, "ring"},
    {CollectiveKind::kReduceScatter, "direct"}, {CollectiveKind::kReduceScatter, "ring"},
};
// All of one way, or of the other one.
std::string rules_of(bool other, int ranks) {
  std::string rules;
  for (size_t i = other; i < std::size(kBetweenHosts); i += 2)
    rules += std::string(name_of(kBetweenHosts[i].kind)) + " tcp " + std::to_string(ranks) +
             " 281474976710656 " + kBetweenHosts[i].way + "\n";
  return rules;
}

template <class T>
std::string of_counts(Group& group, const std::vector<size_t>& counts) {
  for (const size_t count : counts)
    if (std::string wrong = every_operation<T>(group, count); !wrong.empty()) return wrong;
  return {};
}

TEST_CASE("group: operations have their results by each way between hosts") {
  const std::vector<int> sizes = kSanitized ? std::vector{3} : std::vector{2, 3, 5, 8};
  for (const bool other : {false, true})
    for (const int size : sizes) {
      CAPTURE(other);
      CAPTURE(size);
      const Rules table(rules_of(other, size));
      const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
      as_ranks_of(kPlacements[2], size, [&](Group& group) -> std::string {
        if (!group.tuned()) return "not tuned: " + group.why_not_tuned();
        std::vector<size_t> counts{0, 1, 7, 1000};
        if (size < 8) counts.push_back(70'003);
        // Several waves around a ring, which end within a piece.
        if (size == 3) counts.push_back(kSanitized ? 270'011 : 600'019);
        std::string wrong = of_counts<float>(group, counts);
        if (wrong.empty()) wrong = of_counts<uint8_t>(group, {63, 30'001});
        if (wrong.empty()) wrong = of_counts<double>(group, {3333});
        for (size_t i = other; i < std::size(kBetweenHosts); i += 2) {
          const auto went = ways_of(group, kBetweenHosts[i].kind);
          if (went.size() != 1 || !went.contains(kBetweenHosts[i].way))
            return wrong + ", and another way than " + kBetweenHosts[i].way;
        }
        return wrong;
      });
    }
}

TEST_CASE("group: averages and reductions that are in place, by each way between hosts") {
  constexpr size_t kCount = 90'007;
  for (const bool other : {false, true}) {
    const Rules table(rules_of(other, 4));
    const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
    as_ranks_of(kPlacements[2], 4, [&](Group& group) -> std::string {
      const auto self = static_cast<size_t>(group.rank());
      for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kMax}) {
        std::vector<float> shares(4 * kCount, static_cast<float>(self + 1));
        const CollectiveCall call{CollectiveKind::kReduceScatter, DataType::kFloat32, op, 0,
                                  kCount};
        std::byte* const mine = bytes(shares) + self * kCount * sizeof(float);
        const Status status = group.run(call, bytes(shares), mine, within(kLong));
        if (!status.ok()) return status.details();
        for (size_t i = 0; i < kCount; ++i)
          if (shares[self * kCount + i] != (op == ReduceOp::kMax ? 4.0F : 2.5F)) return "wrong";
      }
      return {};
    });
  }
}

TEST_CASE("group: ranks that disagree are told, by each way between hosts") {
  for (const Told& told : kBetweenHosts) {
    const Rules table(std::string(name_of(told.kind)) + " tcp 4 1000000 " + told.way);
    const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
    CAPTURE(name_of(told.kind));
    CAPTURE(told.way);
    for (const int odd : {0, 2})
      as_ranks_of(kPlacements[2], 4, [&](Group& group) -> std::string {
        const size_t count = group.rank() == odd ? 1001 : 1000;
        std::vector<float> in(4 * count), out(4 * count);
        const CollectiveCall call{told.kind, DataType::kFloat32, ReduceOp::kSum, 0, count};
        Status status = group.run(call, bytes(in), bytes(out), within(kLong));
        // Who has no part in it any more finds the group ended.
        if (status.ok()) status = group.run({}, nullptr, nullptr, within(kLong));
        return status.details().find("float32") != std::string::npos ? "" : status.details();
      });
  }
}

// Tells when a rank has come to it.
class ArrivalStore final : public collective::Store {
 public:
  Status set(const std::string& key, std::span<const std::byte> value) override {
    came_.release();
    return store_.set(key, value);
  }
  Result<std::vector<std::byte>> get(const std::string& key, const Wait& wait) override {
    return store_.get(key, wait);
  }
  void await_one() { came_.acquire(); }

 private:
  MemoryStore store_;
  std::counting_semaphore<> came_{0};
};

TEST_CASE("group: where links between hosts differ, no rule for messages holds") {
  const Rules table(
      "broadcast tcp 3 1000 scatter_all_gather\nbroadcast shm 3 1000 scatter_all_gather\n");
  const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
  for (const bool differ : {false, true}) {
    ArrivalStore store;
    std::mutex mutex;
    std::vector<std::string> failures;
    const auto work = [&](int rank) {
      collective::Seat seat{rank, 3, "127.0.0.1", std::to_string(rank)};
      auto group = Group::make(store, seat, within(kLong));
      std::string found = group ? "" : group.status().details();
      if (group) {
        std::vector<std::byte> data(100);
        CollectiveCall call;
        call.kind = CollectiveKind::kBroadcast;
        call.count = data.size();
        const Status status = (*group)->run(call, nullptr, data.data(), within(kLong));
        const std::string way = differ ? "tree" : "scatter_all_gather";
        const bool told =
            (*group)->why_not_tuned().find("different transports") != std::string::npos;
        if (!status.ok()) found = status.details();
        if ((*group)->tuned() == differ || told != differ) found += "tuned or not as it should be";
        if (!ways_of(**group, CollectiveKind::kBroadcast).contains(way)) found += "not by " + way;
      }
      const std::lock_guard lock(mutex);
      failures.push_back(found);
    };
    std::vector<std::thread> threads;
    {
      // The highest rank connects to the others, in the one way that it knows.
      const Variable transport("TENSORWIRE_TRANSPORT", differ ? "tcp" : nullptr);
      threads.emplace_back(work, 2);
      store.await_one();
    }
    for (int rank = 0; rank < 2; ++rank) threads.emplace_back(work, rank);
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures) CHECK(failure == "");
  }
}

// All-reduces go by messages then, and other operations over the ranks' stages.
TEST_CASE("group: a rank that calls something else than an all-reduce that is forced is found") {
  const Variable forced("TENSORWIRE_ALLREDUCE", "ring");
  for (const int odd : {0, 1, 2}) {
    CAPTURE(odd);
    as_ranks_of(kPlacements[0], 3, [odd](Group& group) -> std::string {
      std::vector<float> in(10), out(30);
      const CollectiveKind kind =
          group.rank() == odd ? CollectiveKind::kAllGather : CollectiveKind::kAllReduce;
      const Status status = group.run({kind, DataType::kFloat32, ReduceOp::kSum, 0, 10}, bytes(in),
                                      bytes(out), within(20 * kSecond));
      const bool told = status.details().find("called all_gather") != std::string::npos;
      return told ? "" : "not told: " + status.details();
    });
  }
}

TEST_CASE("group: ranks that speak for hosts take the ways of a table") {
  // Two ranks of each of three hosts. The rules are those for hosts.
  const Rules table(
      "broadcast shm 3 100000 scatter_all_gather\nreduce shm 3 100000 direct\n"
      "all_gather shm 3 100000 ring\nreduce_scatter shm 3 100000 ring");
  const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
  as_ranks_of(kPlacements[3], 6, [](Group& group) -> std::string {
    if (!group.tuned()) return "not tuned: " + group.why_not_tuned();
    std::string wrong = of_counts<float>(group, {3, 20'001});
    for (const CollectiveKind kind : {CollectiveKind::kReduce, CollectiveKind::kBroadcast,
                                      CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
      if (!ways_of(group, kind).contains("two_levels"))
        wrong += std::string(", and another way of ") + name_of(kind);
    return wrong;
  });
}

TEST_CASE("group: ranks with different tables, or none, or broken ones, take none") {
  const Rules one("all_reduce memory 2 8 stage"), other("all_reduce memory 2 9 stage"),
      bad("nonsense");
  const std::pair<std::string, std::string> cases[] = {{one.path(), other.path()},
                                                       {one.path(), "off"},
                                                       {one.path(), bad.path()},
                                                       {one.path(), "/nowhere/table"}};
  for (const auto& paths : cases) {
    MemoryStore store;
    std::vector<std::thread> threads;
    std::array<std::string, 2> why;
    for (size_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        collective::Seat seat{static_cast<int>(rank), 2, "127.0.0.1", {}};
        seat.tuning = rank == 0 ? paths.first : paths.second;
        auto group = Group::make(store, seat, within(kLong));
        why[rank] = !group              ? group.status().details()
                    : (*group)->tuned() ? "it is tuned"
                                        : (*group)->why_not_tuned();
      });
    for (std::thread& thread : threads) thread.join();
    CAPTURE(paths.second);
    CHECK(why[0].find("rank 1") != std::string::npos);
    CHECK(why[0].find("another one than rank 0") != std::string::npos);
    const bool broken = paths.second == bad.path() || paths.second == "/nowhere/table";
    CHECK(why[1].find(broken ? "is not used" : "another one than rank 1") != std::string::npos);
  }
}

TEST_CASE("group: ways between hosts by size and ranks") {
  const auto chosen = [](CollectiveKind kind, DataType type, uint64_t bytes, int ranks) {
    // What all-reduces are forced to do is no matter.
    return choose_algorithm({kind, type, ReduceOp::kSum, 0, bytes / size_of(type)}, ranks,
                            Algorithm::kHalvingDoubling);
  };
  constexpr DataType kFloat = DataType::kFloat32, kHalf = DataType::kFloat16;
  CHECK(chosen(CollectiveKind::kReduce, kFloat, 16 << 10, 4) == Algorithm::kDirect);
  CHECK(chosen(CollectiveKind::kReduce, kHalf, 1 << 20, 4) == Algorithm::kPairwise);
  CHECK(chosen(CollectiveKind::kBroadcast, kFloat, 8, 64) == Algorithm::kTree);
  CHECK(chosen(CollectiveKind::kBroadcast, kFloat, 64 << 20, 2) == Algorithm::kTree);
  CHECK(chosen(CollectiveKind::kBroadcast, kFloat, 47 << 10, 4) == Algorithm::kTree);
  CHECK(chosen(CollectiveKind::kBroadcast, kFloat, 48 << 10, 4) == Algorithm::kScatterAllGather);
  CHECK(chosen(CollectiveKind::kBroadcast, kFloat, 48 << 10, 64) == Algorithm::kTree);
  CHECK(chosen(CollectiveKind::kAllGather, kFloat, 64 << 20, 8) == Algorithm::kDirect);
  CHECK(chosen(CollectiveKind::kAllGather, kHalf, 64 << 20, 64) == Algorithm::kRing);
  CHECK(chosen(CollectiveKind::kReduceScatter, kFloat, 1024, 64) == Algorithm::kDirect);
  CHECK(chosen(CollectiveKind::kReduceScatter, kFloat, 64 << 20, 64) == Algorithm::kRing);
  CHECK(chosen(CollectiveKind::kReduceScatter, kHalf, 64 << 20, 64) == Algorithm::kDirect);
  CHECK(chosen(CollectiveKind::kGather, kFloat, 8, 4) == Algorithm::kNone);
}

TEST_CASE("group: algorithms by size and ranks") {
  const auto chosen = [](DataType type, uint64_t bytes, int ranks,
                         Algorithm forced = Algorithm::kNone) {
    return choose_algorithm(
        {CollectiveKind::kAllReduce, type, ReduceOp::kSum, 0, bytes / size_of(type)}, ranks,
        forced);
  };
  CHECK(chosen(DataType::kFloat32, 8, 2) == Algorithm::kDirect);
  CHECK(chosen(DataType::kFloat32, 8, 64) == Algorithm::kRecursiveDoubling);
  CHECK(chosen(DataType::kFloat16, 8, 64) == Algorithm::kDirect);
  CHECK(chosen(DataType::kFloat32, 1 << 20, 4) == Algorithm::kPairwise);
  CHECK(chosen(DataType::kFloat32, 256 << 10, 16) == Algorithm::kHalvingDoubling);
  CHECK(chosen(DataType::kFloat32, 64 << 20, 16) == Algorithm::kPairwise);
  CHECK(chosen(DataType::kFloat32, 64 << 20, 128) == Algorithm::kRing);
  CHECK(chosen(DataType::kBfloat16, 64 << 20, 128) == Algorithm::kPairwise);
  CHECK(chosen(DataType::kFloat32, 8, 2, Algorithm::kRing) == Algorithm::kRing);
  CHECK(chosen(DataType::kBfloat16, 8, 2, Algorithm::kRing) == Algorithm::kDirect);
}

}  // namespace
}  // namespace tw::test
