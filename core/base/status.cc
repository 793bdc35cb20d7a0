// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <system_error>

namespace tw {

Status errno_status(Code code, std::string_view what, int error) {
  std::string text(what);
  text += ": ";
  text += std::generic_category().message(error);
  return {code, std::move(text)};
}

}  // namespace tw
