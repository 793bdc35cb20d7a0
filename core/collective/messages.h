// SPDX-License-Identifier: Apache-2.0
// The messages that the ranks of a team send each other in one operation.
//
// Each begins with what its sender is at, and whoever receives it compares that with its own: ranks
// that call different operations find out as soon as they meet.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "collective/pending.h"
#include "collective/point_to_point.h"
#include "collective/team.h"
#include "collective/wire.h"

namespace tw::collective {

// A message's data, for as long as the object is there.
class Received {
 public:
  explicit Received(InMessage message) : message_(std::move(message)) {}
  const std::byte* data() const { return message_.segments.back().data; }
  size_t size() const { return message_.segments.back().size; }

 private:
  InMessage message_;
};

// Not thread-safe. Ranks are those of the team. Errors are those of Fabric.
class Messages {
 public:
  // Messages of one lane between two ranks come in their order; lanes have none.
  static constexpr int kLanes = 2;
  // What goes in one message, so that sending, reducing and receiving overlap.
  static constexpr size_t kChunk = 256 << 10;
  // Messages of a lane on their way to one rank, before the next one waits: behind send() there are
  // at most so many and the one that it has begun.
  static constexpr size_t kLeaving = 4;

  // The arguments outlive it. `algorithm`: what all ranks have chosen. `look`: whether ranks of
  // this host, which send no messages, are seen to be at another operation.
  Messages(const Team& team, uint64_t sequence, const Pending& now, Algorithm algorithm,
           Look look = {});
  // Nobody reads the caller's memory any more.
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  const Team& team() const { return team_; }
  // What of the operation moves.
  const CollectiveCall& part() const { return now_.part; }
  Algorithm algorithm() const { return algorithm_; }

  // A message is wanted, so that the sender need not wait for receive(). Whoever sends before it
  // receives, and its peer may do so as well, expects first.
  Status expect(int from, int lane = 0);
  // Begins to send; `data` stays as it is until finish(), or until the receiver is known to have
  // it. `total`: the bytes of the block that goes in this message and in those of this lane beside
  // it, as the receiver knows them.
  Status send(int to, std::span<const std::byte> data, uint64_t total, int lane = 0);
  Status send(int to, std::span<const std::byte> data) { return send(to, data, data.size()); }
  // The next message, which has this size.
  Result<Received> receive(int from, size_t size, uint64_t total, int lane = 0);
  Result<Received> receive(int from, size_t size) { return receive(from, size, size); }
  // All that was sent has left.
  Status finish();
  // Memory to send from that is there until nobody reads it any more, however the operation ends.
  std::byte* room(size_t size);

 private:
  struct Traffic {
    std::deque<TaggedSend> leaving;
    std::deque<Ref<TaggedReceive>> expected;
  };
  Traffic& traffic(int rank, int lane) {
    return traffic_[static_cast<size_t>(rank * kLanes + lane)];
  }
  // Of a rank with which there is something.
  TaggedPort& port(int rank) const { return *team_.members().tagged(team_.in_group(rank)); }
  Result<TaggedPort*> reach(int rank) const {
    return team_.members().reach(team_.in_group(rank), now_.wait);
  }
  // Until at most so many messages are on their way.
  Status depart(int to, Traffic& traffic, size_t most);
  Status check(int from, const InMessage& message, size_t size, uint64_t total) const;
  // ABORTED: that rank of the group is at another operation.
  Status compare(int in_group, const StepHeader& theirs) const;
  // Asked while a wait lasts. What compare() says of messages that have come, and that this
  // operation does not ask for: any rank of the group may send one, as one that calls something
  // else may speak to those that are not of this team. And what else is known of the others.
  Status disagreement() const;
  Look asked() const {
    return [this] { return disagreement(); };
  }

  const Team& team_;
  const uint64_t sequence_;
  const Pending now_;
  const Algorithm algorithm_;
  const Look look_;
  std::vector<Traffic> traffic_;  // by rank and lane
  std::vector<std::unique_ptr<std::byte[]>> rooms_;
};

// A block goes in so many messages; an empty one, too, so that ranks find out whether they agree.
constexpr size_t messages_of(size_t bytes) {
  return bytes == 0 ? 1 : (bytes + Messages::kChunk - 1) / Messages::kChunk;
}
constexpr size_t length_of(size_t bytes, size_t message) {
  return std::min(Messages::kChunk, bytes - message * Messages::kChunk);
}

}  // namespace tw::collective
