// SPDX-License-Identifier: Apache-2.0
// Which process this is, and on which kernel: what tells two processes of one host from others.
#pragma once

#include <array>
#include <cstdint>

namespace tw {

struct Identity {
  std::array<uint8_t, 16> boot_id{};  // of the kernel; zero when unknown
  uint64_t pid_namespace = 0;         // inode; zero when unknown
  uint32_t pid = 0;
  uint32_t uid = 0;  // effective
};

// Takes some system calls, and opens files the first time that a thread asks.
Identity read_identity();

}  // namespace tw
