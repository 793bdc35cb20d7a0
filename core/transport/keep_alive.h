// SPDX-License-Identifier: Apache-2.0
// A tcp connection whose end is a link's end.
#pragma once

namespace tw {

// A peer host that vanishes without a word is noticed after about half a minute.
void keep_alive(int socket);

}  // namespace tw
