// SPDX-License-Identifier: Apache-2.0
// Sees when a slab has gone, without a reference to it: its file is closed then.
#pragma once

#include <sys/stat.h>

#include <optional>

#include "memory/slab.h"

namespace tw::test {

class SlabWatch {
 public:
  explicit SlabWatch(const Slab& slab) : fd_(slab.fd()), inode_(inode()) {}
  bool gone() const { return inode() != inode_; }

 private:
  std::optional<ino_t> inode() const {
    struct stat found{};
    if (fstat(fd_, &found) != 0) return {};
    return found.st_ino;
  }

  const int fd_;
  const std::optional<ino_t> inode_;
};

}  // namespace tw::test
