// SPDX-License-Identifier: Apache-2.0
// Where the bytes of unfinished messages go: how much memory is taken ahead of what has come.
#include <algorithm>
#include <cstring>

#include "memory/huge_pages.h"
#include "message/receiver.h"

namespace tw {

using wire::SegmentInfo;
using wire::SegmentKind;

namespace {

// Small segments get their memory with their announcement as long as this much of it, of all
// messages together, waits for its bytes.
constexpr size_t kAheadSmall = 256 << 10;
// A chunk gets memory for so much ahead of its bytes, or for as much as its segment has already.
constexpr size_t kAheadChunk = 256 << 10;
// A pushed segment gets its first huge page whole as long as so much, of all messages together, is
// ahead of its bytes. Small pages of fresh memory take longer to get than their bytes.
constexpr size_t kAheadHuge = kHugePage;
// Address space for segments that are read, but have not been; a larger one goes alone.
constexpr uint64_t kMaxUnread = uint64_t{1} << 30;

}  // namespace

// Nothing of it is kept but what its sender has still to end. Its parcel is handed up without
// segments.
void Receiver::refuse(Incoming& incoming, Status why) {
  let_go(incoming);
  incoming.parcel->refuse(std::move(why));
  ++counters_.refused;
}

// The memory that was taken ahead for a message is free for others.
void Receiver::let_go(Incoming& incoming) {
  ahead_ -= std::exchange(incoming.eager_ahead, 0);
  huge_ahead_ -= std::exchange(incoming.huge_ahead, 0);
  borrowed_ -= std::exchange(incoming.borrowed, 0);
  unread_ -= std::exchange(incoming.unread, 0);
}

// Memory for the inline segments, and for the eager ones where that is affordable before they have
// come: while little of it is empty, or from what was used before.
Status Receiver::take_small(Incoming& incoming) {
  size_t here = 0, all = 0;
  for (const SegmentInfo& info : infos_)
    if (info.kind == SegmentKind::kInline) here = align_small(here, info.length) + info.length;
  all = here;
  for (const SegmentInfo& info : infos_)
    if (info.kind == SegmentKind::kEager) all = align_small(all, info.length) + info.length;
  if (all == 0) return {};
  if (all != here && ahead_ + incoming.eager_left <= kAheadSmall) {
    incoming.eager_ahead = incoming.eager_left;
    ahead_ += incoming.eager_ahead;
    here = all;
  } else if (all != here && all >= Pool::kSmallest && may_borrow(all)) {
    GrowingBuffer whole;
    if (whole.recycle(pool_, all)) {
      borrow(incoming, all);
      incoming.small = whole.data();
      incoming.small_size = incoming.small_taken = all;
      incoming.small_hold = whole.hold();
      return {};
    }
  }
  return here == 0 ? Status{} : small_run(incoming, here);
}

bool Receiver::may_borrow(size_t bytes) const { return borrowed_ + bytes <= pool_.capacity() / 2; }

void Receiver::borrow(Incoming& incoming, size_t bytes) {
  incoming.borrowed += bytes;
  borrowed_ += bytes;
}

Status Receiver::small_run(Incoming& incoming, size_t size) {
  GrowingBuffer run;
  if (Status status = run.reserve(pool_, size, 0, size); !status.ok()) return status;
  incoming.small = run.data();
  incoming.small_used = 0;
  incoming.small_size = size;
  incoming.small_taken += size;
  incoming.small_hold = run.hold();
  return {};
}

// There is room for it. Null: an empty one.
void Receiver::place_small(Incoming& incoming, size_t index, const std::byte* from) {
  Parcel& parcel = *incoming.parcel;
  const size_t size = parcel.size_of(index);
  if (size == 0) return parcel.place(index, nullptr, nullptr);
  const size_t at = align_small(incoming.small_used, size);
  std::memcpy(incoming.small + at, from, size);
  parcel.place(index, incoming.small + at, incoming.small_hold);
  incoming.small_used = at + size;
}

// Whether a segment comes straight to where the user wants it.
bool Receiver::land(Incoming& incoming, size_t index) {
  const Parcel& parcel = *incoming.parcel;
  const auto waiting = waiting_.find(parcel.stream());
  if (waiting == waiting_.end() || &waiting->second.parcels.front() != &parcel) return false;
  return incoming.buffer.land(sink_.on_land(parcel, index), parcel.size_of(index));
}

// Where a chunk belongs of which `here` bytes have come; null: nowhere.
std::byte* Receiver::chunk_memory(Incoming& incoming, const wire::DataChunk& chunk, size_t here) {
  if (!incoming.parcel->ok()) return nullptr;
  const size_t size = incoming.parcel->size_of(chunk.segment);
  if (chunk.offset == 0 && !land(incoming, chunk.segment) && size >= Pool::kSmallest &&
      may_borrow(size) &&
      (incoming.buffer.land(pool_, size) || incoming.buffer.recycle(pool_, size)))
    borrow(incoming, size);
  size_t room = std::min<size_t>(chunk.length, std::max(here, kAheadChunk));
  if (chunk.offset == 0 || chunk.offset >= kHugePage)  // it has come, or the segment before has
    huge_ahead_ -= std::exchange(incoming.huge_ahead, 0);
  if (chunk.offset == 0 && size >= Pool::kSmallestHuge && huge_ahead_ + kHugePage <= kAheadHuge) {
    room = std::max(room, std::min(size, kHugePage));
    huge_ahead_ += incoming.huge_ahead = kHugePage;
  }
  Status status = incoming.buffer.reserve(pool_, size, chunk.offset, chunk.offset + room);
  if (!status.ok()) {
    refuse(incoming, std::move(status));
    return nullptr;
  }
  chunk_room_ = incoming.buffer.capacity() - chunk.offset;
  return incoming.buffer.data() + chunk.offset;
}

// The chunk under way has filled its memory.
void Receiver::more_room() {
  Incoming& incoming = unfinished_.find(chunk_message_)->second;
  const size_t filled = chunk_offset_ + chunk_length_ - chunk_left_;
  Status status = incoming.buffer.reserve(pool_, incoming.parcel->size_of(chunk_segment_), filled,
                                          filled + std::min(chunk_left_, kAheadChunk));
  if (status.ok()) {
    chunk_to_ = incoming.buffer.data() + filled;
    chunk_room_ = incoming.buffer.capacity() - filled;
  } else {
    chunk_to_ = nullptr;
    refuse(incoming, std::move(status));
  }
}

// The first bytes of a chunk.
void Receiver::store(std::span<const std::byte> bytes) {
  const auto put = [&] {
    if (!chunk_to_) return;
    std::memcpy(chunk_to_, bytes.data(), bytes.size());
    chunk_to_ += bytes.size();
    chunk_room_ -= bytes.size();
  };
  const Ref<PostedBuffer> posted = chunk_posted_;  // misplace() lets go of it
  if (!posted) return put();
  const MutexLock lock(posted->stores());
  if (posted->withdrawn())
    misplace();
  else
    posted->set_stored(chunk_offset_ + chunk_length_);
  put();
}

void Receiver::misplace() {
  const Ref<PostedBuffer> posted = std::move(chunk_posted_);
  chunk_to_ = nullptr;
  if (chunk_type_ != wire::FrameType::kData) return;
  Incoming& incoming = unfinished_.find(chunk_message_)->second;
  if (!incoming.parcel->ok()) return;
  posted->stores().held();
  auto [kept, hold] = posted->take_kept();
  if (!kept)
    return refuse(incoming, {posted->stored() ? Code::kResourceExhausted : Code::kCancelled,
                             "the memory that it was wanted in was withdrawn"});
  incoming.buffer.move(kept, std::move(hold));
  chunk_to_ = incoming.buffer.data() + (chunk_offset_ + chunk_length_ - chunk_left_);
}

// False: there is no room for its segment now. A refused message is read to nowhere.
bool Receiver::place_read(Incoming& incoming, Read& read) {
  Parcel& parcel = *incoming.parcel;
  if (!parcel.ok()) return true;
  if (!parcel.data_of(read.segment)) {
    const uint64_t size = parcel.size_of(read.segment);
    if (unread_ != 0 && unread_ + size > kMaxUnread) return false;
    auto buffer = fetched_.get(size);
    if (!buffer) {
      refuse(incoming, buffer.status());
      return true;
    }
    incoming.unread += size;
    unread_ += size;
    ++counters_.read_segments;
    ++(buffer->in_arena ? counters_.arena_buffers : counters_.pool_buffers);
    parcel.place(read.segment, buffer->data, std::move(buffer->hold));
  }
  read.destination = parcel.data_of(read.segment) + read.offset;
  read.hold = parcel.hold_of(read.segment);
  return true;
}

void Receiver::resume_offers() {
  while (!later_.empty()) {
    const auto it = unfinished_.find(later_.front().message);
    if (it != unfinished_.end() && !place_read(it->second, later_.front())) return;
    reads_.push_back(std::move(later_.front()));
    later_.pop_front();
  }
}

}  // namespace tw
