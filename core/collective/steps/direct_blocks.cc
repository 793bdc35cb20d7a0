// SPDX-License-Identifier: Apache-2.0
#include "collective/reduction.h"
#include "collective/steps/blocks.h"

namespace tw::collective::steps {
namespace {

const Scattered& at(Blocks blocks, int rank) { return blocks[static_cast<size_t>(rank)]; }

// All that comes is expected before anything is sent, so that no rank waits for one that waits for
// it.
Status expect(Messages& messages, int from, size_t bytes) {
  for (size_t m = 0; m < messages_of(bytes); ++m)
    if (Status status = messages.expect(from); !status.ok()) return status;
  return {};
}

}  // namespace

Status give_block(Messages& messages, Blocks blocks, Packed& packed) {
  const Team& team = messages.team();
  const Scattered& own = at(blocks, team.rank());
  for (int k = 1; k < team.size(); ++k)
    if (Status status = expect(messages, team.before(k), at(blocks, team.before(k)).size());
        !status.ok())
      return status;
  for (size_t m = 0; m < messages_of(own.size()); ++m) {
    const size_t length = length_of(own.size(), m);
    const std::byte* const data = packed.of(own, m * Messages::kChunk, length);
    for (int k = 1; k < team.size(); ++k)
      if (Status status = messages.send(team.after(k), {data, length}, own.size()); !status.ok())
        return status;
  }
  return {};
}

Status take_blocks(Messages& messages, Blocks blocks) {
  const Team& team = messages.team();
  for (int k = 1; k < team.size(); ++k) {
    const Scattered& theirs = at(blocks, team.before(k));
    for (size_t m = 0; m < messages_of(theirs.size()); ++m) {
      const size_t length = length_of(theirs.size(), m);
      const auto data = messages.receive(team.before(k), length, theirs.size());
      if (!data) return data.status();
      theirs.put(m * Messages::kChunk, {data->data(), length});
    }
  }
  return {};
}

Status give_blocks(Messages& messages, Blocks blocks, Packed& packed) {
  const Team& team = messages.team();
  for (int k = 1; k < team.size(); ++k)
    if (Status status = expect(messages, team.before(k), at(blocks, team.rank()).size());
        !status.ok())
      return status;
  for (int k = 1; k < team.size(); ++k) {
    const Scattered& theirs = at(blocks, team.after(k));
    for (size_t m = 0; m < messages_of(theirs.size()); ++m) {
      const size_t length = length_of(theirs.size(), m);
      const std::byte* const data = packed.of(theirs, m * Messages::kChunk, length);
      if (Status status = messages.send(team.after(k), {data, length}, theirs.size()); !status.ok())
        return status;
    }
  }
  return {};
}

Status reduce_block(Messages& messages, Blocks blocks, const BlockReduction& how,
                    std::byte* result) {
  const Team& team = messages.team();
  const Scattered& own = at(blocks, team.rank());
  const size_t width = size_of(how.type), self = static_cast<size_t>(team.rank());
  std::vector<const std::byte*> all(static_cast<size_t>(team.size())), these(all.size());
  for (size_t m = 0; m < messages_of(own.size()); ++m) {
    const size_t from = m * Messages::kChunk, length = length_of(own.size(), m);
    std::vector<Received> received;
    for (int k = 1; k < team.size(); ++k) {
      auto theirs = messages.receive(team.before(k), length, own.size());
      if (!theirs) return theirs.status();
      received.push_back(std::move(*theirs));
      all[static_cast<size_t>(team.before(k))] = received.back().data();
    }
    size_t through = 0;
    own.each(from, length, [&](std::byte* place, size_t size) {
      for (size_t i = 0; i < all.size(); ++i) these[i] = i == self ? place : all[i] + through;
      tw::reduce(how.type, how.op, these, result + from + through, size / width, how.ranks);
      through += size;
    });
  }
  return {};
}

}  // namespace tw::collective::steps
