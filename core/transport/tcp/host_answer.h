// SPDX-License-Identifier: Apache-2.0
// What the kernel knows of the host at the other end of a connection.
#pragma once

#include "transport/transport.h"

namespace tw::tcp {

// Whether both ends have one address: no cable lies between them.
bool reaches_itself(int socket);

// Linux before 5.4 does not tell what room the peer has, and that counts as none.
HostAnswer host_answer(int socket);

}  // namespace tw::tcp
