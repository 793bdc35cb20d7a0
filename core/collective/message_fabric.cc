// SPDX-License-Identifier: Apache-2.0
#include "collective/message_fabric.h"

#include <cstring>
#include <utility>

#include "base/text.h"
#include "collective/steps/steps.h"

namespace tw::collective {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  if (size != 0 && to != from) std::memcpy(to, from, size);
}

}  // namespace

template <class Steps>
Status MessageFabric::by(const CollectiveCall& call, const Wait& wait, Algorithm algorithm,
                         Steps&& steps) {
  way_ = way_of(algorithm);
  const Members::UnderWay operation(team_.members(), {++sequence_, call});
  Look look;
  if (boards_) {
    if (Status status = boards_->announce(call, wait); !status.ok()) return status;
    look = [this, &call] { return boards_->disagreement(call, true); };
  }
  Messages messages(team_, sequence_, {call, wait}, algorithm, std::move(look));
  Status status = steps(messages);
  if (!status.ok()) team_.members().fail(status);
  return status;
}

Status MessageFabric::run(const CollectiveCall& call, const std::byte* in, std::byte* out,
                          const Wait& wait) {
  const Algorithm algorithm = choose_algorithm(call, team_.size(), forced_, tuned_);
  return by(call, wait, algorithm, [&](Messages& messages) {
    switch (call.kind) {
      case CollectiveKind::kBarrier:
        return steps::barrier(messages);
      case CollectiveKind::kAllReduce:
        return steps::all_reduce(messages, in, out);
      case CollectiveKind::kReduce:
        return steps::reduce(messages, call.root, in, out);
      case CollectiveKind::kBroadcast:
        return steps::broadcast(messages, call.root, out);
      case CollectiveKind::kReduceScatter:
        return steps::reduce_scatter(messages, in, out);
      case CollectiveKind::kAllGather:
        return steps::all_gather(messages, in, out);
      case CollectiveKind::kGather:
      case CollectiveKind::kScatter:
        return move(messages, in, out);
      case CollectiveKind::kAllToAll:
        break;
    }
    return not_an_operation();
  });
}

// Gather and scatter.
Status MessageFabric::move(Messages& messages, const std::byte* in, std::byte* out) {
  const CollectiveCall& call = messages.part();
  const size_t bytes = call.bytes();
  const auto ranks = static_cast<size_t>(messages.team().size()),
             self = static_cast<size_t>(messages.team().rank()),
             root = static_cast<size_t>(call.root);
  const bool scatters = call.kind == CollectiveKind::kScatter;
  steps::Given gives(ranks);
  steps::Taken takes(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    if ((scatters ? self : i) == root) gives[i] = std::span(in + (scatters ? i * bytes : 0), bytes);
    if ((scatters ? i : self) == root)
      takes[i] = std::span(out + (scatters ? 0 : i * bytes), bytes);
  }
  if (gives[self] && takes[self]) copy_bytes(takes[self]->data(), gives[self]->data(), bytes);
  return steps::exchange(messages, gives, takes);
}

Status MessageFabric::all_to_all(const CollectiveCall& call, const std::byte* in,
                                 std::span<const Run> gives, std::byte* out,
                                 std::span<const Run> takes, const Wait& wait) {
  const auto self = static_cast<size_t>(team_.rank());
  copy_bytes(out + takes[self].offset, in + gives[self].offset, gives[self].size);
  return by(call, wait, Algorithm::kNone, [&](Messages& messages) -> Status {
    steps::Given given;
    steps::Taken taken;
    for (const Run& run : gives) given.push_back(std::span(in + run.offset, run.size));
    for (const Run& run : takes) taken.push_back(std::span(out + run.offset, run.size));
    const auto root = static_cast<size_t>(call.root);
    for (size_t i = 0; i < given.size(); ++i) {
      const bool gathers = call.kind == CollectiveKind::kGather,
                 scatters = call.kind == CollectiveKind::kScatter;
      if ((gathers && i != root) || (scatters && self != root)) given[i].reset();
      if ((gathers && self != root) || (scatters && i != root)) taken[i].reset();
    }
    return steps::exchange(messages, given, taken);
  });
}

}  // namespace tw::collective
