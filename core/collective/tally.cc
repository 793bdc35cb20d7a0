// SPDX-License-Identifier: Apache-2.0
#include "collective/tally.h"

namespace tw::collective {

Tally& Tally::of_process() {
  static Tally all;
  return all;
}

const char* name_of(Way way) {
  switch (way) {
    case Way::kOneStep:
      return "one_step";
    case Way::kStage:
      return "stage";
    case Way::kInPlace:
      return "in_place";
    case Way::kMessages:
      return "messages";
    case Way::kTwoLevels:
      return "two_levels";
    case Way::kDeviceStaged:
      return "device_staged";
    case Way::kDeviceInPlace:
      return "device_in_place";
    default:
      return name_of(algorithm_of(way));
  }
}

}  // namespace tw::collective
