// SPDX-License-Identifier: Apache-2.0
#include "collective/shared_fabric.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/streamed_copy.h"
#include "base/text.h"
#include "collective/part.h"
#include "collective/point_to_point.h"
#include "collective/reduction.h"
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

void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  if (size != 0 && to != from) std::memcpy(to, from, size);
}

// To a place in an array of `whole` bytes that the user gets.
void copy_out(std::byte* to, const std::byte* from, size_t size, size_t whole) {
  if (whole < kStreamed) return copy_bytes(to, from, size);
  if (to != from) copy_streamed(to, from, size);
}

constexpr uint64_t chunks_of(uint64_t amount, uint64_t each) { return (amount + each - 1) / each; }

}  // namespace

struct SharedFabric::Pending {
  const CollectiveCall& call;
  const Wait& wait;
};

SharedFabric::SharedFabric(Team team, OwnStage own, std::vector<std::optional<PeerStage>> peers,
                           std::vector<std::optional<PeerMemory>> memories, Ways tuned, Nanos spin)
    : team_(std::move(team)),
      rank_(team_.rank()),
      size_(team_.size()),
      own_(std::move(own)),
      peers_(std::move(peers)),
      memories_(std::move(memories)),
      tuned_(std::move(tuned)),
      crowded_(more_than_processors(size_)),
      spinner_(crowded_ ? 0 : spin) {}

const Board& SharedFabric::board(int rank) const {
  return rank == rank_ ? own_.board() : peers_[static_cast<size_t>(rank)]->board();
}
const std::byte* SharedFabric::slot(int rank, uint64_t sequence) const {
  return rank == rank_ ? own_.slot(sequence) : peers_[static_cast<size_t>(rank)]->slot(sequence);
}
const std::byte* SharedFabric::chunk(int rank, uint64_t number) const {
  return rank == rank_ ? own_.chunk(number) : peers_[static_cast<size_t>(rank)]->chunk(number);
}

Way SharedFabric::choose(CollectiveKind kind, size_t bytes) const {
  const bool readable = !memories_.empty() && bytes != 0;
  if (const std::optional<Way> tuned = tuned_.of(kind, bytes)) {
    const bool possible = tuned == Way::kOneStep   ? bytes <= StageLayout::kSlot
                          : tuned == Way::kInPlace ? readable
                                                   : true;
    return possible ? *tuned : Way::kStage;
  }
  if (bytes <= kOneStep) return Way::kOneStep;
  const bool reduces = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce;
  const bool shared = size_ == 2 && bytes >= kStreamed &&
                      (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kGather);
  return !reduces && readable && bytes >= kReadInPlace && !shared ? Way::kInPlace : Way::kStage;
}

// ---- waiting ----

// The fence is between what was published and the look at who sleeps, and its counterpart in
// await() between saying so and the last look: one of the two sees the other.
void SharedFabric::publish() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int i = 0; i < size_; ++i) {
    if (i == rank_ || board(i).waits_for.load(std::memory_order_relaxed) != rank_ + 1) continue;
    own_.board().wakes.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(own_.board().wakes, INT_MAX, FutexScope::kShared);
    return;
  }
}

template <class Ready>
Status SharedFabric::await(const Pending& now, int rank, Ready&& ready) {
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
  Status slept = wait_in_slices(
      team_.members(), now.wait,
      [&](Nanos until) {
        mine.waits_for.store(rank + 1, std::memory_order_seq_cst);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        const uint32_t seen = wakes.load(std::memory_order_seq_cst);
        if (!ready()) futex_wait(wakes, seen, until, FutexScope::kShared);
        mine.waits_for.store(0, std::memory_order_relaxed);
        return ready();
      },
      team_.in_group(rank));
  if (slept.code() != Code::kDeadlineExceeded) return slept;
  return {Code::kDeadlineExceeded,
          text({team_.name(rank), " has not come to its part of ", now.call.text(), " in time"})};
}

Status SharedFabric::await_all(const Pending& now, std::atomic<uint64_t> Board::* counter,
                               uint64_t count) {
  for (int k = 1; k < size_; ++k) {
    const int rank = (rank_ + k) % size_;
    const std::atomic<uint64_t>& theirs = board(rank).*counter;
    const auto ready = [&] { return theirs.load(std::memory_order_acquire) >= count; };
    if (Status status = await(now, rank, ready); !status.ok()) return status;
  }
  return {};
}

Status SharedFabric::await_entry(const Pending& now, int rank, uint64_t sequence) {
  const BoardEntry& entry = board(rank).entries[sequence % Board::kEntries];
  return await(now, rank,
               [&] { return entry.sequence.load(std::memory_order_acquire) >= sequence; });
}

// ---- agreement ----

Status SharedFabric::enter(const Pending& now, const std::byte* data, size_t size) {
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
  entry.call = now.call;
  copy_bytes(in_slot ? own_.slot(sequence) : entry.data, data, size);
  entry.sequence.store(sequence, std::memory_order_release);
  publish();
  return {};
}

Status SharedFabric::agree(const Pending& now, int rank) {
  if (Status status = await_entry(now, rank, sequence_); !status.ok()) return status;
  const CollectiveCall theirs = board(rank).entries[sequence_ % Board::kEntries].call;
  if (theirs == now.call) return {};
  return {Code::kAborted, text({team_.name(rank_), " called ", now.call.text(), ", but ",
                                team_.name(rank), " called ", theirs.text()})};
}

Status SharedFabric::agree_all(const Pending& now) {
  for (int k = 1; k < size_; ++k)
    if (Status status = agree(now, (rank_ + k) % size_); !status.ok()) return status;
  return {};
}

const std::byte* SharedFabric::data_of(int rank, size_t size) const {
  return size > BoardEntry::kRoom ? slot(rank, sequence_)
                                  : board(rank).entries[sequence_ % Board::kEntries].data;
}

// Whoever reads this rank's array looks at `failed` afterwards: before the user has it again.
Status SharedFabric::end(Status status) {
  if (!status.ok()) {
    own_.board().failed.store(true, std::memory_order_seq_cst);
    team_.members().fail(status);
  }
  return status;
}

// ---- arrays that are read where they lie ----

Status SharedFabric::enter_with(const Pending& now, const std::byte* array) {
  const uint64_t address = reinterpret_cast<uintptr_t>(array);
  if (Status status = enter(now, reinterpret_cast<const std::byte*>(&address), sizeof address);
      !status.ok())
    return status;
  return agree_all(now);
}

uint64_t SharedFabric::array_of(int rank) const {
  uint64_t address;
  std::memcpy(&address, data_of(rank, sizeof address), sizeof address);
  return address;
}

Status SharedFabric::read(const Pending& now, int rank, uint64_t from, std::byte* to, size_t size) {
  const PeerMemory& memory = *memories_[static_cast<size_t>(rank)];
  const auto wrong = [&](const Status& otherwise) {
    return blame(team_.members(), team_.in_group(rank), otherwise);
  };
  size_t through = 0;
  Status why;
  const Status read = wait_in_slices(team_.members(), now.wait, [&](Nanos) {
    const size_t piece = std::min(size - through, kReadAtOnce);
    why = memory.read(to + through, from + through, piece);
    through += piece;
    return !why.ok() || through == size;
  });
  if (why.ok() && !read.ok())
    return read.code() != Code::kDeadlineExceeded
               ? read
               : Status{read.code(), text({"the array of ", team_.name(rank),
                                           " could not be read in time, in ", now.call.text()})};
  if (board(rank).failed.load(std::memory_order_seq_cst))
    return wrong(
        {Code::kUnavailable, text({team_.name(rank), " has given ", now.call.text(), " up"})});
  if (!why.ok()) return wrong(why);
  return {};
}

Status SharedFabric::finish_reading(const Pending& now, bool gives) {
  way_ = Way::kInPlace;
  own_.board().read.store(sequence_, std::memory_order_release);
  publish();
  return gives ? await_all(now, &Board::read, sequence_) : Status();
}

// ---- the pipeline ----

template <class Put, class Mix, class Take>
Status SharedFabric::pipeline(const Pending& now, uint64_t chunks, Put&& put, Mix&& mix,
                              Take&& take) {
  way_ = Way::kStage;
  Board& mine = own_.board();
  const uint64_t base = chunks_;
  chunks_ += chunks;
  const auto advance = [this](std::atomic<uint64_t>& counter, uint64_t to) {
    counter.store(to, std::memory_order_release);
    publish();
  };
  const auto fill = [&](uint64_t c) -> Status {
    if (base + c >= StageLayout::kDepth) {
      const uint64_t read = base + c - StageLayout::kDepth + 1;
      if (Status status = await_all(now, &Board::taken, read); !status.ok()) return status;
    }
    put(c, own_.chunk(base + c));
    advance(mine.staged, base + c + 1);
    return {};
  };
  const auto drain = [&](uint64_t c) -> Status {
    if (Status status = take(c, base + c); !status.ok()) return status;
    advance(mine.taken, base + c + 1);
    return {};
  };
  for (uint64_t c = 0; c < std::min<uint64_t>(chunks, 2); ++c)
    if (Status status = fill(c); !status.ok()) return status;
  for (uint64_t c = 0; c < chunks; ++c) {
    if (Status status = mix(c, base + c); !status.ok()) return status;
    advance(mine.reduced, base + c + 1);
    if (c + 2 < chunks)
      if (Status status = fill(c + 2); !status.ok()) return status;
    if (c >= 1)
      if (Status status = drain(c - 1); !status.ok()) return status;
  }
  return chunks == 0 ? Status() : drain(chunks - 1);
}

template <class Fill, class Drain>
Status SharedFabric::exchange(const Pending& now, uint64_t chunks, Fill&& fill, Drain&& drain) {
  return pipeline(
      now, chunks, fill, [](uint64_t, uint64_t) { return Status(); },
      [&](uint64_t c, uint64_t number) -> Status {
        for (int k = 1; k < size_; ++k) {
          const int rank = (rank_ + k) % size_;
          if (!drain(c, rank, nullptr)) continue;
          const std::atomic<uint64_t>& staged = board(rank).staged;
          const auto ready = [&] { return staged.load(std::memory_order_acquire) > number; };
          if (Status status = await(now, rank, ready); !status.ok()) return status;
          (void)drain(c, rank, chunk(rank, number));
        }
        return {};
      });
}

// ---- operations ----

Status SharedFabric::barrier(const CollectiveCall& call, const Wait& wait) {
  way_ = Way::kOneStep;
  const Pending now{call, wait};
  if (Status status = enter(now); !status.ok()) return end(std::move(status));
  return end(agree_all(now));
}

Status SharedFabric::one_step_reduction(const Pending& now, const std::byte* in, std::byte* out) {
  way_ = Way::kOneStep;
  const size_t bytes = now.call.bytes();
  if (Status status = enter(now, in, bytes); !status.ok()) return status;
  if (Status status = agree_all(now); !status.ok()) return status;
  if (!out || bytes == 0) return {};
  std::vector<const std::byte*> all(static_cast<size_t>(size_));
  for (int i = 0; i < size_; ++i) all[static_cast<size_t>(i)] = data_of(i, bytes);
  tw::reduce(now.call.type, now.call.op, all, out, nullptr, now.call.count,
             static_cast<unsigned>(size_));
  return {};
}

Status SharedFabric::staged_reduction(const Pending& now, const std::byte* in, std::byte* out) {
  if (Status status = enter(now); !status.ok()) return status;
  if (Status status = agree_all(now); !status.ok()) return status;
  const size_t width = size_of(now.call.type), each = StageLayout::kChunk / width;
  const uint64_t count = now.call.count;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, count - c * each); };
  std::vector<const std::byte*> all(static_cast<size_t>(size_));
  return pipeline(
      now, chunks_of(count, each),
      [&](uint64_t c, std::byte* stage) {
        const Part mine = part_of(length(c), width, rank_, size_);
        const std::byte* const from = in + c * each * width;
        copy_bytes(stage, from, mine.begin * width);
        copy_bytes(stage + mine.end * width, from + mine.end * width,
                   (length(c) - mine.end) * width);
      },
      [&](uint64_t c, uint64_t number) -> Status {
        if (Status status = await_all(now, &Board::staged, number + 1); !status.ok()) return status;
        const Part mine = part_of(length(c), width, rank_, size_);
        if (mine.size() == 0) return {};
        const size_t at = mine.begin * width;
        for (int i = 0; i < size_; ++i)
          all[static_cast<size_t>(i)] =
              i == rank_ ? in + c * each * width + at : chunk(i, number) + at;
        // The result may lie where this rank's input does; the stage lies apart from all inputs.
        std::byte* const stage = own_.chunk(number) + at;
        std::byte* const kept = out ? out + c * each * width + at : nullptr;
        tw::reduce(now.call.type, now.call.op, all, kept ? kept : stage, kept ? stage : nullptr,
                   mine.size(), static_cast<unsigned>(size_));
        return {};
      },
      [&](uint64_t c, uint64_t number) -> Status {
        for (int k = 1; out && k < size_; ++k) {
          const int rank = (rank_ + k) % size_;
          const std::atomic<uint64_t>& reduced = board(rank).reduced;
          const auto ready = [&] { return reduced.load(std::memory_order_acquire) > number; };
          if (Status status = await(now, rank, ready); !status.ok()) return status;
          const Part part = part_of(length(c), width, rank, size_);
          copy_bytes(out + (c * each + part.begin) * width,
                     chunk(rank, number) + part.begin * width, part.size() * width);
        }
        return {};
      });
}

Status SharedFabric::all_reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                                const Wait& wait) {
  const Pending now{call, wait};
  return end(choose(call.kind, call.bytes()) == Way::kOneStep ? one_step_reduction(now, in, out)
                                                              : staged_reduction(now, in, out));
}

Status SharedFabric::reduce_to(int root, const CollectiveCall& call, const std::byte* in,
                               std::byte* out, const Wait& wait) {
  const Pending now{call, wait};
  std::byte* const to = rank_ == root ? out : nullptr;
  return end(choose(call.kind, call.bytes()) == Way::kOneStep ? one_step_reduction(now, in, to)
                                                              : staged_reduction(now, in, to));
}

Status SharedFabric::reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                            const Wait& wait) {
  return reduce_to(call.root, call, in, out, wait);
}

Status SharedFabric::reduce_scatter(const CollectiveCall& call, const std::byte* in, std::byte* out,
                                    const Wait& wait) {
  const Pending now{call, wait};
  const size_t width = size_of(call.type);
  const uint64_t each = StageLayout::kChunk / static_cast<size_t>(size_) / kLine * kLine / width,
                 count = call.count;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, count - c * each); };
  const auto row = [&](int rank, uint64_t c) {
    return (static_cast<uint64_t>(rank) * count + c * each) * width;
  };
  std::vector<const std::byte*> all(static_cast<size_t>(size_));
  if (Status status = enter(now); !status.ok()) return end(std::move(status));
  if (Status status = agree_all(now); !status.ok()) return end(std::move(status));
  return end(pipeline(
      now, chunks_of(count, each),
      [&](uint64_t c, std::byte* stage) {
        for (int i = 0; i < size_; ++i)
          if (i != rank_)
            copy_bytes(stage + static_cast<size_t>(i) * each * width, in + row(i, c),
                       length(c) * width);
      },
      [&](uint64_t c, uint64_t number) -> Status {
        if (Status status = await_all(now, &Board::staged, number + 1); !status.ok()) return status;
        for (int i = 0; i < size_; ++i)
          all[static_cast<size_t>(i)] =
              i == rank_ ? in + row(rank_, c)
                         : chunk(i, number) + static_cast<size_t>(rank_) * each * width;
        tw::reduce(call.type, call.op, all, out + c * each * width, nullptr, length(c),
                   static_cast<unsigned>(size_));
        return {};
      },
      [](uint64_t, uint64_t) { return Status(); }));
}

Status SharedFabric::broadcast(const CollectiveCall& call, std::byte* data, const Wait& wait) {
  return broadcast_from(call.root, call, data, wait);
}

Status SharedFabric::broadcast_from(int from, const CollectiveCall& call, std::byte* data,
                                    const Wait& wait) {
  const Pending now{call, wait};
  const size_t bytes = call.bytes();
  const bool root = rank_ == from;
  const Way way = choose(CollectiveKind::kBroadcast, bytes);
  if (way == Way::kOneStep) {
    way_ = Way::kOneStep;
    if (Status status = enter(now, root ? data : nullptr, root ? bytes : 0); !status.ok())
      return end(std::move(status));
    if (root) return {};
    if (Status status = agree(now, from); !status.ok()) return end(std::move(status));
    copy_bytes(data, data_of(from, bytes), bytes);
    return {};
  }
  if (way == Way::kInPlace) {
    Status status = enter_with(now, data);
    if (status.ok() && !root) status = read(now, from, array_of(from), data, bytes);
    return end(status.ok() ? finish_reading(now, root) : std::move(status));
  }
  if (Status status = enter(now); !status.ok()) return end(std::move(status));
  if (Status status = agree_all(now); !status.ok()) return end(std::move(status));
  constexpr uint64_t each = StageLayout::kChunk;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, bytes - c * each); };
  return end(exchange(
      now, chunks_of(bytes, each),
      [&](uint64_t c, std::byte* stage) {
        if (root) copy_bytes(stage, data + c * each, length(c));
      },
      [&](uint64_t c, int rank, const std::byte* stage) {
        if (rank != from) return false;
        if (stage) copy_out(data + c * each, stage, length(c), bytes);
        return true;
      }));
}

Status SharedFabric::all_gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                                const Wait& wait) {
  const Pending now{call, wait};
  const size_t bytes = call.bytes();
  const auto place = [&](int rank) { return out + static_cast<size_t>(rank) * bytes; };
  const Way way = choose(call.kind, bytes);
  if (way == Way::kOneStep) {
    way_ = Way::kOneStep;
    if (Status status = enter(now, in, bytes); !status.ok()) return end(std::move(status));
    if (Status status = agree_all(now); !status.ok()) return end(std::move(status));
    for (int i = 0; out && i < size_; ++i) copy_bytes(place(i), data_of(i, bytes), bytes);
    return {};
  }
  if (way == Way::kInPlace) {
    Status status = enter_with(now, in);
    if (out && status.ok()) copy_out(place(rank_), in, bytes, bytes);
    for (int k = 1; out && status.ok() && k < size_; ++k) {
      const int rank = (rank_ + k) % size_;
      status = read(now, rank, array_of(rank), place(rank), bytes);
    }
    return end(status.ok() ? finish_reading(now, true) : std::move(status));
  }
  if (Status status = enter(now); !status.ok()) return end(std::move(status));
  if (Status status = agree_all(now); !status.ok()) return end(std::move(status));
  constexpr uint64_t each = StageLayout::kChunk;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, bytes - c * each); };
  return end(exchange(
      now, chunks_of(bytes, each),
      [&](uint64_t c, std::byte* stage) {
        copy_bytes(stage, in + c * each, length(c));
        if (out) copy_out(place(rank_) + c * each, in + c * each, length(c), bytes);
      },
      [&](uint64_t c, int rank, const std::byte* stage) {
        if (!out) return false;
        if (stage) copy_out(place(rank) + c * each, stage, length(c), bytes);
        return true;
      }));
}

Status SharedFabric::gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                            const Wait& wait) {
  return all_gather(call, in, rank_ == call.root ? out : nullptr, wait);
}

Status SharedFabric::scatter(const CollectiveCall& call, const std::byte* in, std::byte* out,
                             const Wait& wait) {
  const Pending now{call, wait};
  const size_t bytes = call.bytes();
  const bool root = rank_ == call.root;
  const auto share = [&](int rank) { return static_cast<size_t>(rank) * bytes; };
  if (choose(call.kind, bytes) == Way::kInPlace) {
    Status status = enter_with(now, in);
    if (root && status.ok()) copy_out(out, in + share(rank_), bytes, bytes);
    if (!root && status.ok())
      status = read(now, call.root, array_of(call.root) + share(rank_), out, bytes);
    return end(status.ok() ? finish_reading(now, root) : std::move(status));
  }
  const uint64_t each = StageLayout::kChunk / static_cast<size_t>(size_) / kLine * kLine;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, bytes - c * each); };
  if (Status status = enter(now); !status.ok()) return end(std::move(status));
  if (Status status = agree_all(now); !status.ok()) return end(std::move(status));
  if (root) copy_out(out, in + share(rank_), bytes, bytes);
  return end(exchange(
      now, chunks_of(bytes, each),
      [&](uint64_t c, std::byte* stage) {
        for (int i = 0; root && i < size_; ++i)
          if (i != rank_)
            copy_bytes(stage + static_cast<size_t>(i) * each, in + share(i) + c * each, length(c));
      },
      [&](uint64_t c, int rank, const std::byte* stage) {
        if (rank != call.root) return false;
        if (stage)
          copy_out(out + c * each, stage + static_cast<size_t>(rank_) * each, length(c), bytes);
        return true;
      }));
}

Status SharedFabric::all_to_all(const CollectiveCall& call, const std::byte* in,
                                std::span<const Run> gives, std::byte* out,
                                std::span<const Run> takes, const Wait& wait) {
  const Pending now{call, wait};
  const auto ranks = static_cast<size_t>(size_);
  // Every rank tells all how much it gives to whom, and where that lies: who takes checks it, and
  // all know the largest run.
  struct Given {
    uint64_t size, address;
  };
  std::vector<Given> given_to(ranks);
  for (size_t i = 0; i < ranks; ++i)
    given_to[i] = {gives[i].size, reinterpret_cast<uintptr_t>(in) + gives[i].offset};
  const size_t table = ranks * sizeof(Given);
  if (Status status = enter(now, reinterpret_cast<const std::byte*>(given_to.data()), table);
      !status.ok())
    return end(std::move(status));
  if (Status status = agree_all(now); !status.ok()) return end(std::move(status));
  uint64_t longest = 0;
  std::vector<uint64_t> from(ranks);
  for (int i = 0; i < size_; ++i) {
    std::memcpy(given_to.data(), data_of(i, table), table);
    for (size_t j = 0; j < ranks; ++j)
      if (static_cast<int>(j) != i) longest = std::max(longest, given_to[j].size);
    const uint64_t given = given_to[static_cast<size_t>(rank_)].size;
    from[static_cast<size_t>(i)] = given_to[static_cast<size_t>(rank_)].address;
    if (const size_t taken = takes[static_cast<size_t>(i)].size; given != taken)
      return end({Code::kInvalidArgument, text({team_.name(i), " gives ", given, " bytes to ",
                                                team_.name(rank_), ", which takes ", taken})});
  }
  const auto self = static_cast<size_t>(rank_);
  copy_out(out + takes[self].offset, in + gives[self].offset, takes[self].size, takes[self].size);
  if (choose(call.kind, longest) == Way::kInPlace) {
    Status status;
    for (int k = 1; status.ok() && k < size_; ++k) {
      const int rank = (rank_ + k) % size_;
      const Run& run = takes[static_cast<size_t>(rank)];
      if (run.size != 0)
        status = read(now, rank, from[static_cast<size_t>(rank)], out + run.offset, run.size);
    }
    return end(status.ok() ? finish_reading(now, true) : std::move(status));
  }
  const uint64_t each = StageLayout::kChunk / ranks / kLine * kLine;
  const auto length = [&](const Run& run, uint64_t c) {
    return run.size <= c * each ? 0 : std::min<uint64_t>(each, run.size - c * each);
  };
  return end(exchange(
      now, chunks_of(longest, each),
      [&](uint64_t c, std::byte* stage) {
        for (size_t i = 0; i < ranks; ++i)
          if (const uint64_t size = length(gives[i], c); i != self && size != 0)
            copy_bytes(stage + i * each, in + gives[i].offset + c * each, size);
      },
      [&](uint64_t c, int rank, const std::byte* stage) {
        const Run& run = takes[static_cast<size_t>(rank)];
        if (length(run, c) == 0) return false;
        if (stage)
          copy_out(out + run.offset + c * each, stage + self * each, length(run, c), run.size);
        return true;
      }));
}

}  // namespace tw::collective
