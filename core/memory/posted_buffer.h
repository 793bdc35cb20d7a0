// SPDX-License-Identifier: Apache-2.0
// Memory that a user has made ready for what is received next, so that it comes straight to where
// it is wanted.
#pragma once

#include <cstddef>
#include <optional>
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

  // A message begins to come here that must not be lost when this is withdrawn. False: it was.
  bool begin() {
    const MutexLock lock(stores_);
    if (!withdrawn_) stored_ = 0;
    return !withdrawn_;
  }

  // Whoever stores there has it locked, and nobody does once the buffer is withdrawn.
  Mutex& stores() TW_RETURNS_MUTEX(stores_) { return stores_; }
  bool withdrawn() const TW_REQUIRES(stores_) { return withdrawn_; }
  // From the return on nobody stores there.
  void withdraw() {
    const MutexLock lock(stores_);
    withdrawn_ = true;
  }
  // The same; `kept`, of the same size, has a copy of what was stored(): the message goes on there.
  // Null: it is lost.
  void withdraw(std::byte* kept, Hold hold) TW_REQUIRES(stores_) {
    withdrawn_ = true;
    kept_ = kept;
    kept_hold_ = std::move(hold);
  }
  // Bytes at the beginning in which such a message has been stored, up to the end of the chunk that
  // has begun. Nothing: none has begun.
  std::optional<size_t> stored() const TW_REQUIRES(stores_) { return stored_; }
  void set_stored(size_t bytes) TW_REQUIRES(stores_) {
    if (stored_) stored_ = bytes;
  }
  // That copy, once. Null: there is none.
  std::pair<std::byte*, Hold> take_kept() TW_REQUIRES(stores_) {
    return {std::exchange(kept_, nullptr), std::move(kept_hold_)};
  }

  // Less is copied as quickly as it is posted.
  static constexpr size_t kSmallest = 4 << 20;

 private:
  std::byte* const data_;
  const size_t size_;
  const Hold owner_;
  Mutex stores_;  // those of memory and the copier's turn are taken inside
  bool withdrawn_ TW_GUARDED_BY(stores_) = false;
  std::optional<size_t> stored_ TW_GUARDED_BY(stores_);
  std::byte* kept_ TW_GUARDED_BY(stores_) = nullptr;
  Hold kept_hold_ TW_GUARDED_BY(stores_);
};

}  // namespace tw
