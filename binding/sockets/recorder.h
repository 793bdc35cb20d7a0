// SPDX-License-Identifier: Apache-2.0
// Notes what this process sends on its sockets, where the environment asks for it.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "record.h"

namespace tensorwire::sockets {

// Of CLOCK_MONOTONIC; 0 where nothing is recorded, so that a call costs no more than this.
uint64_t begin();

// A call that began then has returned `taken`. Safe in signal handlers and in all threads: it
// allocates nothing and waits for nothing. Keeps errno.
void note(uint64_t time, int descriptor, Function function, const iovec* parts, size_t count,
          int flags, ssize_t taken);

}  // namespace tensorwire::sockets
