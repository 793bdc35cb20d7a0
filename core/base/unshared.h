// SPDX-License-Identifier: Apache-2.0
// A descriptor whose other end watches whether this process lives: no forked child holds it open.
#pragma once

#include <utility>

#include "base/fd.h"

namespace tw {

// In a child it is something that nobody is at the other end of, under the same number: what the
// parent's objects know by that is nobody else's.
class UnsharedFd {
 public:
  UnsharedFd() = default;
  explicit UnsharedFd(Fd fd) : fd_(std::move(fd)) { mark(true); }
  UnsharedFd(UnsharedFd&&) noexcept = default;
  UnsharedFd& operator=(UnsharedFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::move(other.fd_);
    }
    return *this;
  }
  ~UnsharedFd() { reset(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset() {
    mark(false);
    fd_.reset();
  }

 private:
  void mark(bool on);

  Fd fd_;
};

}  // namespace tw
