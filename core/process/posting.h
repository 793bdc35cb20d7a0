// SPDX-License-Identifier: Apache-2.0
// Memory of users that is posted for whatever this process receives next, over whatever link.
#pragma once

#include "base/ref.h"
#include "memory/posted_buffer.h"
#include "message/message.h"
#include "process/runtime.h"

namespace tw {

// For a message of one segment that is received by copy and has exactly its size. One that is
// smaller than PostedBuffer::kSmallest is let go at once, and so are the oldest of too many.
void post(Runtime& runtime, Ref<PostedBuffer> buffer);

// The memory that the message's only segment was received into. Null: it lies somewhere else.
PostedBuffer* posted_for(const InMessage& message);

}  // namespace tw
