// SPDX-License-Identifier: Apache-2.0
// Groups whose ranks are threads of one process: they meet, move data and end as processes do.
#include "collective/group.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <csignal>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "process/runtime.h"
#include "test/call/world.h"
#include "test/collective/ranks.h"
#include "test/sanitized.h"

namespace tw::test {
namespace {

using collective::Algorithm;
using collective::choose_algorithm;
using collective::CollectiveCall;
using collective::CollectiveKind;
using collective::Fabric;
using collective::Group;

template <class T>
constexpr DataType type_of() {
  if (std::is_same_v<T, double>) return DataType::kFloat64;
  if (std::is_same_v<T, float>) return DataType::kFloat32;
  return DataType::kInt64;
}
template <class T>
const std::byte* bytes(const std::vector<T>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}
template <class T>
std::byte* bytes(std::vector<T>& v) {
  return reinterpret_cast<std::byte*>(v.data());
}

// What a rank has at a place: small numbers, whose sums are exact in any order.
template <class T>
std::vector<T> array_of(int rank, size_t count, int salt = 0) {
  std::vector<T> v(count);
  for (size_t i = 0; i < count; ++i)
    v[i] =
        static_cast<T>((i * 7 + static_cast<size_t>(rank) * 13 + static_cast<size_t>(salt)) % 101);
  return v;
}
template <class T>
std::vector<T> sum_of(int size, size_t count, int salt = 0) {
  std::vector<T> sum(count);
  for (int rank = 0; rank < size; ++rank) {
    const auto v = array_of<T>(rank, count, salt);
    for (size_t i = 0; i < count; ++i) sum[i] += v[i];
  }
  return sum;
}

constexpr size_t kCounts[] = {0, 1, 3, 5, 11, 1000, 4096, 4100, 40'000, 262'144, 700'001};

template <class T>
std::string every_operation(Group& group, size_t count) {
  const int size = group.size(), rank = group.rank();
  const auto ranks = static_cast<size_t>(size);
  const Wait wait = within(kLong);
  const auto call = [&](CollectiveKind kind, int root = 0) {
    return CollectiveCall{kind, type_of<T>(), ReduceOp::kSum, root, count};
  };
  const auto failed = [&](CollectiveKind kind, const Status& status) {
    return std::string(name_of(kind)) + " of " + std::to_string(count) + ": " +
           (status.ok() ? "wrong result" : status.details());
  };
  const auto mine = array_of<T>(rank, count);
  const int root = size - 1;
  {
    std::vector<T> out(count);
    const auto asked = call(CollectiveKind::kAllReduce);
    Status status = group.run(asked, bytes(mine), bytes(out), wait);
    if (!status.ok() || out != sum_of<T>(size, count)) return failed(asked.kind, status);
    out = mine;
    status = group.run(asked, bytes(out), bytes(out), wait);
    if (!status.ok() || out != sum_of<T>(size, count)) return failed(asked.kind, status);
  }
  {
    std::vector<T> out(count, T{-1});
    const auto asked = call(CollectiveKind::kReduce, root);
    const Status status = group.run(asked, bytes(mine), rank == root ? bytes(out) : nullptr, wait);
    const auto expected = rank == root ? sum_of<T>(size, count) : std::vector<T>(count, T{-1});
    if (!status.ok() || out != expected) return failed(asked.kind, status);
  }
  {
    auto data = mine;
    const auto asked = call(CollectiveKind::kBroadcast, root);
    const Status status = group.run(asked, nullptr, bytes(data), wait);
    if (!status.ok() || data != array_of<T>(root, count)) return failed(asked.kind, status);
  }
  std::vector<T> all;
  for (int i = 0; i < size; ++i) {
    const auto theirs = array_of<T>(i, count);
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  {
    std::vector<T> out(count * ranks);
    const auto asked = call(CollectiveKind::kAllGather);
    const Status status = group.run(asked, bytes(mine), bytes(out), wait);
    if (!status.ok() || out != all) return failed(asked.kind, status);
  }
  {
    std::vector<T> out(rank == root ? count * ranks : 0);
    const auto asked = call(CollectiveKind::kGather, root);
    const Status status = group.run(asked, bytes(mine), rank == root ? bytes(out) : nullptr, wait);
    if (!status.ok() || (rank == root && out != all)) return failed(asked.kind, status);
  }
  {
    std::vector<T> out(count);
    const auto asked = call(CollectiveKind::kScatter, root);
    const Status status = group.run(asked, rank == root ? bytes(all) : nullptr, bytes(out), wait);
    if (!status.ok() || out != mine) return failed(asked.kind, status);
  }
  {
    const auto shares = array_of<T>(rank, count * ranks);
    std::vector<T> out(count);
    const auto asked = call(CollectiveKind::kReduceScatter);
    const Status status = group.run(asked, bytes(shares), bytes(out), wait);
    const auto sums = sum_of<T>(size, count * ranks);
    const auto at = sums.begin() + static_cast<ptrdiff_t>(count * static_cast<size_t>(rank));
    if (!status.ok() || !std::equal(out.begin(), out.end(), at)) return failed(asked.kind, status);
  }
  return {};
}

// Rank i gives rank j (i + 2j) % 5 blocks.
std::string every_pair(Group& group, size_t block) {
  const int size = group.size(), rank = group.rank();
  const auto blocks = [](int from, int to) { return static_cast<size_t>((from + 2 * to) % 5); };
  std::vector<Fabric::Run> gives, takes;
  std::vector<int64_t> in, expected;
  for (int to = 0; to < size; ++to) {
    const size_t count = blocks(rank, to) * block;
    gives.push_back({in.size() * 8, count * 8});
    in.insert(in.end(), count, rank * 1000 + to);
  }
  for (int from = 0; from < size; ++from) {
    const size_t count = blocks(from, rank) * block;
    takes.push_back({expected.size() * 8, count * 8});
    expected.insert(expected.end(), count, from * 1000 + rank);
  }
  std::vector<int64_t> out(expected.size());
  const CollectiveCall call{CollectiveKind::kAllToAll, DataType::kInt64, ReduceOp::kSum, 0, 0};
  const Status status = group.all_to_all(call, bytes(in), gives, bytes(out), takes, within(kLong));
  if (!status.ok()) return status.details();
  return out == expected ? "" : "all_to_all: wrong result";
}

std::string every_count(Group& group) {
  for (const size_t count : kCounts) {
    if (count > 100'000 && (kSanitized || group.size() > 2)) continue;
    if (std::string wrong = every_operation<float>(group, count); !wrong.empty()) return wrong;
    if (std::string wrong = every_operation<int64_t>(group, count); !wrong.empty()) return wrong;
    if (std::string wrong = every_pair(group, count / 4); !wrong.empty()) return wrong;
  }
  return {};
}

TEST_CASE("group: each operation has its result on each rank, whatever the sizes") {
  const std::vector<int> sizes = kSanitized ? std::vector{3} : std::vector{1, 2, 3, 5};
  for (const Placement& placement : kPlacements)
    for (const int size : sizes) {
      CAPTURE(placement.fabric);
      CAPTURE(size);
      as_ranks_of(placement, size, [&](Group& group) -> std::string {
        // Two ranks share a host of two.
        const bool alone = placement.on_a_host != 0 && size <= placement.on_a_host;
        const std::string expected = size == 1 ? "" : alone ? "shared memory" : placement.fabric;
        if (group.fabric() != expected) return group.fabric();
        return every_count(group);
      });
    }
}

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

TEST_CASE("group: ranks that lag, and roots that run ahead, change nothing") {
  as_ranks(3, [](Group& group) -> std::string {
    const Wait wait = within(kLong);
    for (int round = 0; round < (kSanitized ? 1000 : 3000); ++round) {
      const size_t count = round % 97 == 0 ? 30'000 : static_cast<size_t>(round % 40);
      const int root = round / 300 % 3;
      // The root needs nobody, and begins as much as the board has room for.
      auto data = array_of<float>(group.rank() == root ? 50 : 60, count, round);
      const CollectiveCall broadcast{CollectiveKind::kBroadcast, DataType::kFloat32, ReduceOp::kSum,
                                     root, count};
      if (Status status = group.run(broadcast, nullptr, bytes(data), wait); !status.ok())
        return status.details();
      if (data != array_of<float>(50, count, round)) return "wrong broadcast";
      if (round % 50 != 0) continue;
      auto sum = array_of<float>(group.rank(), count, round);
      const CollectiveCall reduce{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                                  count};
      if (Status status = group.run(reduce, bytes(sum), bytes(sum), wait); !status.ok())
        return status.details();
      if (sum != sum_of<float>(3, count, round)) return "wrong sum";
    }
    return {};
  });
}

// From here on ranks of a host read arrays where they lie, if the kernel lets them.
constexpr size_t kRead = 4 << 20;

TEST_CASE("group: arrays that are read where they lie come whole") {
  as_ranks(3, [](Group& group) -> std::string {
    std::string wrong = every_operation<int64_t>(group, kRead / sizeof(int64_t) + 3);
    return wrong.empty() ? every_pair(group, kRead / sizeof(int64_t) / 4 + 3) : wrong;
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
    if (code() != Code::kInvalidArgument) return "a count beyond memory";
    return all_reduce(group, 4).ok() ? "" : "the group has ended";
  });
}

TEST_CASE("group: a rank that gives another size than the other one takes is named") {
  as_ranks(2, [](Group& group) -> std::string {
    std::vector<int64_t> in(8), out(8);
    const size_t wrong = group.rank() == 0 ? 8 : 0;
    const std::vector<Fabric::Run> gives{{0, 16}, {16, 16 + wrong}}, takes{{0, 16}, {16, 16}};
    const CollectiveCall call{CollectiveKind::kAllToAll, DataType::kInt64, ReduceOp::kSum, 0, 0};
    const Status status =
        group.all_to_all(call, bytes(in), gives, bytes(out), takes, within(kLong));
    return status.details().find("gives 24 bytes to") != std::string::npos ? "" : status.details();
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
  CHECK(alone.details() == "rank 1 has not come to the group of 2 in time");
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
