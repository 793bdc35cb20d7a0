// SPDX-License-Identifier: Apache-2.0
// The one-sided reads of a link: started in the order in which the peer offered them, as many as
// the transport takes at a time, ended in any. No locks: whoever holds the link's baton calls it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "message/receiver.h"
#include "transport/transport.h"

namespace tw {

class Fetches {
 public:
  explicit Fetches(Trace& trace) : trace_(trace) {}

  // Takes over what the peer has offered. Their ids at the transport stay below 2^63.
  void add(std::vector<Receiver::Read> reads);
  // Starts what waits. What is not to be read (its message is refused, or is now because this end
  // cannot take it) counts as read at once. kInternal, kUnavailable: as Transport::fetch().
  Status start(Transport& transport, Receiver& receiver);
  // Something waits for room at the transport.
  bool waiting() const { return !waiting_.empty(); }
  // What has ended since; kInternal: `id` is of none.
  Status ended(const Completion& completion);
  // Those that are through, each once.
  std::vector<Receiver::Read> take_done() { return std::exchange(done_, {}); }

  // Reads that are not through. Any thread.
  size_t pending() const { return pending_.load(std::memory_order_relaxed); }
  // Whether the transport may be writing to this process's memory.
  bool under_way() const { return !under_way_.empty(); }
  // Lets go of all memory, which nobody may be writing to any more.
  void drop();

 private:
  void note(bool sent, TraceStep step, const Receiver::Read& read) {
    trace_.note(sent, step, read.stream, read.message, read.segment, read.from.length,
                read.rendezvous);
  }
  void count() { pending_.store(waiting_.size() + under_way_.size(), std::memory_order_relaxed); }

  Trace& trace_;
  uint64_t next_ = 1;
  std::deque<Receiver::Read> waiting_;
  std::unordered_map<uint64_t, Receiver::Read> under_way_;
  std::vector<Receiver::Read> done_;
  std::atomic<size_t> pending_{0};
};

}  // namespace tw
