// SPDX-License-Identifier: Apache-2.0
#include "collective/message_fabric.h"

#include <cstring>

#include "base/text.h"
#include "collective/steps/steps.h"

namespace tw::collective {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  if (size != 0 && to != from) std::memcpy(to, from, size);
}

}  // namespace

template <class Steps>
Status MessageFabric::run(const CollectiveCall& call, const Wait& wait, Steps&& steps,
                          Algorithm algorithm) {
  way_ = way_of(algorithm);
  Messages messages(team_, ++sequence_, call, wait, algorithm);
  Status status = steps(messages);
  if (!status.ok()) team_.members().fail(status);
  return status;
}

Status MessageFabric::barrier(const CollectiveCall& call, const Wait& wait) {
  return run(call, wait, steps::barrier);
}

Status MessageFabric::all_reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                                 const Wait& wait) {
  return run(
      call, wait, [&](Messages& messages) { return steps::all_reduce(messages, in, out); },
      choose_algorithm(call, team_.size(), forced_, tuned_));
}

Status MessageFabric::reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                             const Wait& wait) {
  return run(call, wait,
             [&](Messages& messages) { return steps::reduce(messages, call.root, in, out); });
}

Status MessageFabric::broadcast(const CollectiveCall& call, std::byte* data, const Wait& wait) {
  return run(call, wait, [&](Messages& messages) {
    return steps::broadcast(messages, call.root, data, call.bytes());
  });
}

Status MessageFabric::all_gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                                 const Wait& wait) {
  const size_t bytes = call.bytes();
  const auto ranks = static_cast<size_t>(team_.size());
  copy_bytes(out + static_cast<size_t>(team_.rank()) * bytes, in, bytes);
  return run(call, wait, [&](Messages& messages) {
    const steps::Given gives(ranks, std::span(in, bytes));
    steps::Taken takes;
    for (size_t i = 0; i < ranks; ++i) takes.push_back(std::span(out + i * bytes, bytes));
    return steps::exchange(messages, gives, takes);
  });
}

Status MessageFabric::gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                             const Wait& wait) {
  const size_t bytes = call.bytes();
  const auto ranks = static_cast<size_t>(team_.size());
  const bool root = team_.rank() == call.root;
  if (root) copy_bytes(out + static_cast<size_t>(call.root) * bytes, in, bytes);
  return run(call, wait, [&](Messages& messages) {
    steps::Given gives(ranks);
    steps::Taken takes(ranks);
    gives[static_cast<size_t>(call.root)] = std::span(in, bytes);
    for (size_t i = 0; root && i < ranks; ++i) takes[i] = std::span(out + i * bytes, bytes);
    return steps::exchange(messages, gives, takes);
  });
}

Status MessageFabric::scatter(const CollectiveCall& call, const std::byte* in, std::byte* out,
                              const Wait& wait) {
  const size_t bytes = call.bytes();
  const auto ranks = static_cast<size_t>(team_.size());
  const bool root = team_.rank() == call.root;
  if (root) copy_bytes(out, in + static_cast<size_t>(call.root) * bytes, bytes);
  return run(call, wait, [&](Messages& messages) {
    steps::Given gives(ranks);
    steps::Taken takes(ranks);
    for (size_t i = 0; root && i < ranks; ++i) gives[i] = std::span(in + i * bytes, bytes);
    takes[static_cast<size_t>(call.root)] = std::span(out, bytes);
    return steps::exchange(messages, gives, takes);
  });
}

Status MessageFabric::reduce_scatter(const CollectiveCall& call, const std::byte* in,
                                     std::byte* out, const Wait& wait) {
  return run(call, wait,
             [&](Messages& messages) { return steps::reduce_scatter(messages, in, out); });
}

Status MessageFabric::all_to_all(const CollectiveCall& call, const std::byte* in,
                                 std::span<const Run> gives, std::byte* out,
                                 std::span<const Run> takes, const Wait& wait) {
  const auto self = static_cast<size_t>(team_.rank());
  if (gives[self].size == takes[self].size)
    copy_bytes(out + takes[self].offset, in + gives[self].offset, gives[self].size);
  return run(call, wait, [&](Messages& messages) -> Status {
    if (gives[self].size != takes[self].size)
      return {Code::kInvalidArgument, text({"this rank gives itself ", gives[self].size,
                                            " bytes, and takes ", takes[self].size})};
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
