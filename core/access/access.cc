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

}  // namespace tw
