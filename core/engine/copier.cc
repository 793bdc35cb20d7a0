// SPDX-License-Identifier: Apache-2.0
#include "engine/copier.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "base/signals.h"
#include "base/streamed_copy.h"
#include "engine/futex.h"
#include "engine/spin.h"
#include "memory/huge_pages.h"

namespace tw {
namespace {

constexpr size_t kPiece = 512 << 10;

// Every huge page that [to, to + size) has whole.
void make_huge_pages(std::byte* to, size_t size) {
  size_t at = -reinterpret_cast<uintptr_t>(to) % kHugePage;
  for (; at + kHugePage <= size; at += kHugePage) make_shared_huge_page(to + at);
}

void copy_piece(const Copier::Copy& copy, size_t from, size_t size, bool streamed) {
  if (copy.destination == Copier::Destination::kFreshShared) make_huge_pages(copy.to + from, size);
  if (streamed) return copy_streamed(copy.to + from, copy.from + from, size);
  if (size != 0) std::memcpy(copy.to + from, copy.from + from, size);
}

void copy_alone(std::span<const Copier::Copy> copies, size_t size) {
  for (const Copier::Copy& copy : copies) copy_piece(copy, 0, copy.size, size >= kStreamed);
}

}  // namespace

void Copier::copy(std::byte* to, const std::byte* from, size_t size, Destination destination) {
  const Copy one{to, from, size, destination};
  copy({&one, 1});
}

void Copier::copy(std::span<const Copy> copies) {
  size_t size = 0;
  for (const Copy& copy : copies) size += copy.size;
  if (size < kShared || !turn_.try_lock()) return copy_alone(copies, size);
  const MutexLock turn(turn_, std::adopt_lock);
  if (!assisted()) return copy_alone(copies, size);
  copies_ = copies;
  size_ = size;
  const bool fresh = std::ranges::any_of(
      copies, [](const Copy& copy) { return copy.destination != Destination::kUsed; });
  piece_ = fresh ? kHugePage : kPiece;
  before_ = reinterpret_cast<uintptr_t>(copies.front().to) % piece_;
  next_.store(0, std::memory_order_relaxed);
  state_.store(kOffered, std::memory_order_release);
  futex_wake(state_, 1);
  copy_pieces();
  settle();
}

// The copies lie one behind the other, and are cut into pieces. Those of the first copy end at
// addresses that are multiples of their size.
void Copier::copy_pieces() {
  const bool streamed = size_ >= kStreamed;
  const Copy* copy = copies_.data();
  size_t start = 0;  // where that one begins among all of them
  for (;;) {
    const size_t at = next_.fetch_add(piece_, std::memory_order_relaxed);
    size_t begin = std::max(at, before_) - before_;
    if (begin >= size_) return;
    const size_t end = std::min(at + piece_ - before_, size_);
    while (begin != end) {
      for (; begin >= start + copy->size; ++copy) start += copy->size;
      const size_t skipped = begin - start, size = std::min(end - begin, copy->size - skipped);
      copy_piece(*copy, skipped, size, streamed);
      begin += size;
    }
  }
}

// All pieces have been begun; the one that the assistant may have in hand is waited for.
void Copier::settle() {
  uint32_t state = kOffered;
  if (state_.compare_exchange_strong(state, kNothing, std::memory_order_acq_rel)) return;
  while (state_.load(std::memory_order_acquire) == kTaken) futex_wait(state_, kTaken, kForever);
}

void Copier::assist() {
  for (;;) {
    uint32_t state = kOffered;
    if (state_.compare_exchange_strong(state, kTaken, std::memory_order_acq_rel)) {
      copy_pieces();
      state_.store(kNothing, std::memory_order_release);
      futex_wake(state_, 1);
    } else if (state == kStop) {
      return;
    } else {
      futex_wait(state_, state, kForever);
    }
  }
}

// Whether there is an assistant; the first large copy starts it where it can have a CPU of its own.
bool Copier::assisted() {
  if (!decided_) {
    decided_ = true;
    if (single_cpu()) return false;
    const SignalsBlocked blocked;
    try {
      assistant_ = std::thread([this] {
        pthread_setname_np(pthread_self(), "tensorwire-copy");
        assist();
      });
    } catch (const std::system_error&) {
      // No thread is to be had: everybody copies alone.
    }
  }
  return assistant_.joinable();
}

void Copier::stop() {
  const MutexLock turn(turn_);
  decided_ = true;
  if (!assistant_.joinable()) return;
  state_.store(kStop, std::memory_order_release);
  futex_wake(state_, 1);
  assistant_.join();
}

}  // namespace tw
