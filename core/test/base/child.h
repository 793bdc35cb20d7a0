// SPDX-License-Identifier: Apache-2.0
// A forked child that has what its parent had.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tw::test {

// Lives as long as this, and does nothing.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0)
      for (;;) pause();
    REQUIRE(pid_ > 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
};

}  // namespace tw::test
