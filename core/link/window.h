// SPDX-License-Identifier: Apache-2.0
// Byte credit of one stream in one direction. A message may start while the credit is positive and
// may take it below zero, so that a message larger than the window passes, alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tw {

// What a queued message costs beyond its payload, so that empty ones are bounded too.
inline constexpr size_t kMessageOverhead = 64;

inline size_t window_cost(size_t payload_bytes) { return payload_bytes + kMessageOverhead; }

// Thread-safe. Who spends has been told that it is open; where several threads send, they take
// turns from the question to the payment.
class SendWindow {
 public:
  explicit SendWindow(size_t initial) : credit_(static_cast<int64_t>(initial)) {}
  bool open() const { return credit_.load(std::memory_order_acquire) > 0; }
  void spend(size_t payload_bytes) { credit_ -= static_cast<int64_t>(window_cost(payload_bytes)); }
  // The peer will not see the message, and so grants nothing for it.
  void refund(size_t payload_bytes) { credit_ += static_cast<int64_t>(window_cost(payload_bytes)); }
  // False when a peer grants more than it can ever have taken.
  bool grant(uint64_t bytes) {
    constexpr int64_t most = int64_t{1} << 62;
    if (bytes > uint64_t{1} << 62) return false;
    int64_t credit = credit_.load(std::memory_order_relaxed);
    do {
      if (credit > most - static_cast<int64_t>(bytes)) return false;
    } while (!credit_.compare_exchange_weak(credit, credit + static_cast<int64_t>(bytes)));
    return true;
  }

 private:
  std::atomic<int64_t> credit_;
};

class ReceiveWindow {
 public:
  explicit ReceiveWindow(size_t window) : window_(static_cast<int64_t>(window)), credit_(window_) {}
  // False when the peer sent without credit.
  bool arrive(size_t payload_bytes) {
    if (credit_ <= 0) return false;
    credit_ -= static_cast<int64_t>(window_cost(payload_bytes));
    return true;
  }
  int64_t credit() const { return credit_; }
  // A message was taken by the user: the bytes to grant now, 0 while they are too few for a frame.
  uint64_t consume(size_t payload_bytes) {
    due_ += static_cast<int64_t>(window_cost(payload_bytes));
    if (due_ < window_ / 4) return 0;
    const int64_t grant = due_;
    due_ = 0;
    credit_ += grant;
    return static_cast<uint64_t>(grant);
  }

 private:
  const int64_t window_;
  int64_t credit_;
  int64_t due_ = 0;
};

}  // namespace tw
