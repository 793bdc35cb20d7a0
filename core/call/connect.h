// SPDX-License-Identifier: Apache-2.0
// The links that this process makes, as those who call on them want them.
#pragma once

#include <cstdint>
#include <optional>

#include "call/call.h"
#include "call/server.h"
#include "meet/connect.h"

namespace tw {

struct Terms {
  // Bytes of a message that the peer may send; nothing: as the settings say.
  std::optional<uint64_t> max_message;
  Wanted thresholds;
};

// `serves`: who serves the peer on that link; null: nobody. Errors as meet::connect(), and
// UNAVAILABLE: the server is closed.
Result<Ref<CallPort>> connect(Runtime& runtime, const meet::Invitation& invitation, Server* serves,
                              const Terms& terms, const Wait& wait);

}  // namespace tw
