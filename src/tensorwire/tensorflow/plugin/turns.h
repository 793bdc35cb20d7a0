// SPDX-License-Identifier: Apache-2.0
// In which order a group runs its operations. TensorFlow starts collectives in no common order, so
// the first member gives them their turns: an operation has its turn when it waits for it at all
// members, and then no other one comes between. Needs no TensorFlow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace tensorwire {

class Turns {
 public:
  using Key = std::array<uint64_t, 2>;
  using Tickets = std::vector<uint64_t>;  // of the members, by rank

  explicit Turns(size_t members) : members_(members) {}

  // An operation waits at a member. The tickets of all members when it now waits at all of them;
  // where a member has several with the key, they go in the order in which they were told.
  std::optional<Tickets> ready(size_t rank, const Key& key, uint64_t ticket);
  // How many operations wait at some member.
  size_t waiting() const { return waiting_; }

 private:
  using Waiting = std::vector<std::deque<uint64_t>>;  // tickets, by rank

  const size_t members_;
  std::map<Key, Waiting> keys_;
  size_t waiting_ = 0;
};

}  // namespace tensorwire
