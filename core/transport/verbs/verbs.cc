// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace tw {
namespace {

constexpr uint32_t kChunksInFlight = 4;
constexpr uint32_t kBellEvents = EPOLLIN | EPOLLONESHOT;
constexpr uint32_t kSideEvents = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;

}  // namespace

VerbsTransport::VerbsTransport(Ref<verbs::Endpoint> endpoint, const verbs::Settings& settings)
    : profile_{"verbs",
               Bulk::kRead,
               settings.coalesce_bytes,
               settings.eager_bytes,
               settings.chunk_bytes,
               kChunksInFlight,
               true},
      endpoint_(std::move(endpoint)) {}

VerbsTransport::~VerbsTransport() {
  unwatch();
  endpoint_->leave(!gone());
}

// ---- moving ----

Result<size_t> VerbsTransport::send(std::span<const iovec> data) {
  if (gone()) return gone_status();
  auto sent = endpoint_->send(data);
  if (!sent || *sent != 0) return sent;
  // Room may have come in the meantime. The driver may be another thread, and asleep.
  endpoint_->poll(false);
  return endpoint_->send(data);
}

Result<size_t> VerbsTransport::receive(std::span<const iovec> room) {
  if (const size_t got = endpoint_->receive(room); got != 0) return got;
  // Read before the look at the completion queues: what a dead peer had sent is still to be had.
  const bool was_gone = gone();
  endpoint_->poll(true);
  if (const size_t got = endpoint_->receive(room); got != 0) return got;
  if (was_gone) return gone_status();
  if (Status failure = endpoint_->failure(); !failure.ok()) return failure;
  return size_t{0};
}

bool VerbsTransport::readable() {
  if (endpoint_->due() || gone()) return true;
  endpoint_->poll(true);
  return endpoint_->due();
}

// ---- sleeping ----

Wake VerbsTransport::sleep(bool want_send, Nanos deadline) {
  Wake result = Wake::kReady;
  sleeping_.store(true, std::memory_order_seq_cst);
  if (!interrupted_.load(std::memory_order_seq_cst) &&
      endpoint_->doze(verbs::Endpoint::Attention::kDriver, want_send)) {
    for (;;) {
      pollfd fds[2 + wire::kMaxPairs] = {{endpoint_->bell(), POLLIN, 0},
                                         {endpoint_->side(), POLLIN | POLLRDHUP, 0}};
      int channels[wire::kMaxPairs];
      const size_t count = endpoint_->prepare_sleep(channels);
      // It has found something, or somebody else has.
      if (!endpoint_->dozing()) break;
      for (size_t i = 0; i < count; ++i) fds[2 + i] = {channels[i], POLLIN, 0};
      const timespec limit = until(deadline);
      const int n = ppoll(fds, 2 + count, deadline == kForever ? nullptr : &limit, nullptr);
      if (n == 0) result = Wake::kTimeout;
      if (n < 0) result = Wake::kSignal;
      if (n > 0 && fds[1].revents != 0 && look_aside() == Meaning::kHungUp)
        peer_gone("the peer closed the connection");
      // A completion for somebody else on the same queue is handed out, and the sleep goes on.
      if (n <= 0 || fds[0].revents != 0 || fds[1].revents != 0) break;
    }
    endpoint_->end_sleep();
  }
  sleeping_.store(false, std::memory_order_relaxed);
  endpoint_->wake();
  // Acquires what the interrupter did before: the driver looks again once this returns.
  interrupted_.exchange(false, std::memory_order_acq_rel);
  return result;
}

void VerbsTransport::interrupt() {
  interrupted_.store(true, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst)) endpoint_->ring();
}

Status VerbsTransport::watch(Poller& poller, Ref<Watcher> watcher) {
  const MutexLock lock(watch_mutex_);
  auto bell = poller.watch(endpoint_->bell(), kBellEvents, watcher, kBell);
  if (!bell) return bell.status();
  poller_ = &poller;
  bell_watch_ = *bell;
  auto side = poller.watch(endpoint_->side(), kSideEvents, std::move(watcher), kSide);
  if (!side) return side.status();
  side_watch_ = *side;
  return {};
}

void VerbsTransport::unwatch() {
  Poller* poller;
  Poller::Watch bell, side;
  {
    const MutexLock lock(watch_mutex_);
    poller = std::exchange(poller_, nullptr);
    bell = bell_watch_;
    side = side_watch_;
  }
  if (!poller) return;
  poller->unwatch(bell, endpoint_->bell());
  if (side != 0) poller->unwatch(side, endpoint_->side());
}

void VerbsTransport::arm(bool want_send) {
  if (!endpoint_->doze(verbs::Endpoint::Attention::kBackground, want_send) || gone())
    endpoint_->ring();
  if (bell_heard_.exchange(false, std::memory_order_seq_cst)) {
    const MutexLock lock(watch_mutex_);
    if (poller_) poller_->rearm(bell_watch_, endpoint_->bell(), kBellEvents);
  }
  endpoint_->end_driving();
}

void VerbsTransport::disarm() {
  endpoint_->wake();
  endpoint_->begin_driving();
}

Transport::Meaning VerbsTransport::look_aside() {
  char byte;
  const ssize_t n = ::recv(endpoint_->side(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Meaning::kNone;
  if (n <= 0) return Meaning::kHungUp;
  peer_gone("protocol error: the peer writes to the connection beside its queue pairs");
  return Meaning::kActivity;
}

Transport::Meaning VerbsTransport::meaning(uint32_t tag, uint32_t) {
  if (tag == kBell) {
    // It goes on ringing until somebody drives: a driver who is asleep has to hear it, too.
    bell_heard_.store(true, std::memory_order_seq_cst);
    return Meaning::kActivity;
  }
  const Meaning seen = look_aside();
  if (seen == Meaning::kNone) {
    const MutexLock lock(watch_mutex_);
    if (poller_) poller_->rearm(side_watch_, endpoint_->side(), kSideEvents);
  }
  return seen;
}

void VerbsTransport::hang_up() { endpoint_->hang_up(!gone()); }

// ---- memory ----

void VerbsTransport::slabs_dropped() {
  std::erase_if(shared_, [this](const auto& entry) {
    if (!entry.second->dropped()) return false;
    endpoint_->withdraw(*entry.second);
    return true;
  });
}

Status VerbsTransport::share(Slab& slab) {
  const auto known = shared_.find(slab.index());
  if (known != shared_.end() && known->second.get() == &slab) return {};
  if (Status status = slab.shareable(); !status.ok()) return status;
  slabs_dropped();
  if (Status status = endpoint_->announce(slab); !status.ok()) return status;
  shared_.emplace(slab.index(), Ref<Slab>::share(&slab));
  return {};
}

Result<bool> VerbsTransport::fetch(uint64_t id, const RegionRef& from, std::byte* to) {
  if (gone()) return gone_status();
  return endpoint_->fetch(id, from, to);
}

size_t VerbsTransport::completed(std::span<Completion> out) {
  if (const size_t count = endpoint_->completed(out); count != 0) return count;
  endpoint_->poll(true);
  return endpoint_->completed(out);
}

Result<RemoteKey> VerbsTransport::expose(std::byte* data, size_t size, Rights rights) {
  if (gone()) return gone_status();
  return endpoint_->expose(data, size, rights);
}

Result<bool> VerbsTransport::start(const Operation& operation) {
  if (gone()) return gone_status();
  return endpoint_->start(operation);
}

size_t VerbsTransport::immediates(std::span<uint32_t> out) { return endpoint_->immediates(out); }

}  // namespace tw
