// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_call.h"

#include <iterator>

#include "base/text.h"

namespace tw::collective {

const char* name_of(CollectiveKind kind) {
  static constexpr const char* kNames[] = {"barrier",    "all_reduce", "reduce",
                                           "broadcast",  "all_gather", "reduce_scatter",
                                           "all_to_all", "gather",     "scatter"};
  static_assert(std::size(kNames) == kCollectiveKinds);
  return kNames[static_cast<size_t>(kind)];
}

std::string CollectiveCall::text() const {
  std::string out = name_of(kind);
  if (kind == CollectiveKind::kBarrier) return out;
  out += count == kUneven ? std::string(" of ") : tw::text({" of ", count, " "});
  out += name_of(type);
  if (count == kUneven && kind != CollectiveKind::kAllToAll) out += " in uneven shares";
  if (reduces(kind)) out += std::string(", ") + name_of(op);
  if (has_root(kind))
    out += tw::text({", root ", root});
  else if (root != 0)
    out += tw::text(
        {", arrays side by side whose sizes have the digest ", static_cast<uint32_t>(root)});
  return out;
}

}  // namespace tw::collective
