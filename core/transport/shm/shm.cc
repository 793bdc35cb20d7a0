#include "transport/shm/shm.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>

#include "engine/futex.h"

namespace tw {
namespace {

Result<MemoryMap> map_rings(int fd, size_t capacity) {
  return MemoryMap::map(fd, ring_memory_size(capacity), PROT_READ | PROT_WRITE, MAP_SHARED);
}

void write_bell(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(fd, &one, sizeof one);
}

// An eventfd of the peer's making is written without blocking, whatever the peer does to it.
bool make_non_blocking(int fd) { return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0; }

}  // namespace

Result<std::unique_ptr<Transport>> ShmTransport::offer(Fd socket, const Settings& settings) {
  const size_t capacity = ring_capacity(settings.ring_bytes);
  auto file = make_memfd("tensorwire-rings", ring_memory_size(capacity));
  if (!file) return file.status();
  if (Status status = seal_memfd(file->get(), kSharedSeals); !status.ok()) return status;
  auto memory = map_rings(file->get(), capacity);
  if (!memory) return memory.status();
  Fd mine(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), theirs(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!mine || !theirs)
    return errno_status(Code::kResourceExhausted, "cannot create an eventfd", errno);
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kRings;
  frame.size = capacity;
  const int descriptors[] = {file->get(), mine.get(), theirs.get()};
  if (Status status = send_shm_frame(socket.get(), frame, descriptors); !status.ok()) return status;
  return std::unique_ptr<Transport>(new ShmTransport(std::move(socket), std::move(*memory),
                                                     capacity, 0, std::move(mine),
                                                     std::move(theirs), settings));
}

Result<std::unique_ptr<Transport>> ShmTransport::accept(Fd socket, ShmMessage rings,
                                                        const Settings& settings) {
  const size_t capacity = rings.frame.size;
  if (rings.frame.type != wire::ShmFrameType::kRings || !valid_ring_capacity(capacity))
    return Status{Code::kInternal, "protocol error: a shared-memory link begins without rings"};
  if (Status status =
          check_memfd(rings.descriptors[0].get(), ring_memory_size(capacity), kSharedSeals, O_RDWR);
      !status.ok())
    return status;
  auto memory = map_rings(rings.descriptors[0].get(), capacity);
  if (!memory) return memory.status();
  Fd theirs = std::move(rings.descriptors[1]), mine = std::move(rings.descriptors[2]);
  if (!make_non_blocking(theirs.get()) || !make_non_blocking(mine.get()))
    return errno_status(Code::kInternal, "a doorbell from the peer is unusable", errno);
  return std::unique_ptr<Transport>(new ShmTransport(std::move(socket), std::move(*memory),
                                                     capacity, 1, std::move(mine),
                                                     std::move(theirs), settings));
}

ShmTransport::ShmTransport(Fd socket, MemoryMap memory, size_t capacity, int side, Fd bell,
                           Fd peer_bell, const Settings& settings)
    : profile_{
          "shm", Bulk::kMap, settings.coalesce_bytes, settings.eager_bytes, settings.chunk_bytes,
          1},
      socket_(std::move(socket)),
      memory_(std::move(memory)),
      bell_(std::move(bell)),
      peer_bell_(std::move(peer_bell)),
      rings_(open_rings(memory_.data(), capacity, side)),
      peer_arena_(make_ref<PeerArena>()) {}

ShmTransport::~ShmTransport() { unwatch(); }

Status ShmTransport::gone_status() {
  std::lock_guard lock(gone_mutex_);
  return {Code::kUnavailable, why_};
}

void ShmTransport::ring_peer(Sleeper sleeper) {
  if (sleeper == Sleeper::kBackground) write_bell(peer_bell_.get());
  if (sleeper == Sleeper::kDriver) futex_wake(rings_.peer_sleep_word(), 1, FutexScope::kShared);
}

// ---- moving ----

Result<size_t> ShmTransport::send(std::span<const iovec> data) {
  if (gone_.load(std::memory_order_acquire)) return gone_status();
  auto written = rings_.write(data);
  if (written && *written != 0) {
    trace_send(*written);
    ring_peer(rings_.after_write());
  }
  return written;
}

Result<size_t> ShmTransport::receive(std::span<const iovec> room) {
  // Read before the look at the ring: what a dead peer had written is still to be had.
  const bool gone = gone_.load(std::memory_order_acquire);
  auto got = rings_.read(room);
  if (!got) return got;
  if (*got != 0) {
    ring_peer(rings_.after_read());
    return got;
  }
  if (gone) return gone_status();
  return got;
}

bool ShmTransport::readable() { return rings_.readable() || gone_.load(std::memory_order_relaxed); }

// ---- sleeping ----

Wake ShmTransport::sleep(bool, Nanos deadline) {
  ring_peer(rings_.after_read());
  if (!rings_.prepare_sleep(Sleeper::kDriver)) return Wake::kReady;
  Wake result = Wake::kReady;
  if (!interrupted_.load(std::memory_order_seq_cst)) {
    switch (futex_wait(rings_.sleep_word(), static_cast<uint32_t>(Sleeper::kDriver), deadline,
                       FutexScope::kShared)) {
      case FutexWait::kWoken:
        break;
      case FutexWait::kTimeout:
        result = Wake::kTimeout;
        break;
      case FutexWait::kSignal:
        result = Wake::kSignal;
        break;
    }
  }
  rings_.awake();
  // Acquires what the interrupter did before: the driver looks again once this returns.
  interrupted_.exchange(false, std::memory_order_acq_rel);
  return result;
}

void ShmTransport::interrupt() {
  interrupted_.store(true, std::memory_order_seq_cst);
  // The word of a sleeping driver only: the background's must stay.
  auto word = static_cast<uint32_t>(Sleeper::kDriver);
  if (rings_.sleep_word().compare_exchange_strong(word, 0, std::memory_order_seq_cst))
    futex_wake(rings_.sleep_word(), 1, FutexScope::kShared);
}

Status ShmTransport::watch(Poller& poller, Ref<Watcher> watcher) {
  std::lock_guard lock(watch_mutex_);
  auto bell = poller.watch(bell_.get(), EPOLLIN, watcher, kBell);
  if (!bell) return bell.status();
  auto control =
      poller.watch(socket_.get(), EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, watcher, kControl);
  if (!control) {
    poller.unwatch(*bell, bell_.get());
    return control.status();
  }
  poller_ = &poller;
  bell_watch_ = *bell;
  control_watch_ = *control;
  return {};
}

void ShmTransport::unwatch() {
  Poller* poller;
  {
    std::lock_guard lock(watch_mutex_);
    poller = std::exchange(poller_, nullptr);
  }
  if (!poller) return;
  poller->unwatch(bell_watch_, bell_.get());
  poller->unwatch(control_watch_, socket_.get());
}

void ShmTransport::arm(bool) {
  ring_peer(rings_.after_read());
  if (!rings_.prepare_sleep(Sleeper::kBackground) || gone_.load(std::memory_order_acquire))
    write_bell(bell_.get());
}

void ShmTransport::disarm() { rings_.awake(); }

Transport::Notice ShmTransport::notice(uint32_t tag, uint32_t) {
  if (tag == kBell) {
    uint64_t value;
    [[maybe_unused]] const ssize_t n = ::read(bell_.get(), &value, sizeof value);
    return Notice::kActivity;
  }
  auto open = take_announcements();
  if (!open) {
    peer_gone(open.status().details());
    return Notice::kActivity;
  }
  if (!*open) return Notice::kHungUp;
  std::lock_guard lock(watch_mutex_);
  if (poller_) poller_->rearm(control_watch_, socket_.get(), EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
  return Notice::kNone;
}

void ShmTransport::peer_gone(std::string why) {
  {
    std::lock_guard lock(gone_mutex_);
    if (why_.empty()) why_ = std::move(why);
  }
  gone_.store(true, std::memory_order_release);
  interrupt();
}

void ShmTransport::hang_up() { ::shutdown(socket_.get(), SHUT_RDWR); }

// ---- memory ----

// What the arena has given up goes back to the system once the peer lets go of it too.
Status ShmTransport::take_back() {
  for (auto it = shared_.begin(); it != shared_.end();) {
    if (!it->second->dropped()) {
      ++it;
      continue;
    }
    wire::ShmFrame gone;
    gone.type = wire::ShmFrameType::kSlabGone;
    gone.slab = it->second->index();
    gone.generation = it->second->generation();
    if (Status status = send_shm_frame(socket_.get(), gone, {}); !status.ok()) return status;
    it = shared_.erase(it);
  }
  return {};
}

Status ShmTransport::share(Slab& slab) {
  auto known = shared_.find(slab.index());
  if (known != shared_.end() && known->second.get() == &slab) return {};
  if (Status status = take_back(); !status.ok()) return status;
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kSlab;
  frame.slab = slab.index();
  frame.generation = slab.generation();
  frame.size = slab.size();
  const int descriptors[] = {slab.fd()};
  if (Status status = send_shm_frame(socket_.get(), frame, descriptors); !status.ok())
    return status;
  shared_.emplace(slab.index(), Ref<Slab>::share(&slab));
  return {};
}

Result<bool> ShmTransport::take_announcements() {
  std::lock_guard lock(control_mutex_);
  for (;;) {
    ShmMessage message;
    auto got = reader_.read(socket_.get(), message);
    if (!got) return got.status();
    if (*got == ShmFrameReader::Got::kNothing) return true;
    if (*got == ShmFrameReader::Got::kEnd) return false;
    const wire::ShmFrame& frame = message.frame;
    Status status;
    switch (frame.type) {
      case wire::ShmFrameType::kRings:
        return Status{Code::kInternal, "protocol error: rings were offered twice"};
      case wire::ShmFrameType::kSlab:
        status = peer_arena_->add(std::move(message.descriptors[0]),
                                  {frame.slab, frame.generation, frame.size});
        break;
      case wire::ShmFrameType::kSlabGone:
        status = peer_arena_->drop(frame.slab, frame.generation);
        break;
    }
    if (!status.ok()) return status;
  }
}

Result<Located> ShmTransport::locate(const RegionRef& region) {
  auto located = peer_arena_->locate(region);
  if (located) return located;
  // The announcement precedes the descriptor, on its own way.
  if (auto open = take_announcements(); !open) return open.status();
  return peer_arena_->locate(region);
}

}  // namespace tw
