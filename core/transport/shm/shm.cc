// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "engine/futex.h"
#include "wire/bytes.h"

namespace tw {
namespace {

// Where nobody says otherwise: above it, to lend a segment costs less than to copy it twice, into
// the ring and out of it.
constexpr size_t kEagerBytes = 8 << 10;

Result<MemoryMap> map_rings(int fd, size_t capacity) {
  return MemoryMap::map(fd, ring_memory_size(capacity), PROT_READ | PROT_WRITE, MAP_SHARED);
}

Result<Fd> make_nudge() {
  Fd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return errno_status(Code::kResourceExhausted, "cannot create an eventfd", errno);
  return fd;
}

Status no_descriptor() {
  return {Code::kResourceExhausted,
          "there was no descriptor left for it: raise the limit of open files (ulimit -n)"};
}

}  // namespace

Result<std::unique_ptr<Transport>> ShmTransport::offer(Fd socket, const shm::Settings& settings) {
  const size_t capacity = ring_capacity(settings.ring_bytes);
  auto file = make_memfd("tensorwire-rings", ring_memory_size(capacity));
  if (!file) return file.status();
  if (Status status = seal_memfd(file->get(), kSharedSeals); !status.ok()) return status;
  auto memory = map_rings(file->get(), capacity);
  if (!memory) return memory.status();
  auto nudge = make_nudge();
  if (!nudge) return nudge.status();
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kRings;
  frame.size = capacity;
  const int descriptors[] = {file->get()};
  if (Status status = send_shm_frame(socket.get(), frame, descriptors); !status.ok()) return status;
  return std::unique_ptr<Transport>(new ShmTransport(std::move(socket), std::move(*memory),
                                                     capacity, 0, std::move(*nudge), settings));
}

Result<std::unique_ptr<Transport>> ShmTransport::accept(Fd socket, ShmMessage rings,
                                                        const shm::Settings& settings) {
  const size_t capacity = rings.frame.size;
  if (rings.frame.type != wire::ShmFrameType::kRings || !valid_ring_capacity(capacity))
    return Status{Code::kInternal, "protocol error: a shared-memory link begins without rings"};
  if (Status status =
          check_memfd(rings.descriptors[0].get(), ring_memory_size(capacity), kSharedSeals, O_RDWR);
      !status.ok())
    return status;
  auto memory = map_rings(rings.descriptors[0].get(), capacity);
  if (!memory) return memory.status();
  auto nudge = make_nudge();
  if (!nudge) return nudge.status();
  return std::unique_ptr<Transport>(new ShmTransport(std::move(socket), std::move(*memory),
                                                     capacity, 1, std::move(*nudge), settings));
}

ShmTransport::ShmTransport(Fd socket, MemoryMap memory, size_t capacity, int side, Fd nudge,
                           const shm::Settings& settings)
    : profile_{"shm",
               Bulk::kMap,
               settings.coalesce_bytes,
               settings.eager_given ? settings.eager_bytes : kEagerBytes,
               settings.chunk_bytes,
               1},
      socket_(std::move(socket)),
      memory_(std::move(memory)),
      nudge_(std::move(nudge)),
      rings_(open_rings(memory_.data(), capacity, side)),
      peer_arena_(make_ref<PeerArena>()) {
  (void)setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &kControlBytes, sizeof kControlBytes);
}

ShmTransport::~ShmTransport() { unwatch(); }

void ShmTransport::ring_peer(Sleeper sleeper) {
  if (sleeper == Sleeper::kBackground) ring_shm_bell(socket_.get());
  if (sleeper == Sleeper::kDriver) futex_wake(rings_.peer_sleep_word(), 1, FutexScope::kShared);
}

// ---- moving ----

Result<size_t> ShmTransport::send(std::span<const iovec> data) {
  if (gone()) return gone_status();
  if (!waiting_.empty()) {
    const auto handed = hand_waiting();
    if (!handed) return handed.status();
    if (!*handed) {
      rings_.abandon();  // it is not for room in the ring that this end waits
      return size_t{0};
    }
  }
  auto written = rings_.write(data);
  if (written && *written != 0) {
    trace_send(*written);
    ring_peer(rings_.after_write());
  }
  return written;
}

Result<size_t> ShmTransport::receive(std::span<const iovec> room) {
  // Read before the look at the ring: what a dead peer had written is still to be had.
  const bool was_gone = gone();
  auto got = rings_.read(room);
  if (!got) return got;
  if (*got != 0) {
    ring_peer(rings_.after_read());
    return got;
  }
  if (was_gone) return gone_status();
  return got;
}

bool ShmTransport::readable() { return rings_.readable() || gone(); }

// ---- sleeping ----

Wake ShmTransport::sleep(bool, Nanos deadline) {
  ring_peer(rings_.after_read());
  if (!rings_.prepare_sleep(Sleeper::kDriver)) return Wake::kReady;
  Wake result = Wake::kReady;
  bool asleep = true;
  while (asleep && !interrupted_.load(std::memory_order_seq_cst)) {
    const Nanos glance = std::min(deadline, now() + kGlance);
    switch (futex_wait(rings_.sleep_word(), static_cast<uint32_t>(Sleeper::kDriver), glance,
                       FutexScope::kShared)) {
      case FutexWait::kWoken:
        asleep = false;
        break;
      case FutexWait::kTimeout:
        if (glance == deadline) result = Wake::kTimeout;
        asleep = glance != deadline && !readable();
        break;
      case FutexWait::kSignal:
        result = Wake::kSignal;
        asleep = false;
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
  const MutexLock lock(watch_mutex_);
  auto nudge = poller.watch(nudge_.get(), EPOLLIN, watcher, kNudge);
  if (!nudge) return nudge.status();
  poller_ = &poller;
  watcher_ = std::move(watcher);
  nudge_watch_ = *nudge;
  auto control = poller.watch(socket_.get(), kListen, watcher_, kControl);
  if (!control) return control.status();
  control_watch_ = *control;
  return {};
}

void ShmTransport::unwatch() {
  stop_listening();
  Poller* poller;
  Poller::Watch nudge;
  Ref<Watcher> watcher;  // let go of without the lock
  {
    const MutexLock lock(watch_mutex_);
    poller = std::exchange(poller_, nullptr);
    watcher = std::move(watcher_);
    nudge = nudge_watch_;
  }
  if (poller) poller->unwatch(nudge, nudge_.get());
}

// What has ended stays readable, and would be reported without end.
void ShmTransport::stop_listening() {
  Poller* poller;
  Poller::Watch watch;
  {
    const MutexLock lock(watch_mutex_);
    poller = poller_;
    watch = std::exchange(control_watch_, 0);
  }
  if (poller && watch != 0) poller->unwatch(watch, socket_.get());
}

void ShmTransport::arm(bool) {
  ring_peer(rings_.after_read());
  if (!rings_.prepare_sleep(Sleeper::kBackground) || gone()) (void)eventfd_write(nudge_.get(), 1);
}

void ShmTransport::disarm() { rings_.awake(); }

Transport::Meaning ShmTransport::meaning(uint32_t tag, uint32_t events) {
  if (tag == kNudge) {
    eventfd_t value;
    (void)eventfd_read(nudge_.get(), &value);
    return Meaning::kActivity;
  }
  const bool room = tag == kRetry || (events & EPOLLOUT) != 0;
  if (room) {
    {
      const MutexLock lock(watch_mutex_);
      if (tag == kControl && poller_ && control_watch_ != 0)
        poller_->rearm(control_watch_, socket_.get(), kListen);
      no_room_.store(false, std::memory_order_release);
    }
    interrupt();  // whoever drives sends
  }
  if (tag == kRetry) return Meaning::kActivity;
  auto got = take_announcements(kFramesAtOnce);
  if (got && *got == ShmFrameReader::Got::kFrame) return Meaning::kActivity;
  if (got && *got == ShmFrameReader::Got::kNothing)
    return room ? Meaning::kActivity : Meaning::kNone;
  stop_listening();
  if (got) return Meaning::kHungUp;
  const Code code = got.status().code();
  depart({code == Code::kResourceExhausted ? code : Code::kInternal, got.status().details()});
  return Meaning::kActivity;
}

void ShmTransport::hang_up() { ::shutdown(socket_.get(), SHUT_RDWR); }

// ---- memory ----

Result<ShmFrameReader::Got> ShmTransport::take_announcements(int most) {
  const MutexLock lock(control_mutex_);
  for (int taken = 0; taken < most; ++taken) {
    ShmMessage message;
    auto got = reader_.read(socket_.get(), message);
    if (!got) return got.status();
    if (*got == ShmFrameReader::Got::kEnd) return got;
    if (*got == ShmFrameReader::Got::kNothing)
      return taken == 0 ? got : Result(ShmFrameReader::Got::kFrame);
    const wire::ShmFrame& frame = message.frame;
    Status status;
    switch (frame.type) {
      case wire::ShmFrameType::kRings:
      case wire::ShmFrameType::kProcess:
        return Status{Code::kInternal, "protocol error: rings, or a process, out of place"};
      case wire::ShmFrameType::kSlab:
        status = message.descriptors.empty()
                     ? peer_arena_->refuse({frame.slab, frame.generation, frame.size})
                     : peer_arena_->add(std::move(message.descriptors[0]),
                                        {frame.slab, frame.generation, frame.size});
        // The link goes on without it: what lies there is pushed.
        if (status.code() == Code::kResourceExhausted) status = {};
        break;
      case wire::ShmFrameType::kSlabGone:
        status = peer_arena_->drop(frame.slab, frame.generation);
        break;
      case wire::ShmFrameType::kRegion:
        status = map_region(std::move(message));
        break;
      case wire::ShmFrameType::kBlock:
        status = enter_block(std::move(message));
        break;
      case wire::ShmFrameType::kBell:
        break;  // whoever asks looks at the rings next
    }
    if (!status.ok()) return status;
  }
  return ShmFrameReader::Got::kFrame;
}

Result<Located> ShmTransport::locate(const RegionRef& region) {
  auto located = peer_arena_->locate(region);
  if (located) return located;
  // The announcement precedes the descriptor, on its own way.
  if (auto got = take_announcements(kAllFrames); !got) return got.status();
  return peer_arena_->locate(region);
}

Status ShmTransport::handed_twice(uint64_t region) const {
  if (!handed_.contains(region) && !in_slabs_.contains(region) && !refused_.contains(region))
    return {};
  return wire::protocol_error({"the memory of region ", region, " is handed over twice"});
}

Status ShmTransport::room_for(uint64_t size, size_t pieces) const {
  if (mapped_->mappings.load(std::memory_order_relaxed) + pieces >= kMaxMapped)
    return {Code::kResourceExhausted, text({"this process maps ", kMaxMapped,
                                            " pieces of the peer's memory, the most of a link"})};
  if (size > kMaxMappedBytes ||
      mapped_->bytes.load(std::memory_order_relaxed) > kMaxMappedBytes - size)
    return {Code::kResourceExhausted,
            text({"with its ", size, " bytes this process would map more than ", kMaxMappedBytes,
                  " of the peer's memory, the most of a link"})};
  return {};
}

Status ShmTransport::refuse(uint64_t region, Status why) {
  if (why.code() != Code::kResourceExhausted)
    return {why.code(), "the memory of region " + std::to_string(region) + ": " + why.details()};
  if (refused_.size() < kMaxMapped) refused_.emplace(region, std::move(why));
  return {};
}

HandedOver ShmTransport::refused(uint64_t region) {
  const MutexLock lock(control_mutex_);
  if (auto found = refused_.extract(region)) return {{}, std::move(found.mapped())};
  return {{}, {Code::kNotFound, "the peer has not handed its memory over: its log says why"}};
}

Status ShmTransport::map_region(ShmMessage message) {
  const uint64_t region = message.frame.slab | uint64_t{message.frame.generation} << 32;
  if (Status status = handed_twice(region); !status.ok()) return status;
  if (message.descriptors.empty()) return refuse(region, no_descriptor());
  if (Status full = room_for(message.frame.size); !full.ok()) return refuse(region, full);
  auto memory = MappedMemory::map(std::move(message.descriptors[0]),
                                  std::move(message.descriptors[1]), message.frame.size, mapped_);
  if (!memory) return refuse(region, memory.status());
  handed_.emplace(region, std::move(*memory));
  return {};
}

// The slab is looked up now: its owner may have given it up when the region's frame is read.
Status ShmTransport::enter_block(ShmMessage message) {
  const uint64_t region = message.frame.size;
  if (Status status = handed_twice(region); !status.ok()) return status;
  if (message.descriptors.empty()) return refuse(region, no_descriptor());
  auto slab = peer_arena_->locate({message.frame.slab, message.frame.generation, 0, 0});
  if (!slab) return refuse(region, slab.status());
  if (Status full = room_for(0, in_slabs_.size()); !full.ok()) return refuse(region, full);
  auto door = MappedMemory::map_door(std::move(message.descriptors[0]));
  if (!door) return refuse(region, door.status());
  in_slabs_.emplace(region, InSlab{std::move(slab->mapping), std::move(*door)});
  return {};
}

template <class T>
Result<std::optional<T>> ShmTransport::take(std::map<uint64_t, T> ShmTransport::* from,
                                            uint64_t region) {
  for (const bool last : {false, true}) {
    {
      const MutexLock lock(control_mutex_);
      if (auto found = (this->*from).extract(region))
        return std::optional(std::move(found.mapped()));
    }
    // As that of a slab, it precedes the frame on its own way.
    if (last) break;
    if (auto got = take_announcements(kAllFrames); !got) return got.status();
  }
  return std::optional<T>{};
}

Result<HandedOver> ShmTransport::take_over(uint64_t region) {
  auto taken = take(&ShmTransport::handed_, region);
  if (!taken) return taken.status();
  return *taken ? HandedOver{std::move(**taken), {}} : refused(region);
}

Result<HandedOver> ShmTransport::take_over(uint64_t region, uint64_t offset, uint64_t length) {
  auto taken = take(&ShmTransport::in_slabs_, region);
  if (!taken) return taken.status();
  if (!*taken) return refused(region);
  const SlabMapping& slab = *(*taken)->slab;
  if (length <= slab.announced().size)
    if (Status full = room_for(length); !full.ok()) return HandedOver{{}, std::move(full)};
  auto memory = MappedMemory::map(slab, offset, length, std::move((*taken)->door), mapped_);
  if (memory) return HandedOver{std::move(*memory), {}};
  if (memory.status().code() == Code::kResourceExhausted) return HandedOver{{}, memory.status()};
  return wire::protocol_error({"REGION frame: id is ", region, ", ", memory.status().details()});
}

}  // namespace tw
