// SPDX-License-Identifier: Apache-2.0
// Shared memory: two byte rings for what is small, descriptors into the sender's arena for what is
// large.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "transport/shm/control.h"
#include "transport/shm/ring.h"
#include "transport/shm/settings.h"
#include "transport/transport.h"

namespace tw {

class ShmTransport final : public Transport {
 public:
  // The client's side: makes the rings and hands them over. Takes over a connected unix socket.
  static Result<std::unique_ptr<Transport>> offer(Fd socket, const shm::Settings& settings);
  // The server's side, given the client's kRings message. INTERNAL: it is not what it must be.
  static Result<std::unique_ptr<Transport>> accept(Fd socket, ShmMessage rings,
                                                   const shm::Settings& settings);
  ~ShmTransport() override;

  const Profile& profile() const override { return profile_; }
  Result<size_t> send(std::span<const iovec> data) override;
  bool untaken() override { return rings_.untaken(); }
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
  void slabs_dropped() override { (void)take_back(); }
  Result<Located> locate(const RegionRef& region) override;
  Ref<LeasedView> held(std::span<const std::byte> bytes) override {
    return peer_arena_->held(bytes);
  }
  Status hand_over(uint64_t region, Ref<SharedMemory> memory, bool writable,
                   Ref<Door> door) override;
  Status hand_over(uint64_t region, Ref<Slab> slab, Ref<Door> door) override;
  void withdraw(uint64_t region) override;
  NotHanded not_handed() const override { return not_handed_; }
  Result<HandedOver> take_over(uint64_t region) override;
  Result<HandedOver> take_over(uint64_t region, uint64_t offset, uint64_t length) override;

  // Memory of this peer's that it may have us map at a time, or that nobody has taken over yet, in
  // pieces. Each takes two of the mappings that the kernel gives a process (vm.max_map_count,
  // 65,530 by default), so that one peer takes an eighth of them.
  static constexpr size_t kMaxMapped = 4096;
  // How long what is sent waits for descriptors that others have not taken.
  static constexpr Nanos kCrowdedPatience = 250 * kMillisecond;

 private:
  static constexpr uint32_t kNudge = 1;
  static constexpr uint32_t kControl = 2;
  static constexpr uint32_t kRetry = 3;
  static constexpr uint32_t kListen = EPOLLIN | EPOLLRDHUP;
  static constexpr int kFramesAtOnce = 16;
  // More than fit into a socket's buffer.
  static constexpr int kAllFrames = 4096;
  // A sleeping driver looks up this often: the peer can write to the word that it sleeps on, so
  // that whoever wants to wake it finds nobody asleep.
  static constexpr Nanos kGlance = 250 * kMillisecond;

  static constexpr size_t kMaxMappedBytes = size_t{1} << 40;

  // Of frames that the peer has not taken: 64, as the kernel counts. Each keeps two descriptors on
  // their way, of those that the kernel lets all processes of a user have there (ulimit -n).
  static constexpr int kControlBytes = 24 << 10;
  // How often descriptors that others have not taken are looked after: nothing tells.
  static constexpr Nanos kCrowdedLook = 2 * kMillisecond;

  ShmTransport(Fd socket, MemoryMap memory, size_t capacity, int side, Fd nudge,
               const shm::Settings& settings);
  void ring_peer(Sleeper sleeper);
  void stop_listening();
  // Tells the peer of shared slabs that the arena has given up, and lets go of them.
  Result<ShmSent> take_back();
  // As share().
  Result<ShmSent> announce(Slab& slab);
  // What is to be handed over. Its descriptors are made at its turn.
  struct HandOver {
    uint64_t region = 0;
    Ref<SharedMemory> memory;  // null: it lies in `slab`
    bool writable = false;
    Ref<Slab> slab;
    Ref<Door> door;
    Fd door_file;
  };
  Status hand_over(HandOver what);
  // RESOURCE_EXHAUSTED: it cannot be handed over.
  Result<ShmSent> hand_now(HandOver& what);
  // False: some still wait. UNAVAILABLE.
  Result<bool> hand_waiting();
  // Something was handed over.
  void not_crowded();
  // Has hand_waiting() called once there may be room. False: not any more.
  bool await_room(ShmSent why);
  // Takes in what the peer has announced; at most `most` frames, as it can send without end. kEnd:
  // it hung up.
  Result<ShmFrameReader::Got> take_announcements(int most);
  // What the peer says lies in a slab of its own, and the door to it.
  struct InSlab {
    Ref<SlabMapping> slab;
    MemoryMap door;
  };
  // RESOURCE_EXHAUSTED: for no more. `pieces`: those that are going to be mapped before it.
  Status room_for(uint64_t size, size_t pieces = 0) const;
  Status map_region(ShmMessage message) TW_REQUIRES(control_mutex_);
  Status enter_block(ShmMessage message) TW_REQUIRES(control_mutex_);
  Status handed_twice(uint64_t region) const TW_REQUIRES(control_mutex_);
  // What there is no room for here is accessed by frames. All else is the peer's fault.
  Status refuse(uint64_t region, Status why) TW_REQUIRES(control_mutex_);
  HandedOver refused(uint64_t region);
  // What the peer has said of a region ahead of its frame; none: nothing, or it was refused.
  template <class T>
  Result<std::optional<T>> take(std::map<uint64_t, T> ShmTransport::* from, uint64_t region);

  const Profile profile_;
  const Fd socket_;
  const MemoryMap memory_;
  const Fd nudge_;  // an eventfd by which this end wakes its own background
  ShmRings rings_;

  std::atomic<bool> interrupted_{false};

  // ---- send lock ----
  std::map<uint32_t, Ref<Slab>> shared_;  // by index
  std::deque<HandOver> waiting_;          // at most kMaxMapped, in the order of their regions
  Nanos crowded_since_ = 0;               // 0: it is not crowded
  bool patient_ = true;                   // it has not been crowded for too long
  NotHanded not_handed_;
  // Nothing is tried before there may be room.
  std::atomic<bool> no_room_{false};

  const Ref<PeerArena> peer_arena_;
  const Ref<MappingTally> mapped_ = make_ref<MappingTally>();
  Mutex control_mutex_;  // guards what follows
  ShmFrameReader reader_ TW_GUARDED_BY(control_mutex_);
  std::map<uint64_t, Ref<MappedMemory>> handed_ TW_GUARDED_BY(control_mutex_);  // by region
  std::map<uint64_t, InSlab> in_slabs_ TW_GUARDED_BY(control_mutex_);           // likewise
  std::map<uint64_t, Status> refused_ TW_GUARDED_BY(control_mutex_);            // likewise, and why

  Mutex watch_mutex_;  // guards what follows: events may come while watch() is still at it
  Poller* poller_ TW_GUARDED_BY(watch_mutex_) = nullptr;
  Ref<Watcher> watcher_ TW_GUARDED_BY(watch_mutex_);
  Poller::Watch nudge_watch_ TW_GUARDED_BY(watch_mutex_) = 0;
  Poller::Watch control_watch_ TW_GUARDED_BY(watch_mutex_) = 0;
};

}  // namespace tw
