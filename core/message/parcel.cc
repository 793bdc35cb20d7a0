// SPDX-License-Identifier: Apache-2.0
#include "message/parcel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <typeinfo>

namespace tw {

size_t align_small(size_t offset, size_t size) {
  const size_t unit = std::min<size_t>(16, std::bit_ceil(std::max<size_t>(size, 1)));
  return (offset + unit - 1) & ~(unit - 1);
}

static_assert(sizeof(Parcel) <= 72, "it is most of what a small message takes");

Parcel::Parcel(uint64_t stream, size_t header_length, size_t count, bool packed)
    : count_(static_cast<uint32_t>(count)),
      stream_(stream),
      header_length_(static_cast<uint32_t>(header_length)),
      packed_(packed) {}

Parcel::~Parcel() {
  if (!packed_) std::destroy_n(places(), count_);
}

void Parcel::dispose() noexcept {
  this->~Parcel();
  ::operator delete(this);
}

Ref<Parcel> Parcel::whole(uint64_t stream, std::span<const std::byte> header,
                          std::span<const wire::SegmentInfo> segments,
                          std::span<const std::byte> bytes) {
  const size_t before = segments.size() * sizeof(uint32_t) + header.size();
  size_t end = sizeof(Parcel) + before;
  for (const wire::SegmentInfo& info : segments) end = align_small(end, info.length) + info.length;
  void* const memory = ::operator new(end, std::nothrow);
  if (!memory) return nullptr;
  auto parcel =
      Ref<Parcel>::adopt(new (memory) Parcel(stream, header.size(), segments.size(), true));
  if (!header.empty()) std::memcpy(parcel->header_at(), header.data(), header.size());
  const std::byte* from = bytes.data();
  size_t at = sizeof(Parcel) + before;
  for (size_t i = 0; i < segments.size(); ++i) {
    const size_t length = segments[i].length;
    parcel->lengths()[i] = static_cast<uint32_t>(length);
    if (length == 0) continue;
    at = align_small(at, length);
    std::memcpy(static_cast<std::byte*>(memory) + at, from, length);
    at += length;
    from += length;
  }
  parcel->payload_bytes_ = bytes.size();
  return parcel;
}

std::span<const std::byte> Parcel::first() const {
  if (count_ == 0 || refusal_) return {};
  if (!packed_) return {places()[0].data, places()[0].size};
  const size_t length = lengths()[0];
  const size_t before = sizeof(Parcel) + count_ * sizeof(uint32_t) + header_length_;
  return {reinterpret_cast<const std::byte*>(this) + align_small(before, length), length};
}

Ref<Parcel> Parcel::announced(uint64_t stream, std::span<const std::byte> header,
                              std::span<const wire::SegmentInfo> segments) {
  void* const memory =
      ::operator new(sizeof(Parcel) + segments.size() * sizeof(InSegment) + header.size());
  auto parcel =
      Ref<Parcel>::adopt(new (memory) Parcel(stream, header.size(), segments.size(), false));
  InSegment* const places = reinterpret_cast<InSegment*>(parcel->tail());
  for (size_t i = 0; i < segments.size(); ++i) {
    new (places + i) InSegment;
    places[i].size = segments[i].length;
    parcel->payload_bytes_ += segments[i].length;
  }
  if (!header.empty()) std::memcpy(parcel->header_at(), header.data(), header.size());
  return parcel;
}

Ref<Parcel> Parcel::refused(uint64_t stream, std::span<const std::byte> header,
                            size_t payload_bytes, Status why) {
  Ref<Parcel> parcel = announced(stream, header, {});
  parcel->payload_bytes_ = payload_bytes;
  parcel->refuse(std::move(why));
  return parcel;
}

PostedBuffer* Parcel::posted() const {
  if (packed_ || count_ != 1) return nullptr;
  RefCounted* const held = places()[0].hold.get();
  return held && typeid(*held) == typeid(PostedBuffer) ? static_cast<PostedBuffer*>(held) : nullptr;
}

void Parcel::refuse(Status why) {
  refusal_ = std::make_unique<Status>(std::move(why));
  for (size_t i = 0; i < count_; ++i) place(i, nullptr, nullptr);
}

void Parcel::open(Ref<Parcel> parcel, InMessage& message) {
  Parcel& self = *parcel;
  message.segments.clear();
  message.stream = self.stream_;
  message.header = self.header();
  message.header_hold = std::move(parcel);
  message.payload_bytes = self.payload_bytes_;
  if (self.refusal_) {
    message.status = std::move(*self.refusal_);
    return;
  }
  message.status = {};
  message.segments.reserve(self.count_);
  if (!self.packed_) {
    for (size_t i = 0; i < self.count_; ++i) {
      InSegment& segment = message.segments.emplace_back(std::move(self.places()[i]));
      if (segment.size == 0) segment = {self.tail(), 0, message.header_hold};
    }
    return;
  }
  const std::byte* const base = reinterpret_cast<const std::byte*>(&self);
  size_t at = static_cast<size_t>(self.header_at() + self.header_length_ - base);
  for (size_t i = 0; i < self.count_; ++i) {
    const size_t length = self.lengths()[i];
    if (length != 0) at = align_small(at, length);
    message.segments.push_back({base + at, length, message.header_hold});
    at += length;
  }
}

void ParcelQueue::push(Ref<Parcel> parcel) {
  Parcel* const last = parcel.leak();
  (last_ ? last_->next_ : first_) = last;
  last_ = last;
}

void ParcelQueue::remove(Parcel& parcel) {
  Parcel* before = nullptr;
  for (Parcel* at = first_; at != &parcel; at = at->next_) before = at;
  Parcel* const after = std::exchange(parcel.next_, nullptr);
  (before ? before->next_ : first_) = after;
  if (last_ == &parcel) last_ = before;
  parcel.release();
}

Ref<Parcel> ParcelQueue::pop() {
  Parcel* const parcel = first_;
  first_ = std::exchange(parcel->next_, nullptr);
  if (!first_) last_ = nullptr;
  return Ref<Parcel>::adopt(parcel);
}

}  // namespace tw
