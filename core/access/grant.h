// SPDX-License-Identifier: Apache-2.0
// Memory of this end that its peer is let at, from expose() until it is concealed, and for as long
// as somebody waits for a word of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "base/ref.h"
#include "wire/one_sided_frames.h"

namespace tw {

class Grant final : public RefCounted {
 public:
  Grant(const wire::Region& what, std::byte* at, Hold keeper)
      : region(what), data(at), hold(std::move(keeper)) {}

  bool over() const { return over_.load(std::memory_order_acquire); }
  // The peer is let at it no more.
  void end() { over_.store(true, std::memory_order_release); }

  const wire::Region region;
  std::byte* const data;
  const Hold hold;

 private:
  std::atomic<bool> over_{false};
};

}  // namespace tw
