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

void copy_piece(std::byte* to, const std::byte* from, size_t size, bool streamed) {
  if (streamed) return copy_streamed(to, from, size);
  if (size != 0) std::memcpy(to, from, size);
}

void copy_alone(std::span<const Copier::Copy> copies, size_t size) {
  for (const Copier::Copy& copy : copies)
    copy_piece(copy.to, copy.from, copy.size, size >= kStreamed);
}

}  // namespace

void Copier::copy(std::byte* to, const std::byte* from, size_t size, Destination destination) {
  const Copy one{to, from, size};
  copy({&one, 1}, destination);
}

void Copier::copy(std::span<const Copy> copies) { copy(copies, Destination::kUsed); }

void Copier::copy(std::span<const Copy> copies, Destination destination) {
  size_t size = 0;
  for (const Copy& copy : copies) size += copy.size;
  if (size < kShared || !turn_.try_lock()) return copy_alone(copies, size);
  const MutexLock turn(turn_, std::adopt_lock);
  if (!assisted()) return copy_alone(copies, size);
  copies_ = copies;
  size_ = size;
  piece_ = destination == Destination::kFresh ? kHugePage : kPiece;
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
      copy_piece(copy->to + skipped, copy->from + skipped, size, streamed);
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
