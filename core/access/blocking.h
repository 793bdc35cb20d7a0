// SPDX-License-Identifier: Apache-2.0
// One-sided operations for who blocks on them: waits that go through signals and have an end.
#pragma once

#include <cstdint>
#include <span>

#include "access/nudges.h"
#include "access/port.h"
#include "engine/waiting.h"

namespace tw {

// All of these: true: done; false: interrupted; DEADLINE_EXCEEDED: not in time. What was waited for
// goes on then, and may be waited for again.

// From the return on the peer can neither read nor write there. Errors as AccessPort::conceal().
Result<bool> conceal(AccessPort& port, uint64_t region, const Wait& wait);

// Until an operation has ended. Errors: how it ended.
Result<bool> await_end(AccessPort& port, Access& access, const Wait& wait);

// Until a word of this end's memory is at least so much; `value`: what it is, whatever comes of it.
// Errors as AccessPort::word(), and once the peer can change it no more.
Result<bool> await_word(AccessPort& port, uint64_t region, uint64_t offset, uint64_t at_least,
                        const Wait& wait, uint64_t& value);

// The next value of the peer's writes with immediate. The link's status: none will come any more.
Result<bool> await_immediate(AccessPort& port, const Wait& wait, uint32_t& value);

// Until one of the words is at least so much, or one of their memories was nudged; there has to be
// one. Errors as check(). `spin`: polls for so long before it sleeps.
Result<bool> await_any(std::span<const AwaitedWord> words, Nanos spin, const Wait& wait);

}  // namespace tw
