// SPDX-License-Identifier: Apache-2.0
// An operation that is under way.
#pragma once

#include "collective/collective_call.h"
#include "engine/waiting.h"

namespace tw::collective {

struct Pending {
  const CollectiveCall& call;  // what ranks agree on
  const Wait& wait;
  // What of it moves now: how many elements, of which type, and how they are reduced.
  CollectiveCall part = call;
};

}  // namespace tw::collective
