// SPDX-License-Identifier: Apache-2.0
// Large arrays: the ranks of a host read them where they lie, if the kernel lets them, up to
// kStreamed.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/streamed_copy.h"
#include "collective/group.h"
#include "process/runtime.h"
#include "test/call/world.h"
#include "test/collective/operations.h"

namespace tw::test {
namespace {

constexpr size_t kRead = 4 << 20;

TEST_CASE("group: arrays that are read where they lie come whole") {
  const auto operations = [](Group& group) -> std::string {
    std::string wrong = every_operation<int64_t>(group, kRead / sizeof(int64_t) + 3);
    return wrong.empty() ? every_pair(group, kRead / sizeof(int64_t) / 4 + 3) : wrong;
  };
  // A sanitizer, with which megabytes take long, sees nothing new in the other placements.
  if (kSanitized) return as_ranks_of(kPlacements[0], 3, operations);
  as_ranks(3, operations);
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

// Not in a sandbox that forbids process_vm_readv.
bool reads_memory() {
  const auto own = collective::OwnMark::make();
  const auto reached = own ? collective::PeerMemory::open(own->mark()) : own.status();
  if (!reached) MESSAGE("skipped: ", reached.status().details());
  return reached.ok();
}

TEST_CASE("group: an array that is not there ends the group, and nobody's process") {
  if (!reads_memory()) return;
  constexpr size_t kSize = kRead;
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
