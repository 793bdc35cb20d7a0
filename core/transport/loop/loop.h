// SPDX-License-Identifier: Apache-2.0
// Two ends in one process: byte pipes in its memory. For tests, and the smallest example of a
// transport.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "transport/transport.h"

namespace tw {

// What both ends share.
class LoopWires final : public RefCounted {
 public:
  // RESOURCE_EXHAUSTED.
  static Result<Ref<LoopWires>> create();

  // For both ends: what is in the pipes is still received, and nothing more sent.
  void close();

 private:
  friend class LoopTransport;
  static constexpr size_t kPipeBytes = 64 << 10;

  // From one end to the other.
  struct Pipe {
    mutable Mutex mutex;  // guards what follows; no other lock is taken inside
    std::vector<std::byte> bytes TW_GUARDED_BY(mutex) = std::vector<std::byte>(kPipeBytes);
    size_t begin TW_GUARDED_BY(mutex) = 0;
    size_t size TW_GUARDED_BY(mutex) = 0;
    bool closed TW_GUARDED_BY(mutex) = false;  // by either end: what is in it is still received
  };
  std::array<Pipe, 2> pipes_;
  std::array<Fd, 2> bells_;  // an eventfd of each end: the other one did something
};

class LoopTransport final : public Transport {
 public:
  // side: 0 or 1; one transport for each.
  LoopTransport(Ref<LoopWires> wires, size_t side, const Settings& settings);
  ~LoopTransport() override;

  const Profile& profile() const override { return profile_; }
  Result<size_t> send(std::span<const iovec> data) override;
  bool untaken() override;
  Result<size_t> receive(std::span<const iovec> room) override;
  bool readable() override;
  Wake sleep(bool want_send, Nanos deadline) override;
  void interrupt() override;
  Status watch(Poller& poller, Ref<Watcher> watcher) override;
  void unwatch() override;
  void arm(bool want_send) override;
  void disarm() override;
  Meaning meaning(uint32_t tag, uint32_t events) override;
  void hang_up() override;

 private:
  LoopWires::Pipe& out() const { return wires_->pipes_[side_]; }
  LoopWires::Pipe& in() const { return wires_->pipes_[1 - side_]; }
  bool may_go_on(bool want_send) const;
  void ring(size_t side) const;
  void silence() const;

  const Ref<LoopWires> wires_;
  const size_t side_;
  const Profile profile_;
  std::atomic<bool> interrupted_{false};
  Poller* poller_ = nullptr;  // set once by watch(), before the link is used
  Poller::Watch watch_ = 0;
  std::atomic<bool> armed_{false};
};

}  // namespace tw
