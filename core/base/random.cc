// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

namespace tw {

Status fill_random(std::span<uint8_t> out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(Code::kUnavailable, "getrandom", errno);
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

}  // namespace tw
