// SPDX-License-Identifier: Apache-2.0
#include "statistics.h"

namespace tensorwire {

Statistics& statistics() {
  static Statistics* const statistics = new Statistics;
  return *statistics;
}

}  // namespace tensorwire
