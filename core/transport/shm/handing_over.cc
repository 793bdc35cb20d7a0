// SPDX-License-Identifier: Apache-2.0
// What is told the peer beside the rings: slabs, and memory that is handed over to it.
//
// The kernel takes a few frames that the peer has not taken, and so many descriptors on their way
// for all processes of a user. Memory for which there is no room waits here, without descriptors of
// its own, and what is sent waits behind it: the peer knows a region before the messages that
// follow. A peer that takes nothing in keeps nobody else waiting. Where it is not this peer that
// takes nothing, the wait is short, and then the memory is accessed by frames.
#include <algorithm>

#include "base/text.h"
#include "transport/shm/shm.h"

namespace tw {
namespace {

Status crowded() {
  return {Code::kResourceExhausted,
          "too many descriptors are on their way, to this peer and to others that take none: raise "
          "the limit of open files (ulimit -n)"};
}

}  // namespace

// What the arena has given up goes back to the system once the peer lets go of it too.
Result<ShmSent> ShmTransport::take_back() {
  for (auto it = shared_.begin(); it != shared_.end();) {
    if (!it->second->dropped()) {
      ++it;
      continue;
    }
    wire::ShmFrame frame;
    frame.type = wire::ShmFrameType::kSlabGone;
    frame.slab = it->second->index();
    frame.generation = it->second->generation();
    const auto sent = try_shm_frame(socket_.get(), frame, {});
    if (!sent || *sent != ShmSent::kSent) return sent;
    it = shared_.erase(it);
  }
  return ShmSent::kSent;
}

Result<ShmSent> ShmTransport::announce(Slab& slab) {
  auto known = shared_.find(slab.index());
  if (known != shared_.end() && known->second.get() == &slab) return ShmSent::kSent;
  if (Status status = slab.shareable(); !status.ok()) return status;
  if (const auto told = take_back(); !told || *told != ShmSent::kSent) return told;
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kSlab;
  frame.slab = slab.index();
  frame.generation = slab.generation();
  frame.size = slab.size();
  const int descriptors[] = {slab.fd()};
  // First its place, for which there may be no memory: nobody is told of a slab twice.
  const auto [at, fresh] = shared_.emplace(slab.index(), Ref<Slab>::share(&slab));
  const auto sent = try_shm_frame(socket_.get(), frame, descriptors);
  if (fresh && !(sent && *sent == ShmSent::kSent)) shared_.erase(at);
  return sent;
}

Status ShmTransport::share(Slab& slab) {
  const auto sent = announce(slab);
  if (!sent) return sent.status();
  if (*sent == ShmSent::kSent) return {};
  return {Code::kResourceExhausted, "the peer has not taken what was handed to it before"};
}

Status ShmTransport::hand_over(uint64_t region, Ref<SharedMemory> memory, bool writable,
                               Ref<Door> door) {
  return hand_over({region, std::move(memory), writable, {}, std::move(door), {}});
}

Status ShmTransport::hand_over(uint64_t region, Ref<Slab> slab, Ref<Door> door) {
  return hand_over({region, {}, false, std::move(slab), std::move(door), {}});
}

Status ShmTransport::hand_over(HandOver what) {
  if (waiting_.empty()) {
    const auto sent = hand_now(what);
    if (!sent) return sent.status();
    if (*sent == ShmSent::kSent) {
      not_crowded();
      return {};
    }
    if (!await_room(*sent)) return crowded();
  } else if (waiting_.size() == kMaxMapped) {
    return {Code::kResourceExhausted,
            text({"the peer has not taken ", kMaxMapped, " pieces of memory, the most that wait"})};
  }
  waiting_.push_back(std::move(what));
  return {};
}

void ShmTransport::withdraw(uint64_t region) {
  const auto at = std::ranges::lower_bound(waiting_, region, {}, &HandOver::region);
  if (at != waiting_.end() && at->region == region) waiting_.erase(at);
}

Result<ShmSent> ShmTransport::hand_now(HandOver& what) {
  if (what.slab) {
    const auto known = announce(*what.slab);
    if (!known || *known != ShmSent::kSent) return known;
  }
  if (!what.door_file) {
    auto file = what.door->build();
    if (!file) return file.status();
    what.door_file = std::move(*file);
  }
  wire::ShmFrame frame;
  if (what.slab) {
    frame.type = wire::ShmFrameType::kBlock;
    frame.slab = what.slab->index();
    frame.generation = what.slab->generation();
    frame.size = what.region;
    const int descriptors[] = {what.door_file.get()};
    return try_shm_frame(socket_.get(), frame, descriptors);
  }
  frame.type = wire::ShmFrameType::kRegion;
  frame.slab = static_cast<uint32_t>(what.region);
  frame.generation = static_cast<uint32_t>(what.region >> 32);
  frame.size = what.memory->file_size();
  Fd readable;
  if (!what.writable) {
    auto copy = reopen_read_only(what.memory->file());
    if (!copy) return copy.status();
    readable = std::move(*copy);
  }
  const int descriptors[] = {what.writable ? what.memory->file() : readable.get(),
                             what.door_file.get()};
  return try_shm_frame(socket_.get(), frame, descriptors);
}

Result<bool> ShmTransport::hand_waiting() {
  while (!waiting_.empty()) {
    if (no_room_.load(std::memory_order_acquire)) return false;
    const auto sent = hand_now(waiting_.front());
    if (sent && *sent == ShmSent::kSent) {
      not_crowded();
      waiting_.pop_front();
    } else if (!sent && sent.status().code() == Code::kUnavailable) {
      return sent.status();  // the link is broken
    } else if (!sent) {
      ++not_handed_.count;
      not_handed_.why = sent.status();
      waiting_.pop_front();
    } else if (await_room(*sent)) {
      return false;
    } else {
      not_handed_.count += waiting_.size();
      not_handed_.why = crowded();
      waiting_.clear();
    }
  }
  return true;
}

void ShmTransport::not_crowded() {
  crowded_since_ = 0;
  patient_ = true;
}

bool ShmTransport::await_room(ShmSent why) {
  if (why == ShmSent::kCrowded) {
    if (crowded_since_ == 0) crowded_since_ = now();
    if (patient_) patient_ = now() < crowded_since_ + kCrowdedPatience;
    if (!patient_) {
      crowded_since_ = 0;
      return false;
    }
  }
  const MutexLock lock(watch_mutex_);
  if (!poller_ || control_watch_ == 0) return true;
  if (why == ShmSent::kFull)
    poller_->rearm(control_watch_, socket_.get(), kListen | EPOLLOUT);
  else
    poller_->add_timer(now() + kCrowdedLook,
                       [watcher = watcher_] { watcher->on_event(kRetry, 0); });
  no_room_.store(true, std::memory_order_release);
  return true;
}

}  // namespace tw
