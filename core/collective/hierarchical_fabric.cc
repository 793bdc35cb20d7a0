// SPDX-License-Identifier: Apache-2.0
#include "collective/hierarchical_fabric.h"

#include <algorithm>
#include <utility>

#include "collective/reduction.h"
#include "collective/steps/steps.h"

namespace tw::collective {
namespace {

CollectiveCall sum_of(CollectiveCall call) {
  if (call.op == ReduceOp::kAverage) call.op = ReduceOp::kSum;
  return call;
}

}  // namespace

HierarchicalFabric::HierarchicalFabric(Members& members, std::vector<std::vector<int>> hosts,
                                       std::unique_ptr<SharedFabric> local, Algorithm forced,
                                       const Tuning& tuning, std::string_view between)
    : members_(members),
      hosts_(std::move(hosts)),
      host_(0),
      local_(std::move(local)),
      forced_(forced),
      tuned_(tuning.of(between, static_cast<int>(hosts_.size()))),
      flat_(Team(members), forced, tuning.of(between, members.size()), local_.get()) {
  while (std::ranges::find(hosts_[host_], members.rank()) == hosts_[host_].end()) ++host_;
}

HierarchicalFabric::Speakers HierarchicalFabric::speakers(int root) const {
  Speakers who{{}, 0, 0, false};
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const auto place = std::ranges::find(hosts_[i], root);
    const bool roots = place != hosts_[i].end();
    who.ranks.push_back(roots ? root : hosts_[i].front());
    if (roots) who.root = static_cast<int>(i);
    if (roots && i == host_) who.mine = static_cast<int>(place - hosts_[i].begin());
  }
  who.here = who.ranks[host_] == members_.rank();
  return who;
}

// Messages of the speakers share their tags with those of all ranks, which are never under way at
// the same time: each operation receives all that is sent in it.
template <class Steps>
Status HierarchicalFabric::between(const Pending& now, const Speakers& who, bool begun,
                                   Steps&& steps) {
  const Team team(members_, who.ranks);
  Messages messages(team, sequence_, now, algorithm(now.part), look(now.call, begun));
  Status status = steps(messages);
  if (!status.ok()) members_.fail(status);
  return status;
}

// The average of all ranks, of their sum.
void HierarchicalFabric::average(const CollectiveCall& call, std::byte* data) const {
  if (call.op != ReduceOp::kAverage) return;
  const std::byte* const in = data;
  tw::reduce(call.type, call.op, {&in, 1}, data, call.count,
             static_cast<unsigned>(members_.size()));
}

bool HierarchicalFabric::has_levels(const CollectiveCall& call) const {
  const size_t ranks = static_cast<size_t>(members_.size()), width = size_of(call.type);
  switch (call.kind) {
    case CollectiveKind::kBarrier:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllGather:
      return true;
    case CollectiveKind::kReduceScatter:
      return !rounds(call.type) || (width == 2 && ranks * width > hosts_.size() * sizeof(float));
    case CollectiveKind::kAllReduce:
      return forced_ == Algorithm::kNone && !rounds(call.type);
    case CollectiveKind::kReduce:
      return !rounds(call.type);
    default:
      return false;
  }
}

Status HierarchicalFabric::run(const CollectiveCall& call, const std::byte* in, std::byte* out,
                               const Wait& wait) {
  if (!has_levels(call)) return flat().run(call, in, out, wait);
  const Members::UnderWay operation(members_, {++sequence_, call});
  flat_now_ = false;
  switch (call.kind) {
    case CollectiveKind::kBarrier:
      return barrier(call, wait);
    case CollectiveKind::kBroadcast:
      return broadcast(call, out, wait);
    case CollectiveKind::kAllGather:
      return all_gather(call, in, out, wait);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(call, in, out, wait);
    case CollectiveKind::kReduce:
      return reduce(call, in, out, wait);
    default:
      return all_reduce(call, in, out, wait);
  }
}

Status HierarchicalFabric::barrier(const CollectiveCall& call, const Wait& wait) {
  const Speakers who = speakers(hosts_[0][0]);
  if (local_)
    if (Status status = local_->run(call, nullptr, nullptr, wait); !status.ok()) return status;
  if (who.here)
    if (Status status = between({call, wait}, who, true, steps::barrier); !status.ok())
      return status;
  return local_ ? local_->run(call, nullptr, nullptr, wait) : Status();
}

Status HierarchicalFabric::all_reduce(const CollectiveCall& call, const std::byte* in,
                                      std::byte* out, const Wait& wait) {
  const Speakers who = speakers(hosts_[0][0]);
  const CollectiveCall sum = sum_of(call);
  const std::byte* mine = in;
  if (local_) {
    if (Status status = local_->reduce_to(0, call, sum, in, out, wait); !status.ok()) return status;
    mine = out;
  }
  if (who.here) {
    Status status = between({call, wait, sum}, who, true, [&](Messages& messages) {
      return steps::all_reduce(messages, mine, out);
    });
    if (!status.ok()) return status;
    average(call, out);
  }
  return local_ ? local_->broadcast_from(0, call, {out, call.bytes()}, wait) : Status();
}

Status HierarchicalFabric::reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                                  const Wait& wait) {
  const Speakers who = speakers(call.root);
  const CollectiveCall sum = sum_of(call);
  std::vector<std::byte> scratch;  // what this host comes to, and another one's rank keeps
  const std::byte* mine = in;
  if (local_) {
    std::byte* to = who.here ? out : nullptr;
    if (who.here && members_.rank() != call.root) {
      scratch.resize(call.bytes());
      to = scratch.data();
    }
    if (Status status = local_->reduce_to(who.mine, call, sum, in, to, wait); !status.ok())
      return status;
    if (who.here) mine = to;
  }
  if (who.here)
    if (Status status = between(
            {call, wait, sum}, who, true,
            [&](Messages& messages) { return steps::reduce(messages, who.root, mine, out); });
        !status.ok())
      return status;
  if (members_.rank() == call.root) average(call, out);
  return {};
}

Status HierarchicalFabric::broadcast(const CollectiveCall& call, std::byte* data,
                                     const Wait& wait) {
  const Speakers who = speakers(call.root);
  if (who.here)
    if (Status status =
            between({call, wait}, who, false,
                    [&](Messages& messages) { return steps::broadcast(messages, who.root, data); });
        !status.ok())
      return status;
  return local_ ? local_->broadcast_from(who.mine, call, {data, call.bytes()}, wait) : Status();
}

}  // namespace tw::collective
