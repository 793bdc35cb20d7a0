// SPDX-License-Identifier: Apache-2.0
// Memory that a user has made ready for what is received next, so that it comes straight to where
// it is wanted.
#pragma once

#include <cstddef>
#include <utility>

#include "base/ref.h"

namespace tw {

class PostedBuffer final : public RefCounted {
 public:
  // `owner` keeps the bytes, which nobody else touches meanwhile.
  PostedBuffer(std::byte* data, size_t size, Hold owner)
      : data_(data), size_(size), owner_(std::move(owner)) {}

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const Hold& owner() const { return owner_; }

  // Less is copied as quickly as it is posted.
  static constexpr size_t kSmallest = 4 << 20;

 private:
  std::byte* const data_;
  const size_t size_;
  const Hold owner_;
};

}  // namespace tw
