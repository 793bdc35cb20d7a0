// SPDX-License-Identifier: Apache-2.0
// What this host's kernel offers to shared memory, and what that means, for people.
#pragma once

#include "base/fact.h"

namespace tw::shm {

struct KernelFeatures {
  bool memfd = false;
  bool sealing = false;  // of the kind that the arena needs
  bool pidfd = false;
};

KernelFeatures look();
// Each as a number, and `checks` (Kind::facts).
Facts facts(const KernelFeatures& kernel);

}  // namespace tw::shm
