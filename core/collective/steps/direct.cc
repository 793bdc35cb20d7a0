// SPDX-License-Identifier: Apache-2.0
#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

Status direct(Messages& messages, int root, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type), each = Messages::kChunk / width, bytes = call.bytes();
  const bool reduces = root == kAllRanks || root == team.rank();
  std::vector<const std::byte*> all(static_cast<size_t>(team.size()));
  uint64_t at = 0;
  do {
    const size_t count = std::min<uint64_t>(each, call.count - at), size = count * width;
    const std::byte* const mine = in + at * width;
    for (int k = 1; reduces && k < team.size(); ++k)
      if (Status status = messages.expect(team.before(k)); !status.ok()) return status;
    for (int k = 1; k < team.size(); ++k) {
      if (root != kAllRanks && team.after(k) != root) continue;
      if (Status status = messages.send(team.after(k), {mine, size}, bytes); !status.ok())
        return status;
    }
    std::vector<Received> received;
    all[static_cast<size_t>(team.rank())] = mine;
    for (int k = 1; reduces && k < team.size(); ++k) {
      auto theirs = messages.receive(team.before(k), size, bytes);
      if (!theirs) return theirs.status();
      received.push_back(std::move(*theirs));
      all[static_cast<size_t>(team.before(k))] = received.back().data();
    }
    // The result may lie where the others still have to be sent from.
    if (Status status = messages.finish(); !status.ok()) return status;
    if (reduces)
      tw::reduce(call.type, call.op, all, out + at * width, count,
                 static_cast<unsigned>(team.size()));
    at += count;
  } while (at < call.count);
  return {};
}

}  // namespace tw::collective::steps
