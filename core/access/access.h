// SPDX-License-Identifier: Apache-2.0
// What an operation on an exposed region has to keep to. The initiator checks it against what was
// announced, and the target against what it exposed: an honest mistake never leaves the process.
#pragma once

#include "access/request.h"
#include "transport/transport.h"
#include "wire/one_sided_frames.h"

namespace tw {

// Unknown and concealed regions are not told apart.
Status no_such_region(uint64_t region);

// INVALID_ARGUMENT: an atomic that is not aligned. PERMISSION_DENIED: the right is missing.
// OUT_OF_RANGE: bytes outside of the region.
Status check_access(wire::OperationKind kind, uint64_t offset, uint64_t length,
                    const wire::Region& region);
// Of a word that is set or added to.
Status check_signal(const Signal& signal, const wire::Region& region);
// Of all its runs.
Status check_access(const AccessRequest& request, const wire::Region& region);

}  // namespace tw
