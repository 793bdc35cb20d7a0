// SPDX-License-Identifier: Apache-2.0
// The strangers at a listening socket, and who has to go when they are too many.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>

namespace tw::meet {

// Newcomers are never turned away: else whoever is there first could keep all others out. Not
// thread-safe.
template <class Key>
class Crowd {
 public:
  enum class Standing : uint8_t { kSilent, kSpoke, kProved };

  explicit Crowd(size_t room) : room_(room) {}

  bool full() const { return members_.size() >= room_; }
  size_t size() const { return members_.size(); }

  // source: what may be one greedy program, as far as can be told.
  void enter(Key key, const std::string& source) {
    const auto known = sources_.find(source);
    const auto count = known == sources_.end() ? std::make_shared<size_t>(0) : known->second;
    const auto [member, fresh] =
        members_.emplace(key, Member{source, count, next_++, Standing::kSilent});
    if (known == sources_.end()) {
      try {
        sources_.emplace(source, count);
      } catch (...) {  // without memory nobody has come
        members_.erase(member);
        throw;
      }
    }
    ++*count;
  }
  void advance(Key key, Standing standing) {
    if (auto it = members_.find(key); it != members_.end()) it->second.standing = standing;
  }
  void leave(Key key) {
    auto it = members_.find(key);
    if (it == members_.end()) return;
    if (--*it->second.count == 0) sources_.erase(it->second.source);
    members_.erase(it);
  }

  // Of the source that has the most here: who has come the least far, and of these who came first.
  // Null: nobody of `highest` or lower is here.
  Key victim(Standing highest = Standing::kProved) const {
    Key found{};
    std::tuple<size_t, Standing, uint64_t> rank{};
    for (const auto& [key, member] : members_) {
      if (member.standing > highest) continue;
      const std::tuple<size_t, Standing, uint64_t> its{room_ - std::min(room_, *member.count),
                                                       member.standing, member.number};
      if (found != Key{} && rank <= its) continue;
      found = key;
      rank = its;
    }
    return found;
  }

 private:
  struct Member {
    std::string source;
    std::shared_ptr<size_t> count;  // of the source
    uint64_t number;                // in the order of coming
    Standing standing;
  };

  const size_t room_;
  uint64_t next_ = 0;
  std::unordered_map<Key, Member> members_;
  std::unordered_map<std::string, std::shared_ptr<size_t>> sources_;
};

}  // namespace tw::meet
