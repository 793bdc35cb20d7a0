// SPDX-License-Identifier: Apache-2.0
// A store whose own waits know nothing of interruptions, so that each of them is short.
#pragma once

#include "base/clock.h"
#include "collective/store.h"

namespace tw::collective {

class PolledStore : public Store {
 public:
  // No wait of the store's own is longer.
  static constexpr Nanos kSlice = 250 * kMillisecond;

  Result<std::vector<std::byte>> get(const std::string& key, const Wait& wait) final;

 private:
  // Waits for the key for `time`. DEADLINE_EXCEEDED, or any error of its own.
  virtual Result<std::vector<std::byte>> look(const std::string& key, Nanos time) = 0;
};

}  // namespace tw::collective
