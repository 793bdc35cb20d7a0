// SPDX-License-Identifier: Apache-2.0
#include "turns.h"

#include <algorithm>

namespace tensorwire {

std::optional<Turns::Tickets> Turns::ready(size_t rank, const Key& key, uint64_t ticket) {
  Waiting& waiting = keys_.try_emplace(key, members_).first->second;
  waiting[rank].push_back(ticket);
  ++waiting_;
  const auto none = [](const std::deque<uint64_t>& tickets) { return tickets.empty(); };
  if (std::any_of(waiting.begin(), waiting.end(), none)) return std::nullopt;
  Tickets tickets;
  for (std::deque<uint64_t>& each : waiting) {
    tickets.push_back(each.front());
    each.pop_front();
  }
  waiting_ -= members_;
  if (std::all_of(waiting.begin(), waiting.end(), none)) keys_.erase(key);
  return tickets;
}

}  // namespace tensorwire
