// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/steps.h"

namespace tw::collective::steps {

Status exchange(Messages& messages, const Given& gives, const Taken& takes) {
  const Team& team = messages.team();
  size_t chunks = 0;
  for (int k = 1; k < team.size(); ++k) {
    const auto other = static_cast<size_t>(team.after(k));
    if (gives[other]) chunks = std::max(chunks, messages_of(gives[other]->size()));
    if (takes[other]) chunks = std::max(chunks, messages_of(takes[other]->size()));
  }
  const auto give = [&](size_t c) -> Status {
    for (int k = 1; k < team.size(); ++k) {
      const auto& run = takes[static_cast<size_t>(team.before(k))];
      if (!run || c >= messages_of(run->size())) continue;
      if (Status status = messages.expect(team.before(k)); !status.ok()) return status;
    }
    for (int k = 1; k < team.size(); ++k) {
      const auto& run = gives[static_cast<size_t>(team.after(k))];
      if (!run || c >= messages_of(run->size())) continue;
      const auto chunk = run->subspan(c * Messages::kChunk, length_of(run->size(), c));
      if (Status status = messages.send(team.after(k), chunk, run->size()); !status.ok())
        return status;
    }
    return {};
  };
  const auto take = [&](size_t c) -> Status {
    for (int k = 1; k < team.size(); ++k) {
      const auto& run = takes[static_cast<size_t>(team.before(k))];
      if (!run || c >= messages_of(run->size())) continue;
      const auto place = run->subspan(c * Messages::kChunk, length_of(run->size(), c));
      const auto chunk = messages.receive(team.before(k), place.size(), run->size());
      if (!chunk) return chunk.status();
      if (!place.empty()) std::memcpy(place.data(), chunk->data(), place.size());
    }
    return {};
  };
  for (size_t c = 0; c < chunks + 1; ++c) {
    if (c < chunks)
      if (Status status = give(c); !status.ok()) return status;
    if (c > 0)
      if (Status status = take(c - 1); !status.ok()) return status;
  }
  return messages.finish();
}

}  // namespace tw::collective::steps
