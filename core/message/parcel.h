// SPDX-License-Identifier: Apache-2.0
// A received message as it is kept until its user takes it: one run of memory, hardly larger than
// what the peer has sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "memory/posted_buffer.h"
#include "message/message.h"
#include "wire/frame.h"

namespace tw {

// What a message that waits takes of its stream's allowance.
struct MessageCost {
  uint64_t credit = 0;
  uint64_t header_bytes = 0;
};

class Parcel final : public RefCounted {
 public:
  // A message whose segments are all inline: their bytes are copied in. Null when there is no
  // memory for them.
  static Ref<Parcel> whole(uint64_t stream, std::span<const std::byte> header,
                           std::span<const wire::SegmentInfo> segments,
                           std::span<const std::byte> bytes);
  // One whose segments get their places later, by place().
  static Ref<Parcel> announced(uint64_t stream, std::span<const std::byte> header,
                               std::span<const wire::SegmentInfo> segments);
  // One of so many bytes that could not be received.
  static Ref<Parcel> refused(uint64_t stream, std::span<const std::byte> header,
                             size_t payload_bytes, Status why);

  uint64_t stream() const { return stream_; }
  size_t payload_bytes() const { return payload_bytes_; }
  size_t segments() const { return count_; }
  std::span<const std::byte> header() const { return {header_at(), header_length_}; }
  bool ok() const { return !refusal_; }
  Status status() const { return refusal_ ? *refusal_ : Status(); }

  // For whoever keeps it until its bytes, and those of the messages before it, have come.
  MessageCost cost() const { return {credit_cost_, header_cost_}; }
  void set_cost(const MessageCost& cost) {
    credit_cost_ = cost.credit;
    header_cost_ = static_cast<uint32_t>(cost.header_bytes);
  }
  bool unfinished() const { return unfinished_; }
  void set_unfinished(bool yes) { unfinished_ = yes; }

  // The bytes of the first segment, once they have come; none where there is none.
  std::span<const std::byte> first() const;

  // Where its only segment lies, if that is memory which a user wanted it in.
  PostedBuffer* posted() const;

  // The following are for announced() ones only.
  size_t size_of(size_t index) const { return places()[index].size; }
  std::byte* data_of(size_t index) const { return const_cast<std::byte*>(places()[index].data); }
  const Hold& hold_of(size_t index) const { return places()[index].hold; }
  void place(size_t index, const std::byte* data, Hold hold) {
    places()[index].data = data;
    places()[index].hold = std::move(hold);
  }
  // Lets go of the segments: the message is handed up without them.
  void refuse(Status why);

  // For the user, once. Takes no memory when `message` has capacity for all segments.
  static void open(Ref<Parcel> parcel, InMessage& message);
  static InMessage open(Ref<Parcel> parcel) {
    InMessage message;
    open(std::move(parcel), message);
    return message;
  }

 private:
  friend class ParcelQueue;
  Parcel(uint64_t stream, size_t header_length, size_t count, bool packed);
  ~Parcel() override;
  void dispose() noexcept override;

  std::byte* tail() const { return reinterpret_cast<std::byte*>(const_cast<Parcel*>(this) + 1); }
  // The tail: a place for each segment, or, when packed, a length; then the header; then, when
  // packed, the bytes of the segments.
  InSegment* places() const { return std::launder(reinterpret_cast<InSegment*>(tail())); }
  uint32_t* lengths() const { return std::launder(reinterpret_cast<uint32_t*>(tail())); }
  std::byte* header_at() const {
    return tail() + count_ * (packed_ ? sizeof(uint32_t) : sizeof(InSegment));
  }

  // In an order that leaves no gaps.
  const uint32_t count_;
  const uint64_t stream_;
  size_t payload_bytes_ = 0;
  std::unique_ptr<Status> refusal_;
  Parcel* next_ = nullptr;  // of its queue
  uint64_t credit_cost_ = 0;
  uint32_t header_cost_ = 0;
  const uint32_t header_length_;
  const bool packed_;
  bool unfinished_ = false;
};

// Parcels in the order of their coming. Takes no memory of its own.
class ParcelQueue {
 public:
  ParcelQueue() = default;
  ParcelQueue(const ParcelQueue&) = delete;
  ParcelQueue& operator=(const ParcelQueue&) = delete;
  ~ParcelQueue() {
    while (first_) (void)pop();
  }

  bool empty() const { return !first_; }
  void swap(ParcelQueue& other) {
    std::swap(first_, other.first_);
    std::swap(last_, other.last_);
  }
  const Parcel& front() const { return *first_; }
  // Takes one out that is in it.
  void remove(Parcel& parcel);
  void push(Ref<Parcel> parcel);
  // Not when empty.
  Ref<Parcel> pop();

 private:
  Parcel* first_ = nullptr;
  Parcel* last_ = nullptr;
};

// Where a small segment of so many bytes may lie: as any array of so many bytes needs it, but no
// gap is larger than the segment.
size_t align_small(size_t offset, size_t size);

}  // namespace tw
