// SPDX-License-Identifier: Apache-2.0
#include "link/fetches.h"

#include <iterator>
#include <utility>

namespace tw {
namespace {

// This end cannot give the device memory for it; everything else is well.
bool ends_a_message(const Status& status) {
  return status.code() == Code::kResourceExhausted || status.code() == Code::kInvalidArgument;
}

}  // namespace

void Fetches::add(std::vector<Receiver::Read> reads) {
  std::move(reads.begin(), reads.end(), std::back_inserter(waiting_));
  count();
}

Status Fetches::start(Transport& transport, Receiver& receiver) {
  Status status;
  while (!waiting_.empty()) {
    Receiver::Read& read = waiting_.front();
    // The reads of a message that was refused since it was offered.
    if (!receiver.wants(read)) read.destination = nullptr;
    if (read.destination) {
      auto started = transport.fetch(next_, read.from, read.destination);
      if (!started && ends_a_message(started.status())) {
        receiver.refuse(read.message, started.status());
        continue;
      }
      if (!started) status = started.status();
      if (!started || !*started) break;
      note(true, TraceStep::kRead, read);
      under_way_.emplace(next_++, std::move(read));
    } else {
      done_.push_back(std::move(read));
    }
    waiting_.pop_front();
  }
  count();
  return status;
}

Status Fetches::ended(const Completion& completion) {
  auto it = under_way_.find(completion.id);
  if (it == under_way_.end())
    return {Code::kInternal, "local error: a fetch has ended that was not under way"};
  // A failed one stays: its memory is let go of once the transport has surely stopped.
  if (!completion.status.ok()) return completion.status;
  note(false, TraceStep::kReadDone, it->second);
  done_.push_back(std::move(it->second));
  under_way_.erase(it);
  count();
  return {};
}

void Fetches::drop() {
  waiting_.clear();
  under_way_.clear();
  done_.clear();
  count();
}

}  // namespace tw
