// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/around.h"

namespace tw::collective::steps {

Status ring_all_gather(Messages& messages, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type);
  const auto place = [&](size_t back, const Part& piece) {
    const auto share = static_cast<size_t>(team.before(static_cast<int>(back)));
    return out + (share * call.count + piece.begin) * width;
  };
  return go_around(
      messages, Around(messages),
      [&](size_t turn, const Part& piece, size_t) { return place(turn, piece); },
      [&](size_t turn, const Part& piece, size_t, const std::byte* data) {
        std::memcpy(place(turn + 1, piece), data, piece.size() * width);
      });
}

}  // namespace tw::collective::steps
