// SPDX-License-Identifier: Apache-2.0
// For tests of what happens to descriptors, and without them.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <filesystem>
#include <iterator>

#include "base/fd.h"

namespace tw::test {

inline auto open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

// Lets this process open no more descriptors than it has.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit now = before_;
    const Fd next(open("/dev/null", O_RDONLY | O_CLOEXEC));  // the lowest that is free
    now.rlim_cur = static_cast<rlim_t>(next.get());
    REQUIRE(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace tw::test
