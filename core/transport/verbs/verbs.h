// SPDX-License-Identifier: Apache-2.0
// RDMA: SENDs for what is small, RDMA READs from the sender's arena for what is large, and a tcp
// connection beside the queue pairs, whose end is the link's end.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "transport/transport.h"
#include "transport/verbs/endpoint.h"

namespace tw {

class VerbsTransport final : public Transport {
 public:
  // Takes over a connected endpoint; verbs::Joining makes one.
  VerbsTransport(Ref<verbs::Endpoint> endpoint, const verbs::Settings& settings);
  ~VerbsTransport() override;

  const Profile& profile() const override { return profile_; }
  Result<size_t> send(std::span<const iovec> data) override;
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
  Status share(Slab& slab) override;
  void slabs_dropped() override;
  Result<bool> fetch(uint64_t id, const RegionRef& from, std::byte* to) override;
  size_t completed(std::span<Completion> out) override;
  void revoke() override { endpoint_->revoke(!gone()); }
  void set_trace(Trace& trace) override { endpoint_->set_trace(trace); }
  TransportFacts facts() const override { return endpoint_->facts(); }
  Result<RemoteKey> expose(std::byte* data, size_t size, Rights rights) override;
  void conceal(const RemoteKey& key) override { endpoint_->conceal(key); }
  Result<bool> start(const Operation& operation) override;
  size_t immediates(std::span<uint32_t> out) override;

 private:
  static constexpr uint32_t kBell = 1;
  static constexpr uint32_t kSide = 2;

  // What the side connection has to say: kHungUp, kActivity (a stray byte: the peer is dropped) or
  // nothing.
  Meaning look_aside();

  const Profile profile_;
  const Ref<verbs::Endpoint> endpoint_;

  std::atomic<bool> interrupted_{false};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> bell_heard_{false};  // by the background, which listens once

  std::map<uint32_t, Ref<Slab>> shared_;  // by index; send lock

  Mutex watch_mutex_;  // guards what follows: events may come while watch() is still at it
  Poller* poller_ TW_GUARDED_BY(watch_mutex_) = nullptr;
  Poller::Watch bell_watch_ TW_GUARDED_BY(watch_mutex_) = 0;
  Poller::Watch side_watch_ TW_GUARDED_BY(watch_mutex_) = 0;
};

}  // namespace tw
