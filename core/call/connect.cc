// SPDX-License-Identifier: Apache-2.0
#include "call/connect.h"

#include <utility>

namespace tw {

Result<Ref<CallPort>> connect(Runtime& runtime, const meet::Invitation& invitation, Server* serves,
                              const Terms& terms, const Wait& wait) {
  auto connected = meet::connect(runtime, invitation, wait);
  if (!connected) return connected.status();
  const uint64_t limit = terms.max_message.value_or(runtime.settings().max_message_bytes);
  if (serves) return serves->join(std::move(*connected), limit, terms.thresholds);
  return CallPort::create(runtime, std::move(connected->transport), std::move(connected->peer),
                          limit, Link::Role::kClient, terms.thresholds);
}

}  // namespace tw
