// SPDX-License-Identifier: Apache-2.0
#include "collective/polled_store.h"

#include <algorithm>

namespace tw::collective {

Result<std::vector<std::byte>> PolledStore::get(const std::string& key, const Wait& wait) {
  for (;;) {
    const Nanos left = wait.deadline - now();
    auto value = look(key, std::clamp<Nanos>(left, 0, kSlice));
    if (value || value.status().code() != Code::kDeadlineExceeded) return value;
    if (wait.interrupted && wait.interrupted(wait.context) != 0)
      return Status{Code::kCancelled, "the wait was interrupted"};
    if (now() >= wait.deadline) return value;
  }
}

}  // namespace tw::collective
