// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_call.h"

#include "base/text.h"

namespace tw::collective {

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
  }
  return "unknown";
}

std::string CollectiveCall::text() const {
  std::string out = name_of(kind);
  if (kind == CollectiveKind::kBarrier) return out;
  out += count == kUneven ? std::string(" of ") : tw::text({" of ", count, " "});
  out += name_of(type);
  if (count == kUneven && kind != CollectiveKind::kAllToAll) out += " in uneven shares";
  if (reduces(kind)) out += std::string(", ") + name_of(op);
  if (has_root(kind)) out += tw::text({", root ", root});
  return out;
}

}  // namespace tw::collective
