// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/algorithms.h"

namespace tw::collective::steps {
namespace {

// Data goes one way, and results the other.
constexpr int kData = 0, kResults = 1;

}  // namespace

Status pairwise(Messages& messages, int root, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type), each = Messages::kChunk / width;
  const int size = team.size();
  const bool gets = root == kAllRanks || root == team.rank();
  const auto part = [&](int rank) { return part_of(call.count, width, rank, size); };
  const auto bytes = [&](int rank) { return part(rank).size() * width; };
  // What of a rank's part is in chunk c; one that has nothing sends nothing.
  const auto piece = [&](int rank, size_t c) -> Part {
    const Part whole = part(rank);
    const size_t begin = std::min(whole.begin + c * each, whole.end);
    return {begin, std::min(begin + each, whole.end)};
  };
  size_t chunks = 0;
  for (int rank = 0; rank < size; ++rank)
    chunks = std::max(chunks, (part(rank).size() + each - 1) / each);
  const Part own = part(team.rank());
  std::byte* const results = gets ? out + own.begin * width
                                  : messages.room(own.size() * width);  // that only the root keeps

  const auto give = [&](size_t c) -> Status {
    const bool mine = piece(team.rank(), c).size() != 0;
    for (int k = 1; k < size; ++k) {
      const int from = team.before(k);
      if (mine)
        if (Status status = messages.expect(from, kData); !status.ok()) return status;
      if (gets && piece(from, c).size() != 0)
        if (Status status = messages.expect(from, kResults); !status.ok()) return status;
    }
    for (int k = 1; k < size; ++k) {
      const int to = team.after(k);
      const Part theirs = piece(to, c);
      if (theirs.size() == 0) continue;
      if (Status status = messages.send(to, {in + theirs.begin * width, theirs.size() * width},
                                        bytes(to), kData);
          !status.ok())
        return status;
    }
    return {};
  };
  std::vector<const std::byte*> all(static_cast<size_t>(size));
  const auto mix = [&](size_t c) -> Status {
    const Part mine = piece(team.rank(), c);
    if (mine.size() == 0) return {};
    const size_t length = mine.size() * width;
    std::vector<Received> received;
    all[static_cast<size_t>(team.rank())] = in + mine.begin * width;
    for (int k = 1; k < size; ++k) {
      auto theirs = messages.receive(team.before(k), length, own.size() * width, kData);
      if (!theirs) return theirs.status();
      received.push_back(std::move(*theirs));
      all[static_cast<size_t>(team.before(k))] = received.back().data();
    }
    std::byte* const result = results + (mine.begin - own.begin) * width;
    tw::reduce(call.type, call.op, all, result, mine.size(), static_cast<unsigned>(size));
    for (int k = 1; k < size; ++k) {
      const int to = team.after(k);
      if (root != kAllRanks && to != root) continue;
      if (Status status = messages.send(to, {result, length}, own.size() * width, kResults);
          !status.ok())
        return status;
    }
    return {};
  };
  const auto take = [&](size_t c) -> Status {
    for (int k = 1; gets && k < size; ++k) {
      const int from = team.before(k);
      const Part theirs = piece(from, c);
      if (theirs.size() == 0) continue;
      const auto result = messages.receive(from, theirs.size() * width, bytes(from), kResults);
      if (!result) return result.status();
      std::memcpy(out + theirs.begin * width, result->data(), theirs.size() * width);
    }
    return {};
  };
  if (chunks == 0) return direct(messages, root, in, out);  // no elements: all still have to agree
  for (size_t c = 0; c < chunks + 2; ++c) {
    if (c < chunks)
      if (Status status = give(c); !status.ok()) return status;
    if (c >= 1 && c - 1 < chunks)
      if (Status status = mix(c - 1); !status.ok()) return status;
    if (c >= 2)
      if (Status status = take(c - 2); !status.ok()) return status;
  }
  return messages.finish();
}

}  // namespace tw::collective::steps
