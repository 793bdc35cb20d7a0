// SPDX-License-Identifier: Apache-2.0
#include "collective/shared_stages.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "collective/point_to_point.h"
#include "engine/futex.h"

namespace tw::collective {
namespace {

// How often a rank lets others run before it sleeps, where there are more ranks than processors:
// the one that it waits for may need this one's. Nobody else yields: on a processor that computes,
// too, a yield lasts for everybody's turn, and a sleep for as long as it has to.
constexpr int kYields = 20;

bool more_than_processors(int ranks) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
  return ranks > CPU_COUNT(&set);
}

}  // namespace

SharedStages::SharedStages(Team team, OwnStage own, std::vector<std::optional<PeerStage>> peers,
                           std::vector<std::optional<PeerMemory>> memories, Arena* arena,
                           Nanos spin)
    : team_(std::move(team)),
      rank_(team_.rank()),
      size_(team_.size()),
      own_(std::move(own)),
      peers_(std::move(peers)),
      memories_(std::move(memories)),
      places_(static_cast<size_t>(size_)),
      crowded_(more_than_processors(size_)),
      // Beside a rank that waits there may be threads of its own that compute.
      spinner_(crowded_ ? 0 : std::min(spin, Spinner::kUsual)) {
  if (arena && !memories_.empty()) arenas_.emplace(*arena, memories_);
}

const Board& SharedStages::board(int rank) const {
  return rank == rank_ ? own_.board() : peers_[static_cast<size_t>(rank)]->board();
}
const std::byte* SharedStages::slot(int rank, uint64_t sequence) const {
  return rank == rank_ ? own_.slot(sequence) : peers_[static_cast<size_t>(rank)]->slot(sequence);
}
const std::byte* SharedStages::chunk(int rank, uint64_t number) const {
  return rank == rank_ ? own_.chunk(number) : peers_[static_cast<size_t>(rank)]->chunk(number);
}

// ---- waiting ----

// The fence is between what was published and the look at who sleeps, and its counterpart in
// await() between saying so and the last look: one of the two sees the other.
void SharedStages::publish() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int i = 0; i < size_; ++i) {
    if (i == rank_ || board(i).waits_for.load(std::memory_order_relaxed) != rank_ + 1) continue;
    own_.board().wakes.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(own_.board().wakes, INT_MAX, FutexScope::kShared);
    return;
  }
}

template <class Ready>
Status SharedStages::await(const Pending& now, int rank, Ready&& ready) {
  if (ready()) return {};
  Board& mine = own_.board();
  const int cpu = sched_getcpu();
  mine.cpu.store(cpu, std::memory_order_relaxed);
  const bool neighbour = board(rank).cpu.load(std::memory_order_relaxed) == cpu;
  if (!neighbour && spinner_(ready)) return {};
  for (int i = crowded_ ? kYields : 0; i > 0; --i) {
    sched_yield();
    if (ready()) return {};
  }
  // The word is only read here; futex(2) takes it from memory that was mapped so.
  auto& wakes = const_cast<std::atomic<uint32_t>&>(board(rank).wakes);
  Status slept = wait_and_look(
      team_.members(), now.wait,
      [&](Nanos until) {
        mine.waits_for.store(rank + 1, std::memory_order_seq_cst);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        const uint32_t seen = wakes.load(std::memory_order_seq_cst);
        if (!ready()) futex_wait(wakes, seen, until, FutexScope::kShared);
        mine.waits_for.store(0, std::memory_order_relaxed);
        return ready();
      },
      // Ranks of other hosts may be elsewhere, and one of this host wait for them.
      [&] { return team_.members().disagreement(); }, team_.in_group(rank));
  if (slept.code() != Code::kDeadlineExceeded) return slept;
  return team_.late(rank, now.call.text());
}

void SharedStages::advance(Counter counter, uint64_t to) {
  (own_.board().*counter).store(to, std::memory_order_release);
  publish();
}

Status SharedStages::await(const Pending& now, int rank, Counter counter, uint64_t count) {
  const std::atomic<uint64_t>& theirs = board(rank).*counter;
  return await(now, rank, [&] { return theirs.load(std::memory_order_acquire) >= count; });
}

Status SharedStages::await_all(const Pending& now, Counter counter, uint64_t count) {
  for (int k = 1; k < size_; ++k)
    if (Status status = await(now, team_.after(k), counter, count); !status.ok()) return status;
  return {};
}

Status SharedStages::await_entry(const Pending& now, int rank, uint64_t sequence) {
  const BoardEntry& entry = board(rank).entries[sequence % Board::kEntries];
  return await(now, rank,
               [&] { return entry.sequence.load(std::memory_order_acquire) >= sequence; });
}

// ---- agreement ----

Status SharedStages::enter(const Pending& now, const std::byte* data, size_t size) {
  const uint64_t sequence = ++sequence_;
  // The entry that is written anew: whoever has begun the operation after it needs it no more. A
  // slot is used anew earlier.
  const bool in_slot = size > BoardEntry::kRoom;
  const uint64_t begun = in_slot                      ? sequence - 1
                         : sequence > Board::kEntries ? sequence - Board::kEntries + 1
                                                      : 0;
  for (int i = 0; begun != 0 && i < size_; ++i)
    if (i != rank_)
      if (Status status = await_entry(now, i, begun); !status.ok()) return status;
  BoardEntry& entry = own_.board().entries[sequence % Board::kEntries];
  entry.call = encode_call(now.call);
  if (size != 0) std::memcpy(in_slot ? own_.slot(sequence) : entry.data, data, size);
  entry.sequence.store(sequence, std::memory_order_release);
  publish();
  return {};
}

Status SharedStages::agree(const Pending& now, int rank) {
  if (Status status = await_entry(now, rank, sequence_); !status.ok()) return status;
  const auto entry = sequence_ % Board::kEntries;
  const CallBytes said = board(rank).entries[entry].call;
  return said == own_.board().entries[entry].call ? Status() : another_call(now.call, rank, said);
}

Status SharedStages::another_call(const CollectiveCall& mine, int rank,
                                  const CallBytes& said) const {
  const auto theirs = decode_call(said);
  if (!theirs)
    return {theirs.status().code(), text({team_.name(rank), ": ", theirs.status().details()})};
  return team_.members().disagreement(mine, team_.in_group(rank), *theirs);
}

// No entry that is looked at is written anew meanwhile: its rank waits for this one before.
Status SharedStages::disagreement(const CollectiveCall& call, bool begun) const {
  const uint64_t sequence = sequence_ + (begun ? 0 : 1);
  const CallBytes mine = encode_call(call);
  for (int i = 0; i < size_; ++i) {
    const BoardEntry& entry = board(i).entries[sequence % Board::kEntries];
    if (i == rank_ || entry.sequence.load(std::memory_order_acquire) != sequence) continue;
    if (const CallBytes said = entry.call; said != mine) return another_call(call, i, said);
  }
  return {};
}

Status SharedStages::agree_all(const Pending& now) {
  for (int k = 1; k < size_; ++k)
    if (Status status = agree(now, team_.after(k)); !status.ok()) return status;
  return {};
}

const std::byte* SharedStages::data_of(int rank, size_t size) const {
  return size > BoardEntry::kRoom ? slot(rank, sequence_)
                                  : board(rank).entries[sequence_ % Board::kEntries].data;
}

Status SharedStages::end(Status status) {
  if (!status.ok()) {
    own_.board().failed.store(true, std::memory_order_seq_cst);
    team_.members().fail(status);
  }
  return status;
}

}  // namespace tw::collective
