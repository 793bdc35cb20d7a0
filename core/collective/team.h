// SPDX-License-Identifier: Apache-2.0
// The ranks of a group that do something together: all, or some of them, counted anew from 0.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "collective/members.h"

namespace tw::collective {

class Team {
 public:
  // All ranks of the group.
  explicit Team(Members& members) : Team(members, all_of(members.size())) {}
  // These; this process's rank is one of them.
  Team(Members& members, std::vector<int> ranks)
      : members_(members), ranks_(std::move(ranks)), rank_(index_of(members.rank())) {}

  // This process's place.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  Members& members() const { return members_; }
  // A place's rank in the group.
  int in_group(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  // The place of a rank of the group; it has one.
  int index_of(int in_group) const {
    return static_cast<int>(std::ranges::find(ranks_, in_group) - ranks_.begin());
  }
  // The k-th one behind this process, in a circle.
  int after(int k) const { return (rank_ + k) % size(); }
  int before(int k) const { return (rank_ + size() - k) % size(); }
  // Errors name ranks of the group.
  std::string name(int rank) const { return members_.name(in_group(rank)); }
  // DEADLINE_EXCEEDED: what all do waits for that one.
  Status late(int rank, const std::string& what) const {
    return {Code::kDeadlineExceeded,
            text({name(rank), " has not come to its part of ", what,
                  " in time; a longer timeout waits for a rank that is only slow"})};
  }

 private:
  static std::vector<int> all_of(int size) {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  Members& members_;
  std::vector<int> ranks_;
  int rank_;
};

}  // namespace tw::collective
