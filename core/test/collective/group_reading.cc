// SPDX-License-Identifier: Apache-2.0
// Arrays that the ranks of a host read where they lie: large ones in huge pages, or by a rule, if
// the kernel lets them, and those in arenas.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/streamed_copy.h"
#include "collective/group.h"
#include "memory/huge_pages.h"
#include "process/runtime.h"
#include "test/call/world.h"
#include "test/collective/operations.h"
#include "test/not_tried.h"

namespace tw::test {
namespace {

constexpr size_t kRead = 4 << 20;

// Not in a sandbox that forbids process_vm_readv.
bool reads_memory() {
  const auto own = collective::OwnMark::make();
  const auto reached = own ? collective::PeerMemory::open(own->mark()) : own.status();
  if (!reached) not_tried(reached.status().details());
  return reached.ok();
}

// Rules by which three ranks read what they can where it lies.
std::string in_place() {
  std::string rules;
  for (const char* const operation : {"broadcast", "all_gather", "gather", "scatter", "all_to_all"})
    rules += std::string(operation) + " memory 3 281474976710656 in_place\n";
  return rules;
}

TEST_CASE("group: large arrays come whole") {
  const auto operations = [](Group& group) -> std::string {
    std::string wrong = every_operation<int64_t>(group, kRead / sizeof(int64_t) + 3);
    return wrong.empty() ? every_pair(group, kRead / sizeof(int64_t) / 4 + 3) : wrong;
  };
  // A sanitizer, with which megabytes take long, sees nothing new in the other placements.
  if (kSanitized) return as_ranks_of(kPlacements[0], 3, operations);
  as_ranks(3, operations);
  const Rules rules(in_place());
  const Variable tuning("TENSORWIRE_TUNING", rules.path().c_str());
  as_ranks_of(kPlacements[0], 3, operations);
}

TEST_CASE("group: arrays in huge pages are read where they lie, those in small ones staged") {
  if (!reads_memory()) return;
  const auto memory = [](int advice) {
    auto made = map_huge_pages(8 * kHugePage);
    REQUIRE(made);
    ::madvise(made->data(), made->size(), advice);
    std::memset(made->data(), 1, made->size());
    return std::move(*made);
  };
  const MemoryMap huge = memory(MADV_HUGEPAGE), small = memory(MADV_NOHUGEPAGE);
  // Neither, where the kernel does not tell or has none.
  const bool told =
      in_huge_pages(huge.data(), huge.size()) && !in_huge_pages(small.data(), small.size());
  for (const bool all_huge : {true, false}) {
    CAPTURE(all_huge);
    as_ranks_of(kPlacements[0], 3, [&](Group& group) -> std::string {
      const MemoryMap& mine = all_huge || group.rank() != 0 ? huge : small;
      std::vector<std::byte> out(3 * kRead);
      const auto call = [&](CollectiveKind kind, uint64_t count) {
        return CollectiveCall{kind, DataType::kUint8, ReduceOp::kSum, 0, count};
      };
      const std::vector<Fabric::Run> runs = {{0, kRead}, {kRead, kRead}, {2 * kRead, kRead}};
      Status status =
          group.run(call(CollectiveKind::kScatter, kRead), mine.data(), out.data(), within(kLong));
      if (!status.ok()) return status.details();
      status = group.exchange(call(CollectiveKind::kAllToAll, CollectiveCall::kUneven), mine.data(),
                              runs, out.data(), runs, within(kLong));
      if (!status.ok()) return status.details();
      if (!std::all_of(out.begin(), out.end(), [](std::byte each) { return each == std::byte{1}; }))
        return "wrong";
      std::string wrong;
      group.tally().each([&](CollectiveKind, collective::Way way, uint64_t, uint64_t) {
        if (told && way != (all_huge ? collective::Way::kInPlace : collective::Way::kStage))
          wrong = std::string("went ") + name_of(way);
      });
      return wrong;
    });
  }
}

TEST_CASE("group: arrays that are larger than the caches come whole") {
  as_ranks_of(kPlacements[0], 2, [](Group& group) -> std::string {
    constexpr size_t kCount = kStreamed / sizeof(int64_t) + 3;
    constexpr int kRoot = 1;
    const auto call = [](CollectiveKind kind) {
      return CollectiveCall{kind, DataType::kInt64, ReduceOp::kSum, kRoot, kCount};
    };
    const auto first = array_of<int64_t>(0, kCount), second = array_of<int64_t>(kRoot, kCount);
    const auto& mine = group.rank() == kRoot ? second : first;
    std::vector<int64_t> all(2 * kCount);
    const auto came = [&] {
      return std::equal(first.begin(), first.end(), all.begin()) &&
             std::equal(second.begin(), second.end(), all.begin() + kCount);
    };
    Status status = group.run(call(CollectiveKind::kGather), bytes(mine),
                              group.rank() == kRoot ? bytes(all) : nullptr, within(kLong));
    if (!status.ok() || (group.rank() == kRoot && !came())) return "gather " + status.details();
    all.assign(all.size(), 0);
    status = group.run(call(CollectiveKind::kAllGather), bytes(mine), bytes(all), within(kLong));
    if (!status.ok() || !came()) return "all_gather " + status.details();
    auto data = mine;
    status = group.run(call(CollectiveKind::kBroadcast), nullptr, bytes(data), within(kLong));
    return status.ok() && data == second ? "" : "broadcast " + status.details();
  });
}

// An array of a rank, in the arena or outside.
class Memory {
 public:
  Memory(bool in_arena, const std::vector<int64_t>& values) : plain_(values) {
    if (!in_arena) return;
    auto block = (*Runtime::get())->arena().allocate(plain_.size() * sizeof(int64_t));
    REQUIRE(block);
    block_ = std::move(*block);
    std::memcpy(block_->data(), plain_.data(), block_->size());
  }
  std::byte* data() { return block_ ? block_->data() : bytes(plain_); }
  bool operator==(const std::vector<int64_t>& values) {
    return std::memcmp(data(), values.data(), plain_.size() * sizeof(int64_t)) == 0;
  }

 private:
  std::vector<int64_t> plain_;
  Ref<Block> block_;
};

TEST_CASE("group: arrays in arenas are read there, and go over the stage if one lies elsewhere") {
  if (!reads_memory()) return;
  constexpr int kRanks = 3, kRoot = 1;
  constexpr size_t kCount = 100'003;
  for (const bool all : {true, false}) {
    CAPTURE(all);
    as_ranks_of(kPlacements[0], kRanks, [all](Group& group) -> std::string {
      const int rank = group.rank();
      const bool in_arena = all || rank != kRoot;
      const auto mine = array_of<int64_t>(rank, kCount), sum = sum_of<int64_t>(kRanks, kCount);
      const auto shares = array_of<int64_t>(rank, kRanks * kCount),
                 sums = sum_of<int64_t>(kRanks, kRanks * kCount);
      std::vector<int64_t> gathered, out(kCount), rows(kRanks * kCount);
      for (int i = 0; i < kRanks; ++i)
        for (const int64_t each : array_of<int64_t>(i, kCount)) gathered.push_back(each);
      const auto run = [&](CollectiveKind kind, const std::byte* in, std::byte* to) {
        return group.run({kind, DataType::kInt64, ReduceOp::kSum, kRoot, kCount}, in, to,
                         within(kLong));
      };
      // Twice: what is mapped once is there the next time, with other data.
      for (int round = 0; round < 2; ++round) {
        Memory array(in_arena, mine), whole(in_arena, shares);
        if (!run(CollectiveKind::kReduce, array.data(), rank == kRoot ? bytes(out) : nullptr)
                 .ok() ||
            (rank == kRoot && out != sum))
          return "reduce";
        if (!run(CollectiveKind::kReduceScatter, whole.data(), bytes(out)).ok() ||
            !std::equal(out.begin(), out.end(), sums.begin() + rank * ptrdiff_t{kCount}))
          return "reduce_scatter";
        if (!run(CollectiveKind::kAllGather, array.data(), bytes(rows)).ok() || rows != gathered)
          return "all_gather";
        if (!run(CollectiveKind::kAllReduce, array.data(), bytes(out)).ok() || out != sum)
          return "all_reduce";
        if (!run(CollectiveKind::kAllReduce, array.data(), array.data()).ok() || !(array == sum))
          return "all_reduce in place";
      }
      std::string wrong;
      group.tally().each([&](CollectiveKind, collective::Way way, uint64_t, uint64_t) {
        if (way != (all ? collective::Way::kInPlace : collective::Way::kStage))
          wrong = std::string("went ") + name_of(way);
      });
      return wrong;
    });
  }
}

TEST_CASE("group: an array that is not there ends the group, and nobody's process") {
  if (!reads_memory()) return;
  constexpr size_t kSize = kRead;
  const Rules rules(in_place());
  const Variable tuning("TENSORWIRE_TUNING", rules.path().c_str());
  as_ranks_of(kPlacements[0], 3, [](Group& group) -> std::string {
    std::vector<std::byte> data(kSize);
    void* const gone = ::mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const Status status =
        group.run({CollectiveKind::kBroadcast, DataType::kUint8, ReduceOp::kSum, 1, kSize}, nullptr,
                  group.rank() == 1 ? static_cast<std::byte*>(gone) : data.data(), within(kLong));
    ::munmap(gone, kSize);
    if (status.ok()) return "it was read";
    return status.details().find("memory of process") != std::string::npos ? "" : status.details();
  });
}

TEST_CASE("group: memory of a process is read only where it is the one that was meant") {
  if (!reads_memory()) return;
  auto own = collective::OwnMark::make();
  REQUIRE(own);
  const auto reached = collective::PeerMemory::open(own->mark());
  REQUIRE(reached);
  const std::vector<std::byte> data(100'000, std::byte{7});
  std::vector<std::byte> copy(data.size());
  CHECK(reached->read(copy.data(), reinterpret_cast<uintptr_t>(data.data()), data.size()).ok());
  CHECK(copy == data);
  CHECK(reached->read(copy.data(), 4096, 1).code() == Code::kInternal);
  const int file = ::memfd_create("test", MFD_CLOEXEC);
  REQUIRE(::ftruncate(file, 4096) == 0);
  CHECK(reached->map({file, 4096}).status().code() == Code::kInvalidArgument);  // it is not sealed
  ::close(file);
  CHECK_FALSE(reached->map({file, 4096}));
  auto other = own->mark();
  ++other.value[0];
  CHECK(collective::PeerMemory::open(other).status().code() == Code::kUnimplemented);
  CHECK(collective::PeerMemory::open({}).status().code() == Code::kUnimplemented);
  const pid_t child = ::fork();
  if (child == 0) ::pause();
  auto theirs = own->mark();
  theirs.pid = child;  // it has the same value at the same address
  const auto memory = collective::PeerMemory::open(theirs);
  ::kill(child, SIGKILL);
  siginfo_t ended;
  ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  REQUIRE(memory);
  CHECK(memory->read(copy.data(), theirs.address, 8).code() == Code::kUnavailable);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace tw::test
