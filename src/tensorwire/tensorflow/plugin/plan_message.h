// SPDX-License-Identifier: Apache-2.0
// Messages of a plan's stream on their way: records are gathered, so that many small tensors travel
// in one. Where the link lends, a message is written to the arena and read there.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "core.h"
#include "sent_tensor.h"
#include "wire.h"

namespace tensorwire {

class PlanMessage {
 public:
  explicit PlanMessage(bool in_arena) : bytes_(allocate(in_arena)) {}
  PlanMessage(const PlanMessage&) = delete;
  PlanMessage& operator=(const PlanMessage&) = delete;

  bool has_room(size_t payload) const;
  void add(const wire::PlanRecord& record);
  void add(const wire::PlanRecord& record, std::unique_ptr<SentTensor> segment);

  // The peer has credit for it; does not wait. What is lent lives until it has been read. Not OK:
  // the peer will not see it.
  static int send(std::unique_ptr<PlanMessage> message, tw_server_call* call, tw_status* status);

 private:
  static void release(void* message);

  struct Free {
    bool in_arena;
    void operator()(char* bytes) const;
  };
  using Bytes = std::unique_ptr<char[], Free>;
  static Bytes allocate(bool in_arena);

  const Bytes bytes_;
  size_t size_ = 0;
  std::vector<std::unique_ptr<SentTensor>> segments_;
  std::atomic<size_t> lent_{0};  // segments that the link still has
};

class PlanMessages {
 public:
  explicit PlanMessages(bool in_arena) : in_arena_(in_arena) {}

  void add(const wire::PlanRecord& record) { with_room(record.payload.size()).add(record); }
  void add(const wire::PlanRecord& record, std::unique_ptr<SentTensor> segment) {
    with_room(0).add(record, std::move(segment));
  }
  bool empty() const { return messages_.empty(); }
  // Whether there is one to which nothing can be added.
  bool full() const { return messages_.size() > 1; }
  std::unique_ptr<PlanMessage> take();
  void clear() { messages_.clear(); }

 private:
  PlanMessage& with_room(size_t payload);

  const bool in_arena_;
  std::deque<std::unique_ptr<PlanMessage>> messages_;
};

}  // namespace tensorwire
