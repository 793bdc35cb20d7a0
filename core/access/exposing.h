// SPDX-License-Identifier: Apache-2.0
// What a device lets the peer at, until there is a grant that takes it back: where there is no
// memory for one, the caller's memory is its own again at once.
#pragma once

#include "base/shortage.h"
#include "transport/transport.h"

namespace tw {

class Exposing {
 public:
  // Null: no device lets the peer at it.
  Exposing(Transport* device, const RemoteKey& key) : device_(device), key_(key) {}
  ~Exposing() {
    if (!device_) return;
    const Shortage shortage;
    device_->conceal(key_);
  }
  Exposing(const Exposing&) = delete;
  Exposing& operator=(const Exposing&) = delete;
  void done() { device_ = nullptr; }

 private:
  Transport* device_;
  const RemoteKey key_;
};

}  // namespace tw
