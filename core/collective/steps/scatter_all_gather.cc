// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/part.h"
#include "collective/steps/algorithms.h"

namespace tw::collective::steps {
namespace {

// Parts come from the root, and go on to the others.
constexpr int kScatter = 0, kGather = 1;

}  // namespace

Status scatter_all_gather(Messages& messages, int root, std::byte* data) {
  const Team& team = messages.team();
  const int size = team.size();
  const size_t bytes = messages.part().bytes();
  // Places counted from the root, which is 0. The others have a part each.
  const int place = (team.rank() + size - root) % size;
  const auto rank_at = [&](int at) { return (at + root) % size; };
  const auto part = [&](int at) { return part_of(bytes, 1, at - 1, size - 1); };
  const auto chunks_of = [&](int at) { return messages_of(part(at).size()); };
  const auto piece = [&](int at, size_t c) -> std::span<std::byte> {
    const Part whole = part(at);
    return {data + whole.begin + c * Messages::kChunk, length_of(whole.size(), c)};
  };
  const auto send = [&](int to, int at, size_t c, int lane) {
    return messages.send(rank_at(to), piece(at, c), part(at).size(), lane);
  };
  const auto receive = [&](int from, int at, size_t c, int lane) -> Status {
    const auto to = piece(at, c);
    const auto chunk = messages.receive(rank_at(from), to.size(), part(at).size(), lane);
    if (!chunk) return chunk.status();
    if (!to.empty()) std::memcpy(to.data(), chunk->data(), to.size());
    return {};
  };
  size_t chunks = 0;
  for (int at = 1; at < size; ++at) chunks = std::max(chunks, chunks_of(at));
  if (place == 0) {
    for (size_t c = 0; c < chunks; ++c)
      for (int at = 1; at < size; ++at) {
        if (c >= chunks_of(at)) continue;
        if (Status status = send(at, at, c, kScatter); !status.ok()) return status;
      }
    return messages.finish();
  }
  // each(other) for those that are neither this rank nor the root, the next one first.
  const auto others = [&](auto&& each) -> Status {
    for (int k = 1; k < size - 1; ++k)
      if (Status status = each((place - 1 + k) % (size - 1) + 1); !status.ok()) return status;
    return {};
  };
  const auto pass = [&](size_t c) -> Status {
    Status status = others([&](int other) {
      return c < chunks_of(other) ? messages.expect(rank_at(other), kGather) : Status();
    });
    if (!status.ok() || c >= chunks_of(place)) return status;
    if (c + 1 < chunks_of(place))
      if (status = messages.expect(root, kScatter); !status.ok()) return status;
    if (status = receive(0, place, c, kScatter); !status.ok()) return status;
    return others([&](int other) { return send(other, place, c, kGather); });
  };
  const auto take = [&](size_t c) -> Status {
    return others([&](int other) {
      return c < chunks_of(other) ? receive(other, other, c, kGather) : Status();
    });
  };
  if (Status status = messages.expect(root, kScatter); !status.ok()) return status;
  for (size_t c = 0; c < chunks + 1; ++c) {
    if (c < chunks)
      if (Status status = pass(c); !status.ok()) return status;
    if (c > 0)
      if (Status status = take(c - 1); !status.ok()) return status;
  }
  return messages.finish();
}

}  // namespace tw::collective::steps
