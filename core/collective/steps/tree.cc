// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

Status tree(Messages& messages, int root, std::byte* data) {
  const Team& team = messages.team();
  const int size = team.size();
  const size_t bytes = messages.part().bytes();
  // Places counted from the root: one takes from that without its lowest bit, and gives to those
  // with one bit below it.
  const int place = (team.rank() + size - root) % size;
  int lowest = 1;
  while (lowest < size && (place & lowest) == 0) lowest *= 2;
  const auto rank_at = [&](int at) { return (at + root) % size; };
  size_t at = 0;
  do {
    const size_t length = std::min(Messages::kChunk, bytes - at);
    if (place != 0) {
      auto chunk = messages.receive(rank_at(place - lowest), length, bytes);
      if (!chunk) return chunk.status();
      if (length != 0) std::memcpy(data + at, chunk->data(), length);
    }
    for (int bit = lowest / 2; bit != 0; bit /= 2) {
      if (place + bit >= size) continue;
      if (Status status = messages.send(rank_at(place + bit), {data + at, length}, bytes);
          !status.ok())
        return status;
    }
    at += length;
  } while (at < bytes);
  return messages.finish();
}

}  // namespace tw::collective::steps
