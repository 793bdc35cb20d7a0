// SPDX-License-Identifier: Apache-2.0
// Memory that a user has made ready for what is received next, so that it comes straight to where
// it is wanted.
#pragma once

#include <cstddef>
#include <utility>

#include "base/mutex.h"
#include "base/ref.h"

namespace tw {

class PostedBuffer final : public RefCounted {
 public:
  // `owner` keeps the bytes, which nobody else touches meanwhile; null: who has posted them does,
  // until withdraw().
  PostedBuffer(std::byte* data, size_t size, Hold owner)
      : data_(data), size_(size), owner_(std::move(owner)) {}

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const Hold& owner() const { return owner_; }

  // Whoever stores there has it locked, and nobody does once the buffer is withdrawn.
  Mutex& stores() TW_RETURNS_MUTEX(stores_) { return stores_; }
  bool withdrawn() const TW_REQUIRES(stores_) { return withdrawn_; }
  // From the return on nobody stores there.
  void withdraw() {
    const MutexLock lock(stores_);
    withdrawn_ = true;
  }

  // Less is copied as quickly as it is posted.
  static constexpr size_t kSmallest = 4 << 20;

 private:
  std::byte* const data_;
  const size_t size_;
  const Hold owner_;
  Mutex stores_;  // no other lock is taken inside
  bool withdrawn_ TW_GUARDED_BY(stores_) = false;
};

}  // namespace tw
