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

}  // namespace

void Copier::copy(std::byte* to, const std::byte* from, size_t size, Destination destination) {
  if (size < kShared || !turn_.try_lock()) return copy_piece(to, from, size, size >= kStreamed);
  const MutexLock turn(turn_, std::adopt_lock);
  if (!assisted()) return copy_piece(to, from, size, size >= kStreamed);
  to_ = to;
  from_ = from;
  size_ = size;
  piece_ = destination == Destination::kFresh ? kHugePage : kPiece;
  before_ = reinterpret_cast<uintptr_t>(to) % piece_;
  next_.store(0, std::memory_order_relaxed);
  state_.store(kOffered, std::memory_order_release);
  futex_wake(state_, 1);
  copy_pieces();
  settle();
}

// Pieces end at addresses that are multiples of their size.
void Copier::copy_pieces() {
  const bool streamed = size_ >= kStreamed;
  for (;;) {
    const size_t at = next_.fetch_add(piece_, std::memory_order_relaxed);
    const size_t begin = std::max(at, before_) - before_;
    if (begin >= size_) return;
    const size_t end = std::min(at + piece_ - before_, size_);
    copy_piece(to_ + begin, from_ + begin, end - begin, streamed);
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
