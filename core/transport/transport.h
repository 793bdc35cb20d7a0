// SPDX-License-Identifier: Apache-2.0
// The contract of a transport: how bytes move on one link. docs/new-transport.md explains how to
// write another.
//
// A transport is two ordered byte pipes, a way to sleep and be woken, and, where the profile says
// so, memory of the peer that can be mapped. It knows nothing of frames, calls or links.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/declared.h"
#include "base/ref.h"
#include "base/status.h"
#include "base/trace.h"
#include "engine/poller.h"
#include "memory/arena.h"
#include "memory/mapped_memory.h"
#include "memory/mapping.h"
#include "memory/region.h"
#include "transport/departure.h"

namespace tw {

// How segments too large for an eager send travel.
enum class Bulk : uint8_t {
  kPush,  // as chunks in the byte pipe
  kMap,   // by a descriptor; the receiver reads them in the sender's arena on a lease
  kRead,  // by a ready-to-send per chunk; the receiver fetches each with a one-sided read
};

// What suits a transport: the message machine's thresholds.
struct Profile {
  const char* name;
  Bulk bulk;
  size_t coalesce_bytes;  // consecutive small segments share a frame up to this many bytes together
  size_t eager_bytes;     // a segment up to this size is copied and sent at once
  size_t chunk_bytes;     // a larger one is cut into chunks of this size (kPush, kRead)
  uint32_t chunks_in_flight;  // kRead: ready-to-sends outstanding per message
  bool one_sided = false;     // operations on exposed regions need no help of the peer's processor
  size_t largest_chunk = SIZE_MAX;  // what chunk_bytes is at most where no user sets it
};

enum class Wake : uint8_t { kReady, kTimeout, kSignal };

// What a peer may do to an exposed region beside nothing; a set of bits.
using Rights = uint32_t;
inline constexpr Rights kMayRead = 1, kMayWrite = 2, kMayUpdate = 4;  // update: the two atomics

// The device's name for an exposed region, as the peer has to give it back.
struct RemoteKey {
  uint64_t address = 0;
  uint32_t key = 0;
};

// A one-sided operation. `local` stays valid, and its memory is not freed, until it has ended.
struct Operation {
  enum class Kind : uint8_t { kRead, kWrite, kWriteImmediate, kFetchAdd, kCompareSwap };
  // Set in the names of operations, and not in those of fetches.
  static constexpr uint64_t kIdBit = uint64_t{1} << 63;
  Kind kind = Kind::kRead;
  uint64_t id = kIdBit;  // the caller's name for it, in one space with those of fetch()
  std::byte* local = nullptr;
  size_t length = 0;     // 8 for the atomics, whose old value goes to `local`
  RemoteKey remote;      // of the first byte
  uint64_t operand = 0;  // what to add, or to swap in
  uint64_t expected = 0;
  uint32_t immediate = 0;
};

// Memory that the peer has handed over.
struct HandedOver {
  Ref<MappedMemory> memory;  // null: it is not mapped here
  Status why_not;            // kResourceExhausted; kNotFound: it did not come
};

// How a fetch or an operation has ended. kUnavailable: the link broke. kPermissionDenied: the
// peer's device refused the access, which breaks the link, too.
struct Completion {
  uint64_t id = 0;
  Status status;
};

// What the peer's host has said to what this end sent, by the word of the kernels at both ends and
// whatever the peer's process does: it may be stopped.
struct HostAnswer {
  bool due = false;    // something that was sent is not acknowledged
  Nanos ago = 0;       // since something was
  bool room = false;   // one more small frame leaves at once, and keeps no other back
  bool waits = false;  // something that send() took is yet to leave
};

// Zeros where nothing is registered.
struct TransportFacts {
  uint64_t registrations = 0, fetch_registrations = 0;
};
inline constexpr Counter<TransportFacts> kTransportFacts[] = {
    {&TransportFacts::registrations,
     {"registrations",
      {"link_registrations", "slabs", Metric::Kind::kGauge,
       "Slabs that the device of the link knows."}}},
    {&TransportFacts::fetch_registrations,
     {"fetch_registrations",
      {"link_fetch_registrations", "buffers", Metric::Kind::kCounter,
       "Buffers that the device was told of for one read."}}},
};
static_assert(complete(kTransportFacts));

// Locks: "send lock" and "baton" are the link's. Members that name neither may be called from any
// thread. After an error from send() or receive() the transport is dead and only destroyed.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual const Profile& profile() const = 0;

  // Send lock held. Bytes taken, 0 when the pipe is full.
  // kUnavailable: the peer is gone.
  virtual Result<size_t> send(std::span<const iovec> data) = 0;

  // Send lock held. Whether the peer has yet to take something of what send() took. False where
  // this end cannot tell.
  virtual bool untaken() { return false; }

  // Send lock held. Whether hang_up() could take back something of what send() took.
  virtual bool undelivered() { return false; }

  // Any thread. Nothing: the ends have one host, or the transport finds out by itself when that of
  // the peer is gone.
  virtual std::optional<HostAnswer> host_answer() { return std::nullopt; }

  // Baton held. Bytes stored, 0 when there are none now.
  // kUnavailable: the peer is gone and everything it had sent has been received.
  virtual Result<size_t> receive(std::span<const iovec> room) = 0;

  // Baton held. Whether receive() or completed() is worth trying; costs no system call where the
  // transport can tell without one.
  virtual bool readable() = 0;

  // Baton held. Sleeps until there may be something to receive, room to send (if want_send),
  // interrupt(), a signal or the deadline.
  virtual Wake sleep(bool want_send, Nanos deadline) = 0;
  // Ends the present or the next sleep().
  virtual void interrupt() = 0;

  // Registers with the poller; no activity is reported until arm(). The watcher's tags are the
  // transport's own. Whatever comes of it, a status or std::bad_alloc, unwatch() undoes it.
  virtual Status watch(Poller& poller, Ref<Watcher> watcher) = 0;
  virtual void unwatch() = 0;
  // Baton held, as the last thing before it is let go. From now on one activity is reported when
  // something can be received (or sent, if want_send), at once if it can already.
  virtual void arm(bool want_send) = 0;
  // Somebody drives again; a report that was already under way may still come.
  virtual void disarm() = 0;
  // The watcher asks first thing what an event means; any thread's Poller may call it.
  enum class Meaning : uint8_t { kNone, kActivity, kHungUp };
  virtual Meaning meaning(uint32_t tag, uint32_t events) = 0;

  // The peer's process has died (or hung up): once drained, receive() fails with `why`.
  virtual void peer_gone(std::string why) { depart({Code::kUnavailable, std::move(why)}); }

  // Baton held. Tells the peer that nothing more comes, and asks for nothing more.
  virtual void hang_up() = 0;

  // kMap, kRead. Send lock held: the peer will be able to map (to read) this slab before it reads
  // what is sent from now on.
  virtual Status share(Slab& slab);
  // kMap, kRead. Send lock held: the arena has dropped slabs; the peer is told of those it knows.
  virtual void slabs_dropped() {}
  // kMap. Baton held: the peer's memory named by a descriptor. kInternal: the descriptor is wrong.
  // kResourceExhausted: its slab cannot be mapped here, now or later.
  virtual Result<Located> locate(const RegionRef& region);
  // kMap. Any thread: see PeerArena::held().
  virtual Ref<LeasedView> held(std::span<const std::byte>) { return nullptr; }

  // kRead. Baton held: starts to read `from`, a run of bytes of the peer's arena, into this
  // process's memory at `to`, which must neither move nor be freed before its completion or
  // revoke(). False: the transport has no room for it now; again whenever completed() was asked.
  // kInternal: the peer named memory that it has not shared. kUnavailable: the peer is gone.
  // kResourceExhausted, kInvalidArgument: `to` cannot be given to the device; the link goes on.
  virtual Result<bool> fetch(uint64_t id, const RegionRef& from, std::byte* to);
  // kRead and one-sided operations. Baton held: what has ended since, in any order; 0 when nothing
  // has. Whoever asks receive() asks this, too: sleep() and arm() count a completion as something
  // that was received.
  virtual size_t completed(std::span<Completion> out);

  // Any thread; the send lock is not held. From the return on, neither the peer nor this end's own
  // fetches and operations read or write this process's memory: it may be reused. The transport is
  // dead then. Nothing to do where all of that needs this end's processor (kPush, kMap).
  virtual void revoke() {}

  // Before anything else is done with it: where it notes each send of its own (TraceStep::kSend),
  // which outlives it.
  virtual void set_trace(Trace& trace) { trace_ = &trace; }
  // Any thread.
  virtual TransportFacts facts() const { return {}; }

  // ---- one-sided operations that the peer does by loads and stores ----

  // Send lock held. Hands shared memory to the peer, which can take it under the region's number
  // before it reads what is sent from now on: where it takes in nothing at the moment, this waits,
  // and so does what is sent. kResourceExhausted; kUnavailable: the link is broken; kUnimplemented:
  // by this transport nothing is.
  virtual Status hand_over(uint64_t region, Ref<SharedMemory> memory, bool writable,
                           Ref<Door> door);
  // The same of memory that lies in a slab of the arena, to be read.
  virtual Status hand_over(uint64_t region, Ref<Slab> slab, Ref<Door> door);
  // Send lock held: what waits to be handed over for it is not.
  virtual void withdraw(uint64_t) {}
  // Send lock held: what had to wait, and could not be handed over then. `why`: the last one.
  struct NotHanded {
    uint64_t count = 0;
    Status why;
  };
  virtual NotHanded not_handed() const { return {}; }
  // Baton held: what the peer has handed over under this number, once. A status: the peer broke the
  // protocol.
  virtual Result<HandedOver> take_over(uint64_t region);
  // ... and that lies so in a slab of the peer's.
  virtual Result<HandedOver> take_over(uint64_t region, uint64_t offset, uint64_t length);

  // ---- one-sided operations that a device does by itself; profile().one_sided says whether ----

  // Send lock held. Lets this link's peer, and nobody else, at [data, data + size) until conceal().
  // kResourceExhausted, kUnavailable, kInvalidArgument (memory that is not writable),
  // kUnimplemented (updates on a device without atomics).
  virtual Result<RemoteKey> expose(std::byte* data, size_t size, Rights rights);
  // Send lock held. Afterwards the device refuses the key.
  virtual void conceal(const RemoteKey& key);
  // Baton held: as fetch(). kUnimplemented: the device has no such operation.
  virtual Result<bool> start(const Operation& operation);
  // Baton held: the values of the peer's writes with immediate that have arrived since, in their
  // order; 0 when none has. As with completed(), whoever asks receive() asks this, too.
  virtual size_t immediates(std::span<uint32_t> out);

 protected:
  // Any thread. The link is to end: whoever sleeps wakes up.
  void depart(Status why) {
    departure_.tell(std::move(why));
    interrupt();
  }
  bool gone() const { return departure_.told(); }
  Status gone_status() const { return departure_.why(); }

  void trace_send(size_t bytes) {
    if (trace_) trace_->note(true, TraceStep::kSend, 0, 0, 0, bytes);
  }

 private:
  Departure departure_;
  Trace* trace_ = nullptr;
};

}  // namespace tw
