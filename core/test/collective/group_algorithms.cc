// SPDX-License-Identifier: Apache-2.0
// Which way the operations of a group go: as it is told, by a table, or by sizes and ranks.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
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

TEST_CASE("group: ranks that were told different algorithms are told so") {
  MemoryStore store;
  std::vector<std::thread> threads;
  std::array<Status, 2> ends;
  std::mutex mutex;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto group = Group::make(
          store, {rank, 2, "127.0.0.1", {}, rank == 0 ? Algorithm::kRing : Algorithm::kDirect},
          within(kLong));
      const std::lock_guard lock(mutex);
      ends[static_cast<size_t>(rank)] = group.status();
    });
  for (std::thread& thread : threads) thread.join();
  for (const Status& end : ends) {
    CAPTURE(end.details());
    CHECK(end.details().find("TENSORWIRE_ALLREDUCE") != std::string::npos);
  }
}

// A file of rules, for as long as it lives.
class Table {
 public:
  explicit Table(const std::string& rules) {
    const int file = mkstemp(path_.data());
    REQUIRE(file >= 0);
    REQUIRE(write(file, rules.data(), rules.size()) == static_cast<ssize_t>(rules.size()));
    close(file);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/tensorwire-table-XXXXXX";
};

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
    const Table table(rules);
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
  const Table table("all_reduce messages 3 100 ring\nall_reduce messages 3 200 recursive_doubling");
  const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
  as_ranks_of(kPlacements[2], 3, [](Group& group) -> std::string {
    std::map<std::string, uint64_t> went;
    for (const DataType type : {DataType::kFloat32, DataType::kBfloat16})
      for (const size_t size : {size_t{40}, size_t{160}, size_t{400}}) {
        std::vector<std::byte> data(size);
        const CollectiveCall call{CollectiveKind::kAllReduce, type, ReduceOp::kSum, 0,
                                  size / size_of(type)};
        const Status status = group.run(call, data.data(), data.data(), within(kLong));
        if (!status.ok()) return status.details();
      }
    group.tally().each([&](CollectiveKind, collective::Way way, uint64_t n, uint64_t) {
      went[collective::name_of(way)] += n;
    });
    return went == std::map<std::string, uint64_t>{{"ring", 1},
                                                   {"recursive_doubling", 1},
                                                   {"direct", 4}}
               ? ""
               : "went other ways";
  });
}

TEST_CASE("group: ranks with different tables, or none, or broken ones, take none") {
  const Table one("all_reduce memory 2 8 stage"), other("all_reduce memory 2 9 stage"),
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
