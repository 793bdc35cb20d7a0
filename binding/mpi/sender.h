// SPDX-License-Identifier: Apache-2.0
// Messages to other ranks in the order in which they were begun, by a thread that starts with the
// first: a rank can receive meanwhile.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "tensorwire.h"

namespace tensorwire::mpi {

struct Message {
  const void* data;
  size_t size;
  int to;
  uint64_t tag;
  // Of the sender, guarded by its lock.
  bool sent = false;
  int code = TW_OK;
  tw_status status{};
};

class Sender {
 public:
  // The group outlives it.
  Sender(const tw_table& core, tw_group* group, int64_t timeout_ns);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  // What has been begun ends first; abort the group for that to be soon.
  ~Sender();

  // The memory is the sender's until wait() has returned.
  void push(std::shared_ptr<Message> message);
  // Until it has been sent, or has failed.
  void wait(const Message& message);
  // Until all have.
  void drain();
  bool busy();

 private:
  void run();

  const tw_table& core_;
  tw_group* const group_;
  const int64_t timeout_ns_;
  std::mutex mutex_;  // guards messages_ and closed_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Message>> messages_;  // the first of them is under way
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace tensorwire::mpi
