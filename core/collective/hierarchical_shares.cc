// SPDX-License-Identifier: Apache-2.0
// All-gather and reduce-scatter in two levels: each share, or the sum for it of all ranks of a
// host, goes to each other host once, whichever ranks are there.
//
// A rank that speaks for its host moves shares piece by piece. While one piece of all shares is on
// its way between hosts, the ranks of each host are at another one.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "collective/hierarchical_fabric.h"
#include "collective/part.h"
#include "collective/reduction.h"
#include "collective/steps/blocks.h"

namespace tw::collective {
namespace {

// How shares of `call` are cut. A wave is the same piece of every share: those of all ranks are at
// most kWave bytes, unless they are so many that pieces would be smaller than kLeast. So what a
// rank holds between the two levels does not depend on how large shares are.
class Waves {
 public:
  Waves(const CollectiveCall& call, size_t ranks) : count_(call.count) {
    constexpr size_t kWave = 2 << 20, kLeast = 64 << 10;
    const size_t bytes = std::max(kLeast, kWave / ranks / kLine * kLine);
    each_ = std::clamp<size_t>(call.count, 1, bytes / size_of(call.type));
  }

  size_t size() const { return std::max<size_t>(1, (count_ + each_ - 1) / each_); }
  // Elements of a share.
  Part piece(size_t wave) const {
    return {std::min(count_, wave * each_), std::min(count_, (wave + 1) * each_)};
  }
  size_t largest() const { return std::min(each_, count_); }

 private:
  const size_t count_;
  size_t each_;
};

// The blocks of hosts, of an array with something of `size` bytes for each rank, `stride` bytes
// apart.
std::vector<Scattered> blocks_of(const std::vector<std::vector<int>>& hosts, std::byte* array,
                                 size_t stride, size_t size) {
  std::vector<Scattered> blocks(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i)
    for (const int rank : hosts[i]) blocks[i].add(array + static_cast<size_t>(rank) * stride, size);
  return blocks;
}

}  // namespace

// Each rank copies the shares of its host from their stages, and those of others from that of the
// speaker, which puts there what comes. All of it has its place in `out` from the start.
Status HierarchicalFabric::all_gather(const CollectiveCall& call, const std::byte* in,
                                      std::byte* out, const Wait& wait) {
  const Speakers who = speakers(hosts_[0][0]);
  const Team team(members_, who.here ? who.ranks : std::vector{members_.rank()});
  const size_t width = size_of(call.type), share = call.bytes();
  const Waves waves(call, static_cast<size_t>(members_.size()));
  Packed packed;
  std::optional<Messages> messages;
  if (who.here)
    messages.emplace(team, sequence_, Pending{call, wait}, algorithm(call), look(call, true));
  const auto blocks = [&](size_t wave) {
    const Part piece = waves.piece(wave);
    return blocks_of(hosts_, out + piece.begin * width, share, piece.size() * width);
  };
  const auto begin = [&](size_t wave) {
    return who.here ? steps::begin_all_gather(*messages, blocks(wave), packed) : Status();
  };
  const auto end = [&](size_t wave) {
    return who.here ? steps::end_all_gather(*messages, blocks(wave), packed) : Status();
  };
  // What other hosts have, in the order of ranks.
  const auto hand_out = [&](size_t wave) -> Status {
    if (!local_) return {};
    const Part piece = waves.piece(wave);
    const std::vector<int>& here = hosts_[host_];
    Scattered others;
    for (int rank = 0; rank < members_.size(); ++rank)
      if (!std::ranges::binary_search(here, rank))
        others.add(out + static_cast<size_t>(rank) * share + piece.begin * width,
                   piece.size() * width);
    return local_->broadcast_from(who.mine, call, others, wait);
  };

  Status status;
  if (local_)
    status = local_->run(call, in, out, wait);
  else if (std::byte* const own = out + static_cast<size_t>(members_.rank()) * share;
           own != in && share != 0)
    std::memcpy(own, in, share);
  if (status.ok()) status = begin(0);
  for (size_t wave = 0; status.ok() && wave < waves.size(); ++wave) {
    status = end(wave);
    if (status.ok() && wave + 1 < waves.size()) status = begin(wave + 1);
    if (status.ok()) status = hand_out(wave);
  }
  if (!status.ok()) members_.fail(status);
  return status;
}

// Elements are reduced in the order of ranks within a host, and then in that of hosts, or along
// their ring. Two waves of what a host's ranks add to all shares are there at a time.
Status HierarchicalFabric::reduce_scatter(const CollectiveCall& call, const std::byte* in,
                                          std::byte* out, const Wait& wait) {
  const Speakers who = speakers(hosts_[0][0]);
  const Team team(members_, who.here ? who.ranks : std::vector{members_.rank()});
  const auto ranks = static_cast<size_t>(members_.size()), here = hosts_[host_].size();
  // What moves: floats that are rounded once move as float32.
  const bool wide = rounds(call.type);
  CollectiveCall moves = call;
  if (wide) moves.type = DataType::kFloat32;
  CollectiveCall sum = moves;
  if (sum.op == ReduceOp::kAverage) sum.op = ReduceOp::kSum;
  const size_t width = size_of(moves.type);
  const Waves waves(moves, ranks);
  const size_t room_of_rank = waves.largest() * width, all_rooms = ranks * room_of_rank;
  const size_t at_a_time = std::min<size_t>(waves.size(), 2);
  const bool apart = local_ || wide;   // what this host's ranks get, until they have it
  const bool widens = local_ && wide;  // what this rank adds
  const size_t for_sums = who.here ? at_a_time * all_rooms : 0,
               for_result = who.here && apart ? here * room_of_rank : 0;
  std::byte* const sums = scratch_.of(for_sums + for_result + (widens ? all_rooms : 0));
  std::byte *const result = sums + for_sums, *const widened = result + for_result;
  const auto sums_of = [&](size_t wave) { return sums + wave % 2 * all_rooms; };
  Packed packed;
  std::optional<Messages> messages;
  if (who.here)
    messages.emplace(team, sequence_, Pending{call, wait, moves}, algorithm(moves),
                     look(call, true));

  // Of a wave, what this host's ranks add to each share, side by side on the speaker.
  const auto reduce = [&](size_t wave) -> Status {
    const Part piece = waves.piece(wave);
    const size_t size = piece.size() * width;
    std::byte* const to = who.here ? sums_of(wave) : nullptr;
    const auto mine = [&](size_t rank) {
      return in + (rank * call.count + piece.begin) * size_of(call.type);
    };
    std::byte* const all = local_ ? widened : to;
    for (size_t i = 0; (wide || !local_) && i < ranks; ++i)
      if (wide)
        widen(call.type, mine(i), reinterpret_cast<float*>(all + i * size), piece.size());
      else if (size != 0)
        std::memcpy(all + i * size, mine(i), size);
    if (!local_) return {};
    // What lies side by side goes at once. To lay the rest so costs more than it saves.
    const bool at_once = wide || waves.size() == 1;
    CollectiveCall part = sum;
    part.count = piece.size() * (at_once ? ranks : 1);
    for (size_t i = 0; i < (at_once ? 1 : ranks); ++i)
      if (Status status = local_->reduce_to(who.mine, call, part, wide ? widened : mine(i),
                                            to ? to + i * size : nullptr, wait);
          !status.ok())
        return status;
    return {};
  };
  const auto blocks = [&](size_t wave) {
    const size_t size = waves.piece(wave).size() * width;
    return blocks_of(hosts_, sums_of(wave), size, size);
  };
  const auto begin = [&](size_t wave) {
    return who.here ? steps::begin_reduce_scatter(*messages, blocks(wave), packed) : Status();
  };
  const auto end = [&](size_t wave) {
    if (!who.here) return Status();
    std::byte* const to = apart ? result : out + waves.piece(wave).begin * width;
    return steps::end_reduce_scatter(*messages, blocks(wave), packed,
                                     {moves.type, moves.op, static_cast<unsigned>(ranks)}, to);
  };
  const auto hand_out = [&](size_t wave) -> Status {
    const Part piece = waves.piece(wave);
    std::byte* const place = out + piece.begin * size_of(call.type);
    CollectiveCall part = moves;
    part.count = piece.size();
    std::byte* const to = wide ? widened : place;
    if (local_)
      if (Status status = local_->scatter_from(who.mine, call, part, result, to, wait);
          !status.ok())
        return status;
    if (wide)
      narrow(call.type, reinterpret_cast<const float*>(local_ ? to : result), place, piece.size());
    return {};
  };

  Status status = reduce(0);
  if (status.ok()) status = begin(0);
  for (size_t wave = 0; status.ok() && wave < waves.size(); ++wave) {
    if (wave + 1 < waves.size()) status = reduce(wave + 1);
    if (status.ok()) status = end(wave);
    if (status.ok() && wave + 1 < waves.size()) status = begin(wave + 1);
    if (status.ok()) status = hand_out(wave);
  }
  if (!status.ok()) members_.fail(status);
  return status;
}

}  // namespace tw::collective
