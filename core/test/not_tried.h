// SPDX-License-Identifier: Apache-2.0
// What a test needs and this host, or this build, does not have. A test that returns for that says
// so, and the program's end lists it: nobody takes it for a test that has passed.
#pragma once

#include <string>

namespace tw::test {

// The running case, or what is left of it, is not tried, because of `why`.
void not_tried(const std::string& why);

}  // namespace tw::test
