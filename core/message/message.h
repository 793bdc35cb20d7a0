// SPDX-License-Identifier: Apache-2.0
// What the message machine takes in and hands up: a small header and a list of segments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <typeinfo>

#include "base/few.h"
#include "base/ref.h"
#include "base/status.h"
#include "memory/arena.h"
#include "memory/mapping.h"

namespace tw {

// A segment to send. Who owns its bytes:
//   block set    arena memory, published, lent or already copied; it may travel as a descriptor
//   hold set     its owner, who has lent it and wants to know when it is no longer read
//   view set     the peer that it is sent to, who has lent it to this process: it goes back by
//   name;
//                hold is set, too
//   neither      the caller: they must stay as they are until Outgoing::borrowed() is false
struct OutSegment {
  const std::byte* data = nullptr;
  size_t size = 0;
  Ref<Block> block;
  Ref<LeasedView> view;
  Hold hold;
  // Whether it goes in bulk: decided once for its message, see decide(). Empty: nobody has.
  std::optional<bool> bulk;
};

// A segment received: readable for as long as the hold is held.
struct InSegment {
  const std::byte* data = nullptr;
  size_t size = 0;
  Hold hold;

  // Null unless they lie in the sender's memory.
  LeasedView* view() const {
    const RefCounted* const held = hold.get();
    return held && typeid(*held) == typeid(LeasedView) ? static_cast<LeasedView*>(hold.get())
                                                       : nullptr;
  }
};

// A whole message received. A status that is not ok replaces the segments: the message was too
// large for this side's limit or memory, and its bytes were thrown away.
struct InMessage {
  uint64_t stream = 0;
  std::span<const std::byte> header;
  Hold header_hold;
  Few<InSegment, 4> segments;
  size_t payload_bytes = 0;
  Status status;

  // Whether a segment lies in the sender's memory.
  bool leased() const {
    return std::ranges::any_of(segments, [](const InSegment& each) { return each.view(); });
  }
};

}  // namespace tw
