// SPDX-License-Identifier: Apache-2.0
#include "transport/loop/loop.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tw {
namespace {

Status closed() { return {Code::kUnavailable, "the peer closed the connection"}; }

}  // namespace

Result<Ref<LoopWires>> LoopWires::create() {
  auto wires = make_ref<LoopWires>();
  for (Fd& bell : wires->bells_) {
    bell = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!bell) return errno_status(Code::kResourceExhausted, "cannot create an eventfd", errno);
  }
  return wires;
}

void LoopWires::close() {
  for (auto& pipe : pipes_) {
    const MutexLock lock(pipe.mutex);
    pipe.closed = true;
  }
  const uint64_t one = 1;
  for (const Fd& bell : bells_) {
    [[maybe_unused]] const ssize_t n = ::write(bell.get(), &one, sizeof one);
  }
}

LoopTransport::LoopTransport(Ref<LoopWires> wires, size_t side, const Settings& settings)
    : wires_(std::move(wires)),
      side_(side),
      profile_{"loop",
               Bulk::kPush,
               settings.coalesce_bytes,
               settings.eager_bytes,
               std::min<size_t>(settings.chunk_bytes, 1 << 20),
               1} {}

LoopTransport::~LoopTransport() {
  unwatch();
  hang_up();
}

void LoopTransport::ring(size_t side) const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wires_->bells_[side].get(), &one, sizeof one);
}

void LoopTransport::silence() const {
  uint64_t value;
  [[maybe_unused]] const ssize_t n = ::read(wires_->bells_[side_].get(), &value, sizeof value);
}

Result<size_t> LoopTransport::send(std::span<const iovec> data) {
  if (gone()) return gone_status();
  size_t taken = 0;
  {
    auto& [mutex, bytes, begin, size, is_closed] = out();
    const MutexLock lock(mutex);
    if (is_closed) return closed();
    for (const iovec& run : data) {
      const auto* from = static_cast<const std::byte*>(run.iov_base);
      for (size_t left = run.iov_len; left != 0 && size != bytes.size();) {
        const size_t at = (begin + size) % bytes.size();
        const size_t n = std::min({left, bytes.size() - size, bytes.size() - at});
        std::memcpy(bytes.data() + at, from, n);
        from += n;
        left -= n;
        size += n;
        taken += n;
      }
    }
  }
  if (taken == 0) return taken;
  trace_send(taken);
  ring(1 - side_);
  return taken;
}

bool LoopTransport::untaken() {
  const MutexLock lock(out().mutex);
  return out().size != 0;
}

Result<size_t> LoopTransport::receive(std::span<const iovec> room) {
  size_t got = 0;
  bool was_full, ended;
  {
    auto& [mutex, bytes, begin, size, is_closed] = in();
    const MutexLock lock(mutex);
    was_full = size == bytes.size();
    ended = is_closed;
    for (const iovec& run : room) {
      auto* to = static_cast<std::byte*>(run.iov_base);
      for (size_t left = run.iov_len; left != 0 && size != 0;) {
        const size_t n = std::min({left, size, bytes.size() - begin});
        std::memcpy(to, bytes.data() + begin, n);
        to += n;
        left -= n;
        size -= n;
        begin = (begin + n) % bytes.size();
        got += n;
      }
    }
  }
  if (got != 0) {
    if (was_full) ring(1 - side_);
    return got;
  }
  if (gone()) return gone_status();
  if (ended) return closed();
  return got;
}

bool LoopTransport::readable() {
  const MutexLock lock(in().mutex);
  return in().size != 0 || in().closed;
}

// Whether receive(), or send() if it is wanted, is worth trying.
bool LoopTransport::may_go_on(bool want_send) const {
  if (gone()) return true;
  {
    const MutexLock lock(in().mutex);
    if (in().size != 0 || in().closed) return true;
  }
  if (!want_send) return false;
  const MutexLock lock(out().mutex);
  return out().size != out().bytes.size();
}

// In this order: whatever happens after the bell was silenced rings it again.
Wake LoopTransport::sleep(bool want_send, Nanos deadline) {
  silence();
  if (interrupted_.exchange(false, std::memory_order_acq_rel) || may_go_on(want_send))
    return Wake::kReady;
  pollfd bell{wires_->bells_[side_].get(), POLLIN, 0};
  const timespec limit = until(deadline);
  const int n = ppoll(&bell, 1, deadline == kForever ? nullptr : &limit, nullptr);
  interrupted_.store(false, std::memory_order_release);
  if (n == 0) return Wake::kTimeout;
  return n < 0 ? Wake::kSignal : Wake::kReady;
}

void LoopTransport::interrupt() {
  interrupted_.store(true, std::memory_order_release);
  ring(side_);
}

Status LoopTransport::watch(Poller& poller, Ref<Watcher> watcher) {
  auto watched = poller.watch(wires_->bells_[side_].get(), EPOLLONESHOT, std::move(watcher));
  if (!watched) return watched.status();
  poller_ = &poller;
  watch_ = *watched;
  return {};
}

void LoopTransport::unwatch() {
  if (poller_) std::exchange(poller_, nullptr)->unwatch(watch_, wires_->bells_[side_].get());
}

void LoopTransport::arm(bool want_send) {
  silence();
  armed_.store(true, std::memory_order_relaxed);
  if (poller_) poller_->rearm(watch_, wires_->bells_[side_].get(), EPOLLIN | EPOLLONESHOT);
  if (interrupted_.exchange(false, std::memory_order_acq_rel) || may_go_on(want_send)) ring(side_);
}

void LoopTransport::disarm() {
  if (armed_.exchange(false, std::memory_order_relaxed) && poller_)
    poller_->rearm(watch_, wires_->bells_[side_].get(), EPOLLONESHOT);
}

Transport::Meaning LoopTransport::meaning(uint32_t, uint32_t) {
  armed_.store(false, std::memory_order_relaxed);
  return Meaning::kActivity;
}

void LoopTransport::hang_up() { wires_->close(); }

}  // namespace tw
