// SPDX-License-Identifier: Apache-2.0
// Copies of this process: with the runtime's assistant where they are large.
#pragma once

#include <cstddef>
#include <span>

#include "engine/copier.h"
#include "message/message.h"

namespace tw {

// As memcpy, of no bytes also from and to nowhere. Without a runtime, too.
void copy_bytes(std::byte* to, const std::byte* from, size_t size,
                Copier::Destination destination = Copier::Destination::kUsed) noexcept;

// The same of several, which are one to the assistant.
void copy_all(std::span<const Copier::Copy> copies) noexcept;

// The payload, one segment behind the other, to memory that may not have been touched.
void copy_payload(std::byte* to, const InMessage& message) noexcept;

}  // namespace tw
