// SPDX-License-Identifier: Apache-2.0
// A group of workers whose collectives go by a group of ranks, where all of them can do that.
//
// TensorFlow starts collectives in no common order, so that an operation begins when it waits at
// all members. Each tells the first one of what waits; that one gives operations their turns
// (turns.h), and each member has a thread that runs them. A collective that fails or is cancelled
// ends the group for all members, as it ends the collectives of TensorFlow's own until the program
// is restarted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core.h"
#include "group_operation.h"
#include "meeting.h"
#include "peers.h"
#include "turns.h"

namespace tensorwire {

class Group final : public std::enable_shared_from_this<Group> {
 public:
  struct Seat {
    SharedWorkerCache workers;
    std::string host;                // at which other hosts reach this worker
    std::string identity;            // the same for all members, and no other group's
    std::vector<std::string> tasks;  // by rank
    uint32_t rank = 0;
  };
  // One collective. Either `done` or `leave` is called, once, on any thread: `leave` when the
  // members leave their collectives to TensorFlow's own algorithms.
  struct Work {
    Turns::Key key{};  // the same for all members
    GroupOperation operation;
    std::function<void(const absl::Status&)> done;
    std::function<void()> leave;
  };

  explicit Group(Seat seat) : seat_(std::move(seat)), attendance_(seat_.workers, seat_.tasks[0]) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();

  // May block for as long as the first member takes no messages.
  void begin(Work work);
  // Ends all work, and the group for all members.
  void abort(const absl::Status& why);
  // The members will begin no more here.
  void close();

 private:
  enum class Phase { kNew, kMeeting, kApart, kTogether, kOver };
  bool first() const { return seat_.rank == 0; }
  void meet();
  absl::Status join(uint64_t session, bool* together);
  int set(const char* key, const void* value, size_t size, tw_status* status);
  int get(const char* key, int64_t timeout_ns, tw_give give, void* sink, tw_status* status);
  wire::MeetingRequest request(wire::Meeting kind) const;

  void announce(uint64_t ticket);
  void give_turns(const Turns::Tickets& tickets);
  bool tell(int rank, uint64_t tag, const wire::Turn& turn);
  void take_messages();
  bool take_message(int rank, const wire::Turn& turn);
  void run_turns();
  void run(uint64_t ticket);

  void fail(const absl::Status& why);
  absl::Status error_of(const tw_status& status) const;
  static int closing(void* group);

  const Seat seat_;
  Attendance attendance_;
  std::unique_ptr<tw_group, void (*)(tw_group*)> group_{nullptr, nullptr};  // from kTogether on

  std::mutex telling_;          // one message at a time, in the order of turns; taken before mutex_
  std::optional<Turns> turns_;  // the first member's; guarded by telling_

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Phase phase_ = Phase::kNew;
  bool closing_ = false;
  absl::Status failure_;  // kOver
  uint64_t session_ = 0;
  uint64_t last_ticket_ = 0;
  std::map<uint64_t, Work> waiting_;  // by ticket
  std::deque<uint64_t> turn_;         // the first member's own
  bool running_ = false;
};

}  // namespace tensorwire
