// SPDX-License-Identifier: Apache-2.0
#include "access/access.h"

#include "base/text.h"

namespace tw {

static_assert(wire::kRegionRights == (kMayRead | kMayWrite | kMayUpdate));
static_assert(static_cast<int>(wire::OperationKind::kRead) ==
              static_cast<int>(Operation::Kind::kRead));
static_assert(static_cast<int>(wire::OperationKind::kWrite) ==
              static_cast<int>(Operation::Kind::kWrite));
static_assert(static_cast<int>(wire::OperationKind::kWriteImmediate) ==
              static_cast<int>(Operation::Kind::kWriteImmediate));
static_assert(static_cast<int>(wire::OperationKind::kFetchAdd) ==
              static_cast<int>(Operation::Kind::kFetchAdd));
static_assert(static_cast<int>(wire::OperationKind::kCompareSwap) ==
              static_cast<int>(Operation::Kind::kCompareSwap));

Status no_such_region(uint64_t region) {
  return {Code::kNotFound,
          text({"no region ", region, " is exposed on this link; it may have been concealed"})};
}

Status check_access(wire::OperationKind kind, uint64_t offset, uint64_t length,
                    const wire::Region& region) {
  const bool update = wire::updates(kind);
  const Rights needed = update ? kMayUpdate : wire::writes(kind) ? kMayWrite : kMayRead;
  if ((region.rights & needed) == 0)
    return {Code::kPermissionDenied, text({"region ", region.id, " is not exposed for ",
                                           update                ? "atomic updates"
                                           : needed == kMayWrite ? "writing"
                                                                 : "reading"})};
  if (offset > region.length || length > region.length - offset)
    return {Code::kOutOfRange, text({length, " bytes at offset ", offset, " are not inside region ",
                                     region.id, " of ", region.length, " bytes"})};
  if (update && offset % sizeof(uint64_t) != 0)
    return {Code::kInvalidArgument,
            text({"an atomic needs an offset that is a multiple of 8, not ", offset})};
  return {};
}

Status check_signal(const Signal& signal, const wire::Region& region) {
  if (signal.offset % sizeof(uint64_t) != 0)
    return {Code::kInvalidArgument,
            text({"a signal needs an offset that is a multiple of 8, not ", signal.offset})};
  uint64_t word;
  return check_access(request_of(signal, &word), region);
}

Status check_access(const AccessRequest& request, const wire::Region& region) {
  if (request.count == 1) return check_access(request.kind, request.offset, request.length, region);
  if (wire::updates(request.kind) || request.kind == wire::OperationKind::kWriteImmediate)
    return {Code::kInvalidArgument, "atomics and writes with immediate are of one run"};
  uint64_t extent;
  if (request.count == 0 || __builtin_mul_overflow(request.count - 1, request.stride, &extent) ||
      __builtin_add_overflow(extent, request.length, &extent))
    return {Code::kOutOfRange, text({request.count, " runs of ", request.length, " bytes, each ",
                                     request.stride, " after the one before"})};
  return check_access(request.kind, request.offset, extent, region);
}

}  // namespace tw
