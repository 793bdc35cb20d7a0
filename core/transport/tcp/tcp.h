// SPDX-License-Identifier: Apache-2.0
// TCP: vectored sends straight from the tensor, receives straight into the final buffer.
#pragma once

#include <atomic>
#include <memory>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/unshared.h"
#include "transport/tcp/settings.h"
#include "transport/transport.h"

namespace tw {

class TcpTransport final : public Transport {
 public:
  // Takes over a connected socket. `same_host`: the congestion control that suits loopback is set
  // (docs/threads.md, "TCP").
  static Result<std::unique_ptr<Transport>> create(Fd socket, bool same_host,
                                                   const tcp::Settings& settings);
  ~TcpTransport() override;

  const Profile& profile() const override { return profile_; }
  Result<size_t> send(std::span<const iovec> data) override;
  bool undelivered() override;
  std::optional<HostAnswer> host_answer() override;
  Result<size_t> receive(std::span<const iovec> room) override;
  bool readable() override { return true; }
  Wake sleep(bool want_send, Nanos deadline) override;
  void interrupt() override;
  Status watch(Poller& poller, Ref<Watcher> watcher) override;
  void unwatch() override;
  void arm(bool want_send) override;
  void disarm() override;
  Meaning meaning(uint32_t tag, uint32_t events) override;
  void hang_up() override;

 private:
  TcpTransport(Fd socket, Fd wake, const tcp::Settings& settings);

  const UnsharedFd socket_;
  const Fd wake_;  // ends sleep()
  const bool abroad_;
  const Profile profile_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> sleeping_{false};
  Poller* poller_ = nullptr;  // set once by watch(), before the link is used
  Poller::Watch watch_ = 0;
  std::atomic<bool> armed_{false};
};

// The congestion control that same-host links get, by TENSORWIRE_TCP_CONGESTION and what the kernel
// permits.
std::string same_host_congestion(const tcp::Settings& settings);

}  // namespace tw
