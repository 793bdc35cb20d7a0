// SPDX-License-Identifier: Apache-2.0
// Payload on its way into memory that the peer can reach.
#pragma once

#include <span>

#include "link/link.h"

namespace tw {

// Decides what of a message goes in bulk, where nobody has, and copies into the arena whatever of
// that the transport lends from there and neither lies there published nor is the peer's own. What
// finds no room is pushed: nobody waits for others to let go of theirs. The message is for this
// link. std::bad_alloc.
void stage(Link& link, std::span<OutSegment> segments);

}  // namespace tw
