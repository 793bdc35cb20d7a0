// SPDX-License-Identifier: Apache-2.0
// A tcp connection whose end is a link's end.
#pragma once

#include "base/clock.h"

namespace tw {

// A peer host that vanishes without a word is noticed after about `silence`, which is a second at
// least: a few of the kernel's probes go unanswered. The kernel sends none while it waits for an
// acknowledgement of data: Transport::host_answer() tells of that.
void keep_alive(int socket, Nanos silence);

}  // namespace tw
