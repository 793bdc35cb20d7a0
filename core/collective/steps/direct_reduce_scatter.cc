// SPDX-License-Identifier: Apache-2.0
#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

Status direct_reduce_scatter(Messages& messages, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type), each = Messages::kChunk / width, bytes = call.bytes();
  const auto row = [&](int rank, uint64_t at) {
    return in + (static_cast<uint64_t>(rank) * call.count + at) * width;
  };
  const auto count_at = [&](uint64_t at) { return std::min<uint64_t>(each, call.count - at); };
  const auto give = [&](uint64_t at) -> Status {
    for (int k = 1; k < team.size(); ++k)
      if (Status status = messages.expect(team.before(k)); !status.ok()) return status;
    for (int k = 1; k < team.size(); ++k)
      if (Status status =
              messages.send(team.after(k), {row(team.after(k), at), count_at(at) * width}, bytes);
          !status.ok())
        return status;
    return {};
  };
  std::vector<const std::byte*> all(static_cast<size_t>(team.size()));
  if (Status status = give(0); !status.ok()) return status;
  uint64_t at = 0;
  do {
    const uint64_t count = count_at(at);
    if (at + count < call.count)
      if (Status status = give(at + count); !status.ok()) return status;
    std::vector<Received> received;
    all[static_cast<size_t>(team.rank())] = row(team.rank(), at);
    for (int k = 1; k < team.size(); ++k) {
      auto theirs = messages.receive(team.before(k), count * width, bytes);
      if (!theirs) return theirs.status();
      received.push_back(std::move(*theirs));
      all[static_cast<size_t>(team.before(k))] = received.back().data();
    }
    tw::reduce(call.type, call.op, all, out + at * width, count,
               static_cast<unsigned>(team.size()));
    at += count;
  } while (at < call.count);
  return messages.finish();
}

}  // namespace tw::collective::steps
