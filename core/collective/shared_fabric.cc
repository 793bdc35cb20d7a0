// SPDX-License-Identifier: Apache-2.0
#include "collective/shared_fabric.h"

#include <algorithm>
#include <cstring>

#include "base/streamed_copy.h"
#include "base/text.h"
#include "collective/part.h"
#include "collective/point_to_point.h"
#include "collective/reduction.h"
#include "memory/huge_pages.h"

namespace tw::collective {
namespace {

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

Way SharedFabric::choose(CollectiveKind kind, size_t bytes) const {
  const bool readable = stages_.readable() && bytes != 0;
  if (const std::optional<Way> tuned = tuned_.of(kind, bytes)) {
    const bool possible = tuned == Way::kOneStep   ? bytes <= StageLayout::kSlot
                          : tuned == Way::kInPlace ? readable
                                                   : true;
    return possible ? *tuned : Way::kStage;
  }
  if (bytes <= kOneStep) return Way::kOneStep;
  const bool apart = kind == CollectiveKind::kScatter || kind == CollectiveKind::kAllToAll ||
                     (kind == CollectiveKind::kBroadcast && size_ > 2);
  return apart && readable && bytes >= kReadInPlace ? Way::kInPlace : Way::kStage;
}

bool SharedFabric::lends(CollectiveKind kind, size_t bytes, const std::byte* array,
                         size_t size) const {
  return tuned_.of(kind, bytes) || in_huge_pages(array, size);
}

Status SharedFabric::meet(const Pending& now, const std::byte* data, size_t size) {
  Status status = stages_.enter(now, data, size);
  return status.ok() ? stages_.agree_all(now) : status;
}

Status SharedFabric::finish_reading(const Pending& now, bool gives) {
  way_ = Way::kInPlace;
  return stages_.finish_reading(now, gives);
}

Status SharedFabric::finish_reduction(const Pending& now) {
  way_ = Way::kInPlace;
  return stages_.finish_reduction(now, chunks_);
}

// ---- the pipeline ----

template <class Put, class Mix, class Take>
Status SharedFabric::pipeline(const Pending& now, uint64_t chunks, Put&& put, Mix&& mix,
                              Take&& take) {
  way_ = Way::kStage;
  const uint64_t base = chunks_;
  chunks_ += chunks;
  const auto fill = [&](uint64_t c) -> Status {
    if (base + c >= StageLayout::kDepth) {
      const uint64_t read = base + c - StageLayout::kDepth + 1;
      if (Status status = stages_.await_all(now, &Board::taken, read); !status.ok()) return status;
    }
    put(c, stages_.own().chunk(base + c));
    stages_.advance(&Board::staged, base + c + 1);
    return {};
  };
  const auto drain = [&](uint64_t c) -> Status {
    if (Status status = take(c, base + c); !status.ok()) return status;
    stages_.advance(&Board::taken, base + c + 1);
    return {};
  };
  for (uint64_t c = 0; c < std::min<uint64_t>(chunks, 2); ++c)
    if (Status status = fill(c); !status.ok()) return status;
  for (uint64_t c = 0; c < chunks; ++c) {
    if (Status status = mix(c, base + c); !status.ok()) return status;
    stages_.advance(&Board::reduced, base + c + 1);
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
          const int rank = stages_.team().after(k);
          if (!drain(c, rank, nullptr)) continue;
          Status status = stages_.await(now, rank, &Board::staged, number + 1);
          if (!status.ok()) return status;
          (void)drain(c, rank, stages_.chunk(rank, number));
        }
        return {};
      });
}

// ---- operations ----

Status SharedFabric::run(const CollectiveCall& call, const std::byte* in, std::byte* out,
                         const Wait& wait) {
  return stages_.end(operate({call, wait}, in, out));
}

Status SharedFabric::operate(const Pending& now, const std::byte* in, std::byte* out) {
  const bool root = rank_ == now.call.root;
  switch (now.call.kind) {
    case CollectiveKind::kBarrier:
      way_ = Way::kOneStep;
      return meet(now);
    case CollectiveKind::kAllReduce:
      return reduction(now, in, out);
    case CollectiveKind::kReduce:
      return reduction(now, in, root ? out : nullptr);
    case CollectiveKind::kBroadcast:
      return broadcast(now, now.call.root, {out, now.part.bytes()});
    case CollectiveKind::kAllGather:
      return gather(now, in, out);
    case CollectiveKind::kGather:
      return gather(now, in, root ? out : nullptr);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(now, in, out);
    case CollectiveKind::kScatter:
      return scatter(now, now.call.root, in, out);
    case CollectiveKind::kAllToAll:
      break;
  }
  return not_an_operation();
}

Status SharedFabric::all_to_all(const CollectiveCall& call, const std::byte* in,
                                std::span<const Run> gives, std::byte* out,
                                std::span<const Run> takes, const Wait& wait) {
  return stages_.end(exchange_runs({call, wait}, in, gives, out, takes));
}

Status SharedFabric::reduce_to(int root, const CollectiveCall& call, const CollectiveCall& part,
                               const std::byte* in, std::byte* out, const Wait& wait) {
  return stages_.end(reduction({call, wait, part}, in, rank_ == root ? out : nullptr));
}

Status SharedFabric::broadcast_from(int root, const CollectiveCall& call, const Scattered& data,
                                    const Wait& wait) {
  return stages_.end(broadcast({call, wait}, root, data));
}

Status SharedFabric::scatter_from(int root, const CollectiveCall& call, const CollectiveCall& part,
                                  const std::byte* in, std::byte* out, const Wait& wait) {
  return stages_.end(scatter({call, wait, part}, root, in, out));
}

Status SharedFabric::reduction(const Pending& now, const std::byte* in, std::byte* out) {
  return choose(now.call.kind, now.part.bytes()) == Way::kOneStep ? one_step_reduction(now, in, out)
                                                                  : staged_reduction(now, in, out);
}

Status SharedFabric::one_step_reduction(const Pending& now, const std::byte* in, std::byte* out) {
  way_ = Way::kOneStep;
  const size_t bytes = now.part.bytes();
  if (Status status = meet(now, in, bytes); !status.ok()) return status;
  if (!out || bytes == 0) return {};
  std::vector<const std::byte*> all(static_cast<size_t>(size_));
  for (int i = 0; i < size_; ++i) all[static_cast<size_t>(i)] = stages_.data_of(i, bytes);
  tw::reduce(now.part.type, now.part.op, all, out, now.part.count, static_cast<unsigned>(size_));
  return {};
}

Status SharedFabric::staged_reduction(const Pending& now, const std::byte* in, std::byte* out) {
  const size_t bytes = now.part.bytes();
  if (Status status = stages_.enter_with(now, in, bytes, in == out); !status.ok()) return status;
  auto arrays = stages_.mapped(in, bytes);
  if (!arrays) return arrays.status();
  const bool in_arenas = !arrays->empty();
  const size_t width = size_of(now.part.type), each = StageLayout::kChunk / width;
  const uint64_t count = now.part.count;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, count - c * each); };
  std::vector<const std::byte*> all(static_cast<size_t>(size_));
  Status over = pipeline(
      now, chunks_of(count, each),
      [&](uint64_t c, std::byte* stage) {
        if (in_arenas) return;
        const Part mine = part_of(length(c), width, rank_, size_);
        const std::byte* const from = in + c * each * width;
        copy_bytes(stage, from, mine.begin * width);
        copy_bytes(stage + mine.end * width, from + mine.end * width,
                   (length(c) - mine.end) * width);
      },
      [&](uint64_t c, uint64_t number) -> Status {
        if (Status status = stages_.await_all(now, &Board::staged, number + 1); !status.ok())
          return status;
        const Part mine = part_of(length(c), width, rank_, size_);
        if (mine.size() == 0) return {};
        const size_t at = mine.begin * width;
        for (int i = 0; i < size_; ++i)
          all[static_cast<size_t>(i)] =
              in_arenas    ? (*arrays)[static_cast<size_t>(i)] + c * each * width + at
              : i == rank_ ? in + c * each * width + at
                           : stages_.chunk(i, number) + at;
        // The result may lie where this rank's input does; the stage lies apart from all inputs.
        std::byte* const stage = stages_.own().chunk(number) + at;
        std::byte* const kept = out ? out + c * each * width + at : nullptr;
        tw::reduce(now.part.type, now.part.op, all, kept ? kept : stage, mine.size(),
                   static_cast<unsigned>(size_));
        // The C library's copy of whole lines takes them from the caches of those that have read
        // them without their content. Stores of the reduction itself wait for each line.
        if (kept && !(in_arenas && in == out)) copy_bytes(stage, kept, mine.size() * width);
        return {};
      },
      [&](uint64_t c, uint64_t number) -> Status {
        for (int k = 1; out && k < size_; ++k) {
          const int rank = stages_.team().after(k);
          Status status = stages_.await(now, rank, &Board::reduced, number + 1);
          if (!status.ok()) return status;
          const Part part = part_of(length(c), width, rank, size_);
          const std::byte* const from =
              in_arenas && stages_.place_of(rank).takes_the_result
                  ? (*arrays)[static_cast<size_t>(rank)] + c * each * width
                  : stages_.chunk(rank, number);
          copy_bytes(out + (c * each + part.begin) * width, from + part.begin * width,
                     part.size() * width);
        }
        return {};
      });
  return over.ok() && in_arenas ? finish_reduction(now) : over;
}

Status SharedFabric::reduce_scatter(const Pending& now, const std::byte* in, std::byte* out) {
  const CollectiveCall& call = now.part;
  const size_t width = size_of(call.type);
  const uint64_t each = StageLayout::kChunk / static_cast<size_t>(size_) / kLine * kLine / width,
                 count = call.count;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, count - c * each); };
  const auto row = [&](int rank, uint64_t c) {
    return (static_cast<uint64_t>(rank) * count + c * each) * width;
  };
  std::vector<const std::byte*> all(static_cast<size_t>(size_));
  const size_t bytes = static_cast<size_t>(size_) * call.bytes();
  if (Status status = stages_.enter_with(now, in, bytes); !status.ok()) return status;
  auto arrays = stages_.mapped(in, bytes);
  if (!arrays) return arrays.status();
  const bool in_arenas = !arrays->empty();
  Status over = pipeline(
      now, chunks_of(count, each),
      [&](uint64_t c, std::byte* stage) {
        for (int i = 0; !in_arenas && i < size_; ++i)
          if (i != rank_)
            copy_bytes(stage + static_cast<size_t>(i) * each * width, in + row(i, c),
                       length(c) * width);
      },
      [&](uint64_t c, uint64_t number) -> Status {
        if (Status status = stages_.await_all(now, &Board::staged, number + 1); !status.ok())
          return status;
        for (int i = 0; i < size_; ++i)
          all[static_cast<size_t>(i)] =
              in_arenas    ? (*arrays)[static_cast<size_t>(i)] + row(rank_, c)
              : i == rank_ ? in + row(rank_, c)
                           : stages_.chunk(i, number) + static_cast<size_t>(rank_) * each * width;
        tw::reduce(call.type, call.op, all, out + c * each * width, length(c),
                   static_cast<unsigned>(size_));
        return {};
      },
      [](uint64_t, uint64_t) { return Status(); });
  return over.ok() && in_arenas ? finish_reduction(now) : over;
}

Status SharedFabric::broadcast(const Pending& now, int from, const Scattered& data) {
  const size_t bytes = data.size();
  const bool root = rank_ == from;
  const Way way = choose(CollectiveKind::kBroadcast, bytes);
  if (way == Way::kOneStep) {
    way_ = Way::kOneStep;
    Packed packed;
    if (Status status =
            root ? stages_.enter(now, packed.of(data, 0, bytes), bytes) : stages_.enter(now);
        !status.ok())
      return status;
    if (root) return {};
    if (Status status = stages_.agree(now, from); !status.ok()) return status;
    data.put(0, {stages_.data_of(from, bytes), bytes});
    return {};
  }
  std::byte* const whole = data.whole(0, bytes);  // the same for all ranks whether there is one
  const bool lent = root && whole && way == Way::kInPlace &&
                    lends(CollectiveKind::kBroadcast, bytes, whole, bytes);
  if (Status status = stages_.enter_with(now, lent ? whole : nullptr, lent ? bytes : 0);
      !status.ok())
    return status;
  if (const uint64_t address = stages_.place_of(from).address; whole && address != 0) {
    Status status;
    if (!root) status = stages_.read(now, from, address, nullptr, whole, bytes);
    return status.ok() ? finish_reading(now, root) : status;
  }
  constexpr uint64_t each = StageLayout::kChunk;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, bytes - c * each); };
  return exchange(
      now, chunks_of(bytes, each),
      [&](uint64_t c, std::byte* stage) {
        if (!root) return;
        data.each(c * each, length(c), [&](std::byte* place, size_t size) {
          copy_bytes(stage, place, size);
          stage += size;
        });
      },
      [&](uint64_t c, int rank, const std::byte* stage) {
        if (rank != from) return false;
        if (!stage) return true;
        data.each(c * each, length(c), [&](std::byte* place, size_t size) {
          copy_out(place, stage, size, bytes);
          stage += size;
        });
        return true;
      });
}

Status SharedFabric::gather(const Pending& now, const std::byte* in, std::byte* out) {
  const size_t bytes = now.part.bytes();
  const auto place = [&](int rank) {
    return out + static_cast<size_t>(stages_.team().in_group(rank)) * bytes;
  };
  const Way way = choose(now.call.kind, bytes);
  if (way == Way::kOneStep) {
    way_ = Way::kOneStep;
    if (Status status = meet(now, in, bytes); !status.ok()) return status;
    for (int i = 0; out && i < size_; ++i) copy_bytes(place(i), stages_.data_of(i, bytes), bytes);
    return {};
  }
  if (Status status = stages_.enter_with(now, in, bytes); !status.ok()) return status;
  auto arrays = stages_.mapped(in, bytes);
  if (!arrays) return arrays.status();
  const bool in_arenas = !arrays->empty();
  if (way == Way::kInPlace || in_arenas) {
    Status status;
    if (out) copy_out(place(rank_), in, bytes, bytes);
    for (int k = 1; out && status.ok() && k < size_; ++k) {
      const int rank = stages_.team().after(k);
      status = stages_.read(now, rank, stages_.place_of(rank).address,
                            in_arenas ? (*arrays)[static_cast<size_t>(rank)] : nullptr, place(rank),
                            bytes);
    }
    return status.ok() ? finish_reading(now, true) : status;
  }
  constexpr uint64_t each = StageLayout::kChunk;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, bytes - c * each); };
  return exchange(
      now, chunks_of(bytes, each),
      [&](uint64_t c, std::byte* stage) {
        copy_bytes(stage, in + c * each, length(c));
        if (out) copy_out(place(rank_) + c * each, in + c * each, length(c), bytes);
      },
      [&](uint64_t c, int rank, const std::byte* stage) {
        if (!out) return false;
        if (stage) copy_out(place(rank) + c * each, stage, length(c), bytes);
        return true;
      });
}

Status SharedFabric::scatter(const Pending& now, int from, const std::byte* in, std::byte* out) {
  const CollectiveCall& call = now.part;
  const size_t bytes = call.bytes();
  const bool root = rank_ == from;
  const auto share = [&](int rank) { return static_cast<size_t>(rank) * bytes; };
  const bool lent = root && choose(call.kind, bytes) == Way::kInPlace &&
                    lends(call.kind, bytes, in, share(size_));
  if (Status status = stages_.enter_with(now, lent ? in : nullptr, lent ? share(size_) : 0);
      !status.ok())
    return status;
  if (root) copy_out(out, in + share(rank_), bytes, bytes);
  if (const uint64_t address = stages_.place_of(from).address; address != 0) {
    Status status;
    if (!root) status = stages_.read(now, from, address + share(rank_), nullptr, out, bytes);
    return status.ok() ? finish_reading(now, root) : status;
  }
  const uint64_t each = StageLayout::kChunk / static_cast<size_t>(size_) / kLine * kLine;
  const auto length = [&](uint64_t c) { return std::min<uint64_t>(each, bytes - c * each); };
  return exchange(
      now, chunks_of(bytes, each),
      [&](uint64_t c, std::byte* stage) {
        for (int i = 0; root && i < size_; ++i)
          if (i != rank_)
            copy_bytes(stage + static_cast<size_t>(i) * each, in + share(i) + c * each, length(c));
      },
      [&](uint64_t c, int rank, const std::byte* stage) {
        if (rank != from) return false;
        if (stage)
          copy_out(out + c * each, stage + static_cast<size_t>(rank_) * each, length(c), bytes);
        return true;
      });
}

Status SharedFabric::exchange_runs(const Pending& now, const std::byte* in,
                                   std::span<const Run> gives, std::byte* out,
                                   std::span<const Run> takes) {
  const Team& team = stages_.team();
  const auto ranks = static_cast<size_t>(size_);
  // Every rank tells all how much it gives to whom, and where that lies: who takes checks it, and
  // all know the largest run, and whether all of them are to be read where they lie.
  const auto self = static_cast<size_t>(rank_);
  size_t most = 0, extent = 0;
  for (size_t i = 0; i < ranks; ++i) {
    if (i != self) most = std::max(most, gives[i].size);
    extent = std::max(extent, gives[i].offset + gives[i].size);
  }
  // Whatever is made of them, runs go as an all-to-all does.
  constexpr CollectiveKind kRuns = CollectiveKind::kAllToAll;
  const bool lent = choose(kRuns, most) != Way::kInPlace || lends(kRuns, most, in, extent);
  const size_t table = ranks * kGivenRunSize;
  std::vector<std::byte> said(table);
  for (size_t i = 0; i < ranks; ++i)
    std::ranges::copy(
        encode_given({gives[i].size, lent ? reinterpret_cast<uintptr_t>(in) + gives[i].offset : 0}),
        said.data() + i * kGivenRunSize);
  if (Status status = meet(now, said.data(), table); !status.ok()) return status;
  uint64_t longest = 0;
  bool all_lent = true;
  std::vector<uint64_t> from(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    const int rank = static_cast<int>(i);
    for (size_t j = 0; j < ranks; ++j) {
      const auto run =
          decode_given({stages_.data_of(rank, table) + j * kGivenRunSize, kGivenRunSize});
      if (!run) return blame(team.members(), team.in_group(rank), run.status());
      if (j != i && run->size != 0) {
        longest = std::max(longest, run->size);
        all_lent = all_lent && run->address != 0;
      }
      if (j != self) continue;
      from[i] = run->address;
      if (run->size != takes[i].size)
        return {Code::kAborted, text({team.name(rank), " gives ", run->size, " bytes to ",
                                      team.name(rank_), ", which takes ", takes[i].size})};
    }
  }
  copy_out(out + takes[self].offset, in + gives[self].offset, takes[self].size, takes[self].size);
  if (all_lent && choose(kRuns, longest) == Way::kInPlace) {
    Status status;
    for (int k = 1; status.ok() && k < size_; ++k) {
      const int rank = stages_.team().after(k);
      const Run& run = takes[static_cast<size_t>(rank)];
      if (run.size != 0)
        status = stages_.read(now, rank, from[static_cast<size_t>(rank)], nullptr, out + run.offset,
                              run.size);
    }
    return status.ok() ? finish_reading(now, true) : status;
  }
  const uint64_t each = StageLayout::kChunk / ranks / kLine * kLine;
  const auto length = [&](const Run& run, uint64_t c) {
    return run.size <= c * each ? 0 : std::min<uint64_t>(each, run.size - c * each);
  };
  return exchange(
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
      });
}

}  // namespace tw::collective
