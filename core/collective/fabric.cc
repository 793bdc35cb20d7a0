// SPDX-License-Identifier: Apache-2.0
#include "collective/fabric.h"

namespace tw::collective {

Status run_on(Fabric& fabric, const CollectiveCall& call, const std::byte* in, std::byte* out,
              const Wait& wait) {
  switch (call.kind) {
    case CollectiveKind::kBarrier:
      return fabric.barrier(call, wait);
    case CollectiveKind::kAllReduce:
      return fabric.all_reduce(call, in, out, wait);
    case CollectiveKind::kReduce:
      return fabric.reduce(call, in, out, wait);
    case CollectiveKind::kBroadcast:
      return fabric.broadcast(call, out, wait);
    case CollectiveKind::kAllGather:
      return fabric.all_gather(call, in, out, wait);
    case CollectiveKind::kReduceScatter:
      return fabric.reduce_scatter(call, in, out, wait);
    case CollectiveKind::kGather:
      return fabric.gather(call, in, out, wait);
    case CollectiveKind::kScatter:
      return fabric.scatter(call, in, out, wait);
    case CollectiveKind::kAllToAll:
      break;
  }
  return {Code::kInvalidArgument, "not an operation"};
}

}  // namespace tw::collective
