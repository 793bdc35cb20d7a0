// SPDX-License-Identifier: Apache-2.0
// A block goes and another one comes, so that sending, receiving and reducing overlap.
#pragma once

#include <algorithm>
#include <optional>

#include "collective/messages.h"

namespace tw::collective::steps {

// A block of so many bytes, to a rank or from it.
struct Leg {
  int rank;
  size_t bytes;
};

// Message by message; either block may be none.
//   give(from, length)       what lies there in the block that goes
//   use(from, data, length)  what has come of the other one
template <class Give, class Use>
Status send_receive(Messages& messages, int lane, std::optional<Leg> goes, std::optional<Leg> comes,
                    Give&& give, Use&& use) {
  const size_t gives = goes ? messages_of(goes->bytes) : 0,
               takes = comes ? messages_of(comes->bytes) : 0;
  for (size_t m = 0; m < std::max(gives, takes); ++m) {
    const size_t from = m * Messages::kChunk;
    if (m < takes)
      if (Status status = messages.expect(comes->rank, lane); !status.ok()) return status;
    if (m < gives) {
      const size_t length = length_of(goes->bytes, m);
      if (Status status =
              messages.send(goes->rank, {give(from, length), length}, goes->bytes, lane);
          !status.ok())
        return status;
    }
    if (m < takes) {
      const size_t length = length_of(comes->bytes, m);
      const auto data = messages.receive(comes->rank, length, comes->bytes, lane);
      if (!data) return data.status();
      if (length != 0) use(from, data->data(), length);
    }
  }
  return {};
}

}  // namespace tw::collective::steps
