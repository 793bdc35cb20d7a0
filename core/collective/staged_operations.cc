// SPDX-License-Identifier: Apache-2.0
#include "collective/staged_operations.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "collective/by_parts.h"
#include "collective/reduction.h"

namespace tw::collective {
namespace {

// What an operation moves on this rank, in runs of call.bytes() each: one, one for each rank, or
// none.
struct MovedRuns {
  size_t in = 0, out = 0;
  size_t most = 0;  // of in and out together on any rank, so that all cut alike
  bool in_place = false;
};
MovedRuns shape_of(const CollectiveCall& call, int rank, int size) {
  const auto ranks = static_cast<size_t>(size);
  const bool root = rank == call.root;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return {1, 1, 1, true};
    case CollectiveKind::kReduce:
      return {1, root, 1, true};
    case CollectiveKind::kBroadcast:
      return {root, !root, 1, true};
    case CollectiveKind::kAllGather:
      return {1, ranks, 1 + ranks, false};
    case CollectiveKind::kGather:
      return {1, root ? ranks : 0, 1 + ranks, false};
    case CollectiveKind::kScatter:
      return {root ? ranks : 0, 1, 1 + ranks, false};
    case CollectiveKind::kReduceScatter:
      return {ranks, 1, 1 + ranks, false};
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllToAll:
      break;
  }
  return {};
}

StagedPieces::Runs runs_of(size_t count, size_t bytes) {
  StagedPieces::Runs runs;
  for (size_t i = 0; i < count; ++i) runs.push_back({i * bytes, bytes});
  return runs;
}

uint64_t pieces_of(size_t longest, size_t bytes) {
  return std::max<uint64_t>(1, longest / bytes + (longest % bytes != 0));
}

// Of all that a piece has, which lies side by side.
void scale_piece(DataType type, double factor, const StagedPieces::OnHost& memory) {
  if (factor == 1 || memory.gives.empty()) return;
  const size_t bytes = memory.gives.back().offset + memory.gives.back().size;
  tw::scale(type, factor, memory.in, memory.in, bytes / size_of(type));
}

size_t end_of(std::span<const Fabric::Run> runs) {
  size_t end = 0;
  for (const Fabric::Run& run : runs) end = std::max(end, run.offset + run.size);
  return end;
}

}  // namespace

bool StagedOperations::several(const CollectiveCall& call) const {
  const size_t most = shape_of(call, members_.rank(), members_.size()).most;
  return call.bytes() > StagedPieces::piece_bytes(most);
}

Status StagedOperations::scale(const CollectiveCall& call, const std::byte* in, std::byte* out,
                               const Wait& wait, double factor) {
  const size_t bytes = StagedPieces::piece_bytes(1);
  return staged_.run(
      {in, runs_of(1, call.bytes())}, {out, runs_of(1, call.bytes())},
      pieces_of(call.bytes(), bytes), bytes, true,
      [&](uint64_t, const StagedPieces::OnHost& memory) {
        scale_piece(call.type, factor, memory);
        return Status();
      },
      wait);
}

Status StagedOperations::whole(const std::byte* in, size_t in_bytes, std::byte* out,
                               size_t out_bytes, bool in_place, const OnHost& operation,
                               const Wait& wait) {
  const size_t bytes = StagedPieces::piece_bytes(1);
  const auto of_in = std::make_unique_for_overwrite<std::byte[]>(in_bytes);
  const auto of_out = std::make_unique_for_overwrite<std::byte[]>(in_place ? 0 : out_bytes);
  std::byte* const result = in_place ? of_in.get() : of_out.get();
  Status status = staged_.run(
      {in, runs_of(1, in_bytes)}, {}, pieces_of(in_bytes, bytes), bytes, false,
      [&](uint64_t piece, const StagedPieces::OnHost& memory) {
        std::memcpy(of_in.get() + piece * bytes, memory.in, memory.gives[0].size);
        return Status();
      },
      wait);
  if (status.ok()) status = operation(of_in.get(), result);
  if (!status.ok() || out_bytes == 0) return status;
  return staged_.run(
      {}, {out, runs_of(1, out_bytes)}, pieces_of(out_bytes, bytes), bytes, false,
      [&](uint64_t piece, const StagedPieces::OnHost& memory) {
        std::memcpy(memory.out, result + piece * bytes, memory.takes[0].size);
        return Status();
      },
      wait);
}

Status StagedOperations::run(Fabric& fabric, const CollectiveCall& call, const std::byte* in,
                             std::byte* out, const Wait& wait, double factor) {
  const MovedRuns shape = shape_of(call, members_.rank(), members_.size());
  const size_t bytes = StagedPieces::piece_bytes(shape.most), share = call.bytes();
  // Its factors are those of whole arrays.
  if (is_adasum(call))
    return whole(
        in, shape.in * share, out, shape.out * share, shape.in_place,
        [&](std::byte* from, std::byte* to) {
          return ByParts(fabric, members_.rank(), members_.size(), call, wait).run(from, to);
        },
        wait);
  const std::byte* const from = call.kind == CollectiveKind::kBroadcast ? out : in;
  return staged_.run(
      {from, runs_of(shape.in, share)}, {out, runs_of(shape.out, share)}, pieces_of(share, bytes),
      bytes, shape.in_place,
      [&](uint64_t piece, const StagedPieces::OnHost& memory) {
        CollectiveCall part = call;
        part.count = std::min(share - piece * bytes, bytes) / size_of(call.type);
        const bool writes = shape.out != 0 || call.kind == CollectiveKind::kBroadcast;
        scale_piece(call.type, factor, memory);
        return fabric.run(part, shape.in == 0 ? nullptr : memory.in, writes ? memory.out : nullptr,
                          wait);
      },
      wait);
}

Status StagedOperations::exchange(Fabric& fabric, const CollectiveCall& call, const std::byte* in,
                                  std::span<const Fabric::Run> gives, std::byte* out,
                                  std::span<const Fabric::Run> takes, size_t longest,
                                  const Wait& wait, double factor) {
  ByParts by_parts(fabric, members_.rank(), members_.size(), call, wait);
  const size_t mine = gives[static_cast<size_t>(members_.rank())].size;
  if (is_adasum(call))
    return whole(
        in, end_of(gives), out, mine, false,
        [&](std::byte* from, std::byte* to) { return by_parts.reduce_scatter(from, gives, to); },
        wait);
  const bool gathers = call.kind == CollectiveKind::kAllGather;
  const bool reduces_shares = call.kind == CollectiveKind::kReduceScatter;
  StagedPieces::Given given{in, {gives.begin(), gives.end()}};
  StagedPieces::Taken taken{out, {takes.begin(), takes.end()}};
  if (gathers) given.runs.resize(1);  // all of them are this one
  if (reduces_shares) taken.runs = {{0, mine}};
  const size_t bytes = StagedPieces::piece_bytes(given.runs.size() + taken.runs.size());
  return staged_.run(
      given, taken, pieces_of(longest, bytes), bytes, false,
      [&](uint64_t, const StagedPieces::OnHost& memory) {
        scale_piece(call.type, factor, memory);
        if (reduces_shares) return by_parts.reduce_scatter(memory.in, memory.gives, memory.out);
        const StagedPieces::Runs to_each(gives.size(), memory.gives[0]);
        return fabric.all_to_all(call, memory.in, gathers ? to_each : memory.gives, memory.out,
                                 memory.takes, wait);
      },
      wait);
}

}  // namespace tw::collective
