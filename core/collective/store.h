// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a group find each other: small values by key, which all of them reach and
// nobody else. What it holds admits to the group, so that its own security is the group's.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/waiting.h"

namespace tw::collective {

class Store {
 public:
  virtual ~Store() = default;
  // Any error of its own.
  virtual Status set(const std::string& key, std::span<const std::byte> value) = 0;
  // Waits for the key. DEADLINE_EXCEEDED, CANCELLED (interrupted), or any error of its own.
  virtual Result<std::vector<std::byte>> get(const std::string& key, const Wait& wait) = 0;
};

}  // namespace tw::collective
